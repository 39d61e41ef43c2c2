"""The arguments of a tool: their schema for the model, and what a model sent checked against it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema, ErrorDetails, from_json

_BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_TOLD_AT_ONCE = 10
_SHOWN_OF_A_VALUE = 80


class BadArguments(Exception):
    """What is wrong with an input, in words its author can act on."""


class _Schema(GenerateJsonSchema):
    """Without the titles pydantic makes of names: they are sent with every request and say nothing."""

    def field_title_should_be_set(self, schema: CoreSchema | Any) -> bool:  # noqa: ARG002
        return False


@dataclass(frozen=True, slots=True)
class Arguments:
    """`names` are what a model may send; `context` is the parameter that wants the call's context, if any."""

    names: tuple[str, ...]
    context: str | None
    model: type[BaseModel]
    schema: str

    @classmethod
    def of(cls, function: Callable[..., Any], said: Mapping[str, str], *, context_type: type) -> "Arguments":
        """`said`: the docstring on the parameters. Raises TypeError for one that a model could not fill."""
        hints = get_type_hints(function, include_extras=True)
        context: str | None = None
        fields: dict[str, Parameter] = {}
        for position, (name, parameter) in enumerate(signature(function).parameters.items()):
            if name == "self" and position == 0:
                continue
            if hints.get(name) is context_type:
                context = name
            else:
                fields[name] = _checked(parameter, hints)
        try:
            model = _model(function.__name__, fields, hints, said)
            return cls(tuple(fields), context, model, _schema(model))
        except PydanticUserError as error:
            raise TypeError(f"the parameters of {function.__name__} have no JSON schema: {error}") from error

    def parse(self, input_json: str) -> dict[str, Any]:
        """The validated values by parameter name; raises BadArguments. Those left out have their defaults."""
        try:
            values = self.model.model_validate_json(input_json)
        except ValidationError as error:
            raise BadArguments(self._complaint(error, input_json)) from None
        return dict(zip(self.names, vars(values).values(), strict=True))

    def _complaint(self, error: ValidationError, input_json: str) -> str:
        details = error.errors(include_url=False)
        try:
            given = from_json(input_json)
        except ValueError as problem:
            return f"It is not valid JSON: {problem}."
        said = [self._sentence(detail, given) for detail in details[:_TOLD_AT_ONCE]]
        if len(details) > _TOLD_AT_ONCE:
            said.append(f"There are {len(details) - _TOLD_AT_ONCE} more errors.")
        return " ".join(said)

    def _sentence(self, detail: ErrorDetails, given: Any) -> str:
        where = _path(detail["loc"], given)
        if detail["type"] == "missing":
            return f"`{'.'.join(filter(None, (where, str(detail['loc'][-1]))))}` is required."
        if detail["type"] == "extra_forbidden":
            return f"There is no `{where}`" + (f"; {self._known}." if len(detail["loc"]) == 1 else ".")
        what = detail["msg"].removeprefix("Value error, ")
        return f"`{where or 'input'}`: {what} (got {_shown(detail['input'])})."

    @property
    def _known(self) -> str:
        return f"the arguments are {', '.join(self.names)}" if self.names else "it takes no arguments"


def _checked(parameter: Parameter, hints: Mapping[str, Any]) -> Parameter:
    if parameter.kind not in _BY_NAME:
        raise TypeError(f"a model fills arguments by name, so a tool cannot have {parameter}")
    if isinstance(parameter.default, FieldInfo):
        raise TypeError(f"the Field of {parameter.name} belongs into its type: Annotated[…, Field(…)] = default")
    if parameter.name not in hints:
        raise TypeError(f"the parameter {parameter.name} needs a type: the model is told what to send")
    return parameter


def _model(
    name: str, fields: Mapping[str, Parameter], hints: Mapping[str, Any], said: Mapping[str, str]
) -> type[BaseModel]:
    """Fields are numbered, with the parameter as alias: a parameter may be called `schema` or `copy`."""
    definitions: dict[str, Any] = {}
    for number, (field, parameter) in enumerate(fields.items()):
        default = ... if parameter.default is Parameter.empty else parameter.default
        options = _description(hints[field], said.get(field))
        definitions[f"field_{number}"] = (hints[field], Field(default, alias=field, **options))
    return create_model(name, __config__=ConfigDict(extra="forbid"), **definitions)


def _description(hint: Any, said: str | None) -> dict[str, Any]:
    """A string in Annotated goes before what the docstring says, and so does the description of a Field."""
    notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    if any(isinstance(note, FieldInfo) and note.description for note in notes):
        return {}
    words = next((note for note in notes if isinstance(note, str)), said)
    return {"description": words} if words else {}


def _schema(model: type[BaseModel]) -> str:
    schema = model.model_json_schema(schema_generator=_Schema)
    schema.pop("title")
    return msgspec.json.encode(schema).decode()


def _path(loc: tuple[int | str, ...], given: Any) -> str:
    """`loc` as far as it leads into the input, without the names pydantic has for the branches of a union."""
    steps: list[str] = []
    for part in loc:
        match given:
            case dict() if part in given:
                given = given[part]
            case list() if isinstance(part, int):
                given = given[part]
            case _:
                continue
        steps.append(str(part))
    return ".".join(steps)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN_OF_A_VALUE else f"{text[:_SHOWN_OF_A_VALUE]}…"
