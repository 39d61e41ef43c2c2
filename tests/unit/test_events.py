"""The clients, the page and the conformance suite know every event and every notice of a turn."""

import ast
from pathlib import Path
from typing import get_args

import pytest

from turnstream.api.events import _EVENTS, _NAMES, EVENTS
from turnstream.domain.events import Event, TurnEnd
from turnstream.domain.turns import ENDED
from turnstream_client.events import ServerEvent, event_of
from turnstream_conformance import scenarios, server

APP = Path(__file__).parents[2] / "app"
NOTICES = EVENTS.keys() - _EVENTS.keys()
ASKED_FOR = {"caught_up"}  # only a client that asks for this event receives it
OF_CONNECTIONS = ASKED_FOR | {"access_ended"}


def test_each_event_has_a_name() -> None:
    assert {*get_args(Event)} - {TurnEnd} == _NAMES.keys()  # the event's name contains the status of the turn
    assert {*_NAMES.values()} == {name for name in _EVENTS if name.partition("_")[2] not in ENDED}


@pytest.mark.parametrize("name", _EVENTS)
def test_the_python_client_has_a_type_for_each_event(name: str) -> None:
    assert type(event_of(name, {"index": 0})) is not ServerEvent


@pytest.mark.parametrize("file", ["turnstream/web/static/turnstream.js", "turnstream_client/assembler.py"])
def test_what_puts_a_turn_together_names_each_event(file: str) -> None:
    assert [name for name in _EVENTS if not _is_named(name, file)] == []


@pytest.mark.parametrize("file", ["turnstream/web/static/turn.js", "turnstream_terminal/turn_view.py"])
def test_what_shows_a_turn_names_each_notice_about_it(file: str) -> None:
    assert [name for name in sorted(NOTICES - OF_CONNECTIONS) if not _is_named(name, file)] == []


def _is_named(name: str, file: str) -> bool:
    text = (APP / file).read_text(encoding="utf-8")
    return any(f"{quote}{name}{quote}" in text for quote in "'\"")


def test_the_conformance_suite_knows_each_notice() -> None:
    assert scenarios._NOTICES == server._NOTICES == NOTICES - ASKED_FOR


def test_each_notice_of_a_turn_is_described() -> None:
    parts = [path for folder in ("domain", "engine") for path in (APP / "turnstream" / folder).rglob("*.py")]
    sent = {
        str(node.args[0].value)
        for path in parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)
        if getattr(node.func, "attr", getattr(node.func, "id", "")) in {"notify", "Notice"}
    }
    assert sent == NOTICES - {"access_ended"}  # the connection sends this frame, and not the turn
