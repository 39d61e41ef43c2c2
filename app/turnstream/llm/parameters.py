"""Model parameters: the options that a turn has for its model, besides the messages. Each adapter has a table."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

JsonObject = dict[str, Any]


class _Object(BaseModel):
    """An object whose declared members are checked here; all other members are passed on to the provider."""

    model_config = ConfigDict(extra="allow", strict=True)


class ToolChoice(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["auto", "any", "tool", "none"]
    name: Annotated[
        str | None, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$", description="the tool, where the type is tool")
    ] = None
    disable_parallel_tool_use: Annotated[bool | None, Field(description="at most one call in each reply")] = None

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        if (self.type == "tool") != (self.name is not None):
            raise ValueError("must have a `name` with the type `tool`, and none with another type")
        return self


class Thinking(_Object):
    type: Literal["adaptive", "enabled", "disabled", "between_tools"]
    budget_tokens: Annotated[int | None, Field(ge=1, description="with the type enabled")] = None
    display: Literal["summarized", "omitted", "updates"] | None = None


class OutputConfig(_Object):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonObject | None = None


class OutputFormat(BaseModel):
    """The output configuration of a model that has no effort levels."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: JsonObject


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter with its `name` in a turn. `type` is an annotation for pydantic whose JSON Schema needs no `$defs`.

    A `guarded` parameter can raise costs, or access the operator's account, and needs the operator's permission.
    `refused_by` matches the ids of models that refuse the parameter; `why` is the reason.
    """

    name: str
    type: Any
    description: str
    guarded: bool = False
    refused_by: re.Pattern[str] | None = None
    why: str = ""
    _adapter: TypeAdapter[Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_adapter", TypeAdapter(self.type))

    def validated(self, value: object) -> Any:
        """Returns the value to send. Raises pydantic's ValidationError."""
        self._adapter.validate_python(value, strict=True)
        declared = getattr(getattr(self.type, "__origin__", self.type), "model_fields", ())
        if not isinstance(value, dict):
            return value
        return {name: member for name, member in value.items() if member is not None or name not in declared}

    def accepts(self, value: object) -> bool:
        try:
            self._adapter.validate_python(value, strict=True)
        except ValidationError:
            return False
        return True

    def schema(self) -> dict[str, Any]:
        """Returns the JSON Schema of the parameter's values."""
        schema: dict[str, Any] = _without_titles(self._adapter.json_schema())
        return schema

    def is_refused_by(self, model: str) -> bool:
        return self.refused_by is not None and self.refused_by.search(model) is not None


def _without_titles(schema: Any) -> Any:
    """Drops pydantic's titles, defaults and class descriptions, and the type null, because null removes a value."""
    if not isinstance(schema, dict):
        return schema
    schema = {name: _without_titles(value) for name, value in schema.items() if name not in {"title", "default"}}
    options = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    if len(options) == 1:
        del schema["anyOf"]
        schema |= options[0]
    if "properties" in schema:
        schema.pop("description", None)
    return schema


@dataclass(frozen=True, slots=True)
class AllowedParams:
    """The guarded parameters that the operator allows: for each name the allowed values, or None for all values."""

    values: Mapping[str, frozenset[str] | None] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> Self:
        """Parses `store, betas=first, betas=second`: each item is a name, or a name with one value."""
        values: dict[str, frozenset[str] | None] = {}
        for item in filter(None, (each.strip() for each in text.split(","))):
            name, mark, value = (part.strip() for part in item.partition("="))
            before = values.get(name, frozenset())
            values[name] = None if not mark or before is None else before | {value}
        return cls(values)

    def allows(self, parameter: Parameter, value: object) -> bool:
        if not parameter.guarded:
            return True
        allowed = self.values.get(parameter.name, frozenset())
        return allowed is None or all(each in allowed for each in _texts(value))

    def shows(self, parameter: Parameter) -> bool:
        """True if any value of the parameter is allowed."""
        return not parameter.guarded or parameter.name in self.values


def _texts(value: object) -> list[object]:
    """Returns the values that must each be allowed: a list's items, or one value. Booleans are written as in JSON."""
    items = value if isinstance(value, list) else [value]
    return [str(item).lower() if isinstance(item, bool) else item if isinstance(item, str) else None for item in items]


Texts = Annotated[list[str], Field(max_length=100)]

MAX_TOKENS = Parameter("max_tokens", Annotated[int, Field(ge=1, le=100_000_000)], "limit of an answer, in tokens")
STOP_SEQUENCES = Parameter("stop_sequences", Texts, "texts at which an answer ends")
TOOL_CHOICE = Parameter(
    "tool_choice",
    ToolChoice,
    "whether tools may, must or must not be called; `any` and `tool` hold for the first round alone",
)
THINKING = Parameter("thinking", Thinking, "whether and how long the model thinks before it answers")
OUTPUT_CONFIG = Parameter("output_config", OutputConfig, "effort of the model, and the format of its answer")
OUTPUT_FORMAT = Parameter("output_config", OutputFormat, "format of the answer")
TEMPERATURE = Parameter("temperature", Annotated[float, Field(ge=0, le=2)], "randomness of the answer")
TOP_P = Parameter("top_p", Annotated[float, Field(ge=0, le=1)], "share of the likeliest tokens that are considered")
TOP_K = Parameter("top_k", Annotated[int, Field(ge=0)], "number of the likeliest tokens that are considered")

# The parameters of a provider that declares none.
COMMON = (MAX_TOKENS, STOP_SEQUENCES, TOOL_CHOICE, THINKING, OUTPUT_CONFIG)
