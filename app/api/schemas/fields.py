"""What all models of the API are made from."""

from math import isfinite
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from app.kit.text import unstorable


def _storable(value: str) -> str:
    if problem := unstorable(value):
        raise ValueError(f"{problem}, which cannot be stored")
    return value


Absent = SkipJsonSchema[None]
Storable = Annotated[str, AfterValidator(_storable)]
Title = Annotated[Storable, Field(min_length=1, max_length=300)]


def storable_throughout(value: dict[str, Any]) -> dict[str, Any]:
    """Every text and every number in `value` can be stored."""
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


JsonObject = Annotated[dict[str, Any], AfterValidator(storable_throughout)]


class Body(BaseModel):
    """A request body: unknown fields are refused by name, and "5" is no number."""

    model_config = ConfigDict(extra="forbid", strict=True)


def without_defaults(schema: dict[str, Any]) -> None:
    """For members that are absent where they do not apply: null is not what they default to."""
    for member in schema["properties"].values():
        member.pop("default", None)
