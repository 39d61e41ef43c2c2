"""The arguments of a tool: makes their schema from the function's signature, and validates inputs."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from textwrap import dedent
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema, ErrorDetails, from_json

_BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_MAX_ERRORS = 10  # that one message lists
_MAX_VALUE_CHARS = 80
_SECTION = re.compile(r"^(?:Args|Arguments|Parameters):[ ]*\n(?P<body>(?:[ ]+\S.*(?:\n|\Z)|[ ]*\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^(?P<name>\w+)(?:[ ]*\([^\n]*?\))?:[ ]*(?P<text>.*(?:\n[ ]+\S.*)*)", re.MULTILINE)
_FIELD = re.compile(r"^:param[ ](?:[^:\n]*[ ])?(?P<name>\w+):[ ]*(?P<text>.*(?:\n[ ]+\S.*)*)\n?", re.MULTILINE)


class BadArguments(Exception):
    """An input violates the schema. The message is for the model, which may correct the input."""


class _Schema(GenerateJsonSchema):
    """Omits pydantic's titles: titles only repeat the names, and make every request longer."""

    def field_title_should_be_set(self, schema: CoreSchema | Any) -> bool:  # noqa: ARG002
        return False


@dataclass(frozen=True, slots=True)
class Arguments:
    """The model sends the arguments in `names`; the parameter `context`, if any, receives the ToolContext."""

    names: tuple[str, ...]
    context: str | None
    model: type[BaseModel]
    schema: str

    @classmethod
    def of(cls, function: Callable[..., Any], descriptions: Mapping[str, str], *, context_type: type) -> "Arguments":
        """Reads a signature. `descriptions` come from the docstring. Raises TypeError for an unsuitable parameter."""
        hints = get_type_hints(function, include_extras=True)
        context: str | None = None
        names: list[str] = []
        fields: dict[str, Any] = {}
        for position, (name, parameter) in enumerate(signature(function).parameters.items()):
            if name == "self" and position == 0:
                continue
            if hints.get(name) is context_type:
                context = name
                continue
            if parameter.kind not in _BY_NAME:
                raise TypeError(f"a tool cannot have the parameter {parameter}: a model sends arguments by name")
            if isinstance(parameter.default, FieldInfo):
                raise TypeError(f"the Field of {name} must be part of its type: Annotated[…, Field(…)] = default")
            if name not in hints:
                raise TypeError(f"the parameter {name} needs a type: the schema for the model is made from it")
            default = ... if parameter.default is Parameter.empty else parameter.default
            options = _description(hints[name], descriptions.get(name))
            # Fields have numbers, and parameter names as aliases: pydantic allows no field named `schema` or `copy`.
            fields[f"field_{len(names)}"] = (hints[name], Field(default, alias=name, **options))
            names.append(name)
        try:
            model: type[BaseModel] = create_model(function.__name__, __config__=ConfigDict(extra="forbid"), **fields)
            schema = model.model_json_schema(schema_generator=_Schema)
        except PydanticUserError as error:
            raise TypeError(f"the parameters of {function.__name__} have no JSON schema: {error}") from error
        schema.pop("title")
        return cls(tuple(names), context, model, msgspec.json.encode(schema).decode())

    def parse(self, input_json: str) -> dict[str, Any]:
        """Returns the validated values by parameter name, with defaults for omitted arguments. Raises BadArguments."""
        try:
            values = self.model.model_validate_json(input_json)
        except ValidationError as error:
            details = error.errors(include_url=False)
        else:
            return dict(zip(self.names, vars(values).values(), strict=True))
        try:
            value = from_json(input_json)
        except ValueError as problem:
            raise BadArguments(f"The input is not valid JSON: {problem}.") from None
        sentences = [self._sentence(detail, value) for detail in details[:_MAX_ERRORS]]
        if len(details) > _MAX_ERRORS:
            sentences.append(f"There are {len(details) - _MAX_ERRORS} more errors.")
        raise BadArguments(" ".join(sentences))

    def _sentence(self, detail: ErrorDetails, value: Any) -> str:
        path = _path(detail["loc"], value)
        if detail["type"] == "missing":
            return f"`{'.'.join(filter(None, (path, str(detail['loc'][-1]))))}` is required."
        if detail["type"] == "extra_forbidden":
            known = f"the arguments are {', '.join(self.names)}" if self.names else "there are no arguments"
            return f"There is no `{path}`" + (f"; {known}." if len(detail["loc"]) == 1 else ".")
        message = detail["msg"].removeprefix("Value error, ")
        got = json.dumps(detail["input"], ensure_ascii=False, default=str)
        got = got if len(got) <= _MAX_VALUE_CHARS else f"{got[:_MAX_VALUE_CHARS]}…"
        return f"`{path or 'input'}`: {message} (got {got})."


def _description(hint: Any, of_docstring: str | None) -> dict[str, Any]:
    """Returns a parameter's description: from a Field, else from a string in Annotated, else from the docstring."""
    notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    if any(isinstance(note, FieldInfo) and note.description for note in notes):
        return {}
    description = next((note for note in notes if isinstance(note, str)), of_docstring)
    return {"description": description} if description else {}


def _path(loc: tuple[int | str, ...], value: Any) -> str:
    """Returns the steps of `loc` that exist in the input. pydantic also adds names for the branches of a union."""
    steps: list[str] = []
    for part in loc:
        match value:
            case dict() if part in value:
                value = value[part]
            case list() if isinstance(part, int):
                value = value[part]
            case _:
                continue
        steps.append(str(part))
    return ".".join(steps)


def split_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Splits a clean docstring into the description of the tool and the descriptions of its parameters, by name.

    The description of a parameter is `:param name: text`, or a line `name: text` of an `Args:` section. A line with
    more indentation continues the previous line.
    """
    bodies = [dedent(found["body"]) for found in _SECTION.finditer(text)]
    entries = [found for body in bodies for found in _ENTRY.finditer(body)]
    entries += _FIELD.finditer(text)
    description = _FIELD.sub("", _SECTION.sub("", text)).strip()
    return description, {entry["name"]: " ".join(entry["text"].split()) for entry in entries}
