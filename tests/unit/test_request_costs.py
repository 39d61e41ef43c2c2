"""The costs of a request before its handler runs, as counts that are equal on every machine."""

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from starlette.routing import Match

from turnstream.api.http.call_group import CallGroup
from turnstream.config import Settings
from turnstream.main import application

_APP = application(Settings())
_GROUPS: list[CallGroup] = _APP.state.call_groups
# The API calls of a turn, and the maximum of routes that the server may compare with such a call.
_CALLS = (
    ("POST", "/api/chats"),
    ("POST", "/api/turns"),
    ("POST", "/api/chats/1/turns"),
    ("GET", "/api/chats/1/turns/1/stream"),
)
_MOST_ROUTES = 12


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def _bodies() -> set[type[BaseModel]]:
    """Returns all pydantic models that occur in bodies of requests."""
    found: set[type[BaseModel]] = set()
    rest = [model for group in _GROUPS for each in group.endpoints for model in _models_in(each.takes)]
    while rest:
        model = rest.pop()
        if model not in found:
            found.add(model)
            rest += [inner for field in model.model_fields.values() for inner in _models_in(field.annotation)]
    return found


def test_no_default_of_a_body_is_copied_for_each_request() -> None:
    assert len(_bodies()) > 20
    copied = []
    for model in _bodies():
        for name, field in model.model_fields.items():
            try:
                hash(field.default)
            except TypeError:
                copied.append(f"{model.__name__}.{name}")
    assert not copied, f"pydantic copies defaults that can change in depth: {copied} need `frozen=True` in their class"


@pytest.mark.parametrize(("method", "path"), _CALLS)
def test_a_request_of_a_turn_is_compared_with_few_routes(method: str, path: str) -> None:
    scope = {"type": "http", "method": method, "path": path, "headers": [], "root_path": ""}
    place = next(place for place, route in enumerate(_APP.routes, 1) if route.matches(scope)[0] == Match.FULL)
    assert place <= _MOST_ROUTES, f"{method} {path} is compared with {place} routes (`routes_of` orders them)"
