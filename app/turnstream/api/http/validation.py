"""Refuses bodies that do not fit their model, with a sentence for each wrong field."""

from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from turnstream.api.http.errors import Invalid
from turnstream.api.schemas.fields import OTHER_TAG, TEXT_TAG
from turnstream.api.schemas.tools import NAME
from turnstream.kit.requirements import requirement
from turnstream.kit.text import storable

_TAGS = ("type", "role")  # the members that distinguish the models of a union
_MOST_ERRORS = 1000  # errors that get their own sentence; a sentence takes microseconds of the event loop


def invalid(model: type[BaseModel], error: ValidationError) -> Invalid:
    return Invalid(refusals(model, error))


def refusals(type: Any, error: ValidationError, within: Sequence[str] = ()) -> list[dict[str, str]]:
    """Returns a sentence for each error in a value of this type. `within` is the path of the value."""
    if (count := error.error_count()) > _MOST_ERRORS:
        place = ".".join(within)
        where = f"`{place}` must have other members" if place else "The body must have other members"
        return [{"field": place or "(body)", "message": f"{where}: {count:,} of them are wrong or not known here."}]
    return [_refusal(type, problem, within) for problem in error.errors(include_url=False, include_input=False)]


def _refusal(type: Any, problem: ErrorDetails, within: Sequence[str]) -> dict[str, str]:
    location, kind = problem["loc"], problem["type"]
    path, types = _resolved(type, location[:-1] if kind == "extra_forbidden" else location)
    path = [*within, *path]
    models = [each for each in types if _is_model(each)]
    if kind == "extra_forbidden":
        path.append(str(location[-1]))
        names = [f"`{field.alias or name}`" for each in models for name, field in each.model_fields.items()]
        complaint = f"is not known here; known are {', '.join(names)}"
    elif kind in {"union_tag_invalid", "union_tag_not_found"}:
        tag = problem["ctx"]["discriminator"].strip("'")
        path.append(tag if tag in _TAGS else "type")
        complaint = f"must be one of {', '.join(repr(tag) for each in models for tag in _tags_of(each))}"
    else:
        complaint = requirement(kind, problem.get("ctx"))
        if location[-1:] == (OTHER_TAG,):
            complaint = complaint.replace("must be", "must be a string or", 1)
    field = storable(".".join(path))
    message = f"`{field}` {complaint}." if field else f"The body {complaint}."
    return {"field": field or "(body)", "message": storable(message)}


def _resolved(type: Any, location: Sequence[str | int]) -> tuple[list[str], list[Any]]:
    """Returns the path of a field, and the types that its value may have. pydantic's location also contains the tags of
    union members, which a client does not send.
    """
    path: list[str] = []
    types = list(_members(type))
    for step in location:
        if step in {TEXT_TAG, OTHER_TAG}:
            types = [each for each in types if (each is str) == (step == TEXT_TAG)]
            continue
        if len(types) > 1:
            tagged = [each for each in types if step in _tags_of(each)]
            if tagged or step == NAME:
                types = tagged
                continue
        path.append(str(step))
        types = next((found for each in types if (found := list(_types_below(each, step)))), [])
    return path, types


def _types_below(type: Any, step: str | int) -> Iterator[Any]:
    if isinstance(step, int) and get_origin(type) is list:
        yield from _members(get_args(type)[0])
    elif get_origin(type) is dict:
        yield from _members(get_args(type)[1])
    elif _is_model(type):
        for name, field in type.model_fields.items():
            if step == (field.alias or name):
                yield from _members(field.annotation)


def _members(annotation: Any) -> Iterator[Any]:
    """Yields the types of a union, without None."""
    if get_origin(annotation) is Annotated:
        yield from _members(get_args(annotation)[0])
    elif get_origin(annotation) in {Union, UnionType}:
        for member in get_args(annotation):
            yield from _members(member)
    elif annotation is not type(None):
        yield annotation


def _is_model(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseModel)


def _tags_of(model: Any) -> tuple[Any, ...]:
    """Returns the values that the tag of the model may have."""
    fields = [model.model_fields.get(tag) for tag in _TAGS] if _is_model(model) else []
    kind = next((field for field in fields if field), None)
    return get_args(kind.annotation) if kind and get_origin(kind.annotation) is Literal else ()
