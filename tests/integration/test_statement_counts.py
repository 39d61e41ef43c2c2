"""How many statements a turn costs: each is a round trip, and each that writes is a commit."""

from collections.abc import Sequence
from typing import Any

import pytest

from app.llm.scripted import ScriptedProvider, message_of, text, tool_use
from app.storage import turns
from app.storage.database import Database, Row, Statement
from app.storage.runs import record
from app.tools.tool import tool
from tests.support.harness import Harness

NAMES = {
    statement: name
    for module in (record, turns)
    for name, statement in vars(module).items()
    if isinstance(statement, Statement)
}


@tool(read_only=True)
async def look(what: str = "it") -> str:
    """Look at something."""
    return f"seen {what}"


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the statements of runs, in their order."""
    names: list[str] = []
    rows = Database.rows

    async def noted(database: Database, statement: Statement, **values: Any) -> Sequence[Row]:
        if statement in NAMES:
            names.append(NAMES[statement])
        return await rows(database, statement, **values)

    monkeypatch.setattr(Database, "rows", noted)
    return names


def writes(names: Sequence[str]) -> list[str]:
    return [name for name in names if not name.startswith("GET_")]


async def test_a_plain_turn_is_written_twice_its_beginning_and_its_end(harness: Harness, written: list[str]) -> None:
    async with harness.replica(ScriptedProvider([message_of(text("Ahoy", "!"))])) as replica:
        turn = await harness.finish(replica, await harness.ask())
    assert turn.status == "complete"
    assert writes(written) == ["BEGIN_ROUND", "SEAL_AND_END"]


async def test_a_round_of_tools_and_an_answer(harness: Harness, written: list[str]) -> None:
    provider = ScriptedProvider([message_of(text("Hm."), tool_use("look", {}, "1")), message_of(text("There."))])
    async with harness.replica(provider, [look]) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[look]))
    assert turn.status == "complete"
    first = ["BEGIN_ROUND", "CLOSE_BLOCK", "CLOSE_BLOCK", "SEAL_ROUND", "START_CALLS", "SETTLE_CALL"]
    assert writes(written) == [*first, "BEGIN_ROUND", "SEAL_AND_END"]
