"""Base classes and field types of all models of the API."""

import json
from math import isfinite
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from turnstream.kit.text import unstorable


def _storable(value: str) -> str:
    if problem := unstorable(value):
        raise ValueError(f"{problem}, which cannot be stored")
    return value


Absent = SkipJsonSchema[None]
Storable = Annotated[str, AfterValidator(_storable)]
Title = Annotated[Storable, Field(min_length=1, max_length=300)]

# The tags of a union of a text and another type. An error then refers to only one of the two types.
TEXT_TAG, OTHER_TAG = "(text)", "(other)"


def storable_value(value: Any) -> Any:
    """Returns `value`. Raises ValueError if a text or a number in it cannot be stored."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        if "\\u0000" not in text and text.encode():
            return value
    except ValueError:
        pass
    # Some value may not be storable. A walk over all values decides, but takes fifteen times as long.
    rest: list[Any] = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, str):
            _storable(item)
        elif isinstance(item, float) and not isfinite(item):
            raise ValueError("contains a number that is not finite")
        elif isinstance(item, dict):
            rest += [*item, *item.values()]
        elif isinstance(item, list):
            rest += item
    return value


AnyJson = Annotated[Any, AfterValidator(storable_value)]
JsonObject = Annotated[dict[str, Any], AfterValidator(storable_value)]


class Body(BaseModel):
    """A request body: unknown fields are refused, and so is "5" for a number."""

    model_config = ConfigDict(extra="forbid", strict=True)


def without_defaults(schema: dict[str, Any]) -> None:
    """Removes defaults from a schema: members that do not apply are absent, not null."""
    for member in schema["properties"].values():
        member.pop("default", None)
