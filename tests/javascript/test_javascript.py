"""The unit tests of the page's modules, run by Node, and their types beside the schemas of the server."""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import BaseModel

from app.api.events import CHAT_EVENTS, EVENTS, FEED_EVENTS
from tests.support.programs import path_of

FOLDER = Path(__file__).parent


@pytest.mark.needs("Node")
def test_the_unit_tests_of_the_modules_pass_in_node() -> None:
    files = sorted(path.name for path in FOLDER.glob("*.test.js"))
    command = [path_of("Node"), "--test", *files]
    run = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    ("name", "schemas"),
    [
        ("DataOfTurn", EVENTS),
        ("DataOfChat", {name: CHAT_EVENTS[name] for name in CHAT_EVENTS.keys() - EVENTS.keys()}),
        ("DataOfFeed", FEED_EVENTS),
    ],
)
def test_the_types_of_the_client_name_every_event_with_its_members(
    name: str, schemas: Mapping[str, type[BaseModel]]
) -> None:
    types = (FOLDER.parents[1] / "app/web/static/protocol.d.ts").read_text(encoding="utf-8")
    (body,) = re.findall(rf"type {name} = {{\n(.*?)\n}}", types, re.DOTALL)
    events = dict(line.strip().split(": ", 1) for line in body.splitlines())
    assert events.keys() == schemas.keys()
    for event, type_ in events.items():
        if type_.startswith("{ "):
            outer = re.sub(r"{[^{}]*}\[\]", "", type_)
            members = set(re.findall(r"(?:^{|;) (\w+)\??: ", outer))
            own = schemas[event].model_json_schema().get("properties", {}).keys()
            assert members <= own
            # `turn` of turn_start is that of each event in the stream of a chat.
            assert own - {"turn"} <= members or "[member: string]" in type_
