"""Payments with approvals: each happens once, with the approved arguments, despite crashes of the server."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

from tests.support.assistants.model import Json, Model, model_api, serving
from tests.support.assistants.treasury import Bank, treasurer
from tests.support.assistants.visit import calls_of, results_of, settings_for, until_waiting, whole
from tests.support.http_client import Client, Said
from tests.support.locks import Locker
from tests.support.server_process import Server

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

IS_GONE = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE wait_event_type = 'Lock' AND datname = current_database()
"""


@dataclass(frozen=True)
class Office:
    api: Client
    bank: Bank
    model: Model
    server: Server
    database_url: str

    async def ask(self, words: str) -> tuple[Said, list[Json]]:
        """Returns the turn and its waiting calls."""
        turn = await self.api.say(await self.api.chat(), words)
        return turn, (await until_waiting(self.api, turn))["actions"]

    async def decide(self, turn: Said, *actions: Json, expect: int = 202, key: str | None = None) -> Json:
        headers = {"Idempotency-Key": key} if key else {}
        body = {"actions": list(actions)}
        found: Json = await self.api.json("POST", f"{turn.url}/actions", expect, json=body, headers=headers)
        return found


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def office(shared_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Office]:
    bank = Bank(slow=frozenset({"sloth"}))
    async with serving("/", bank.pay) as address, model_api(treasurer) as model:
        settings = settings_for(model, "treasury:toolset") | {"BANK_URL": address}
        server = Server(shared_database_url, tmp_path_factory.mktemp("treasury"), settings)
        await server.start()
        async with Client(server.url) as api:
            yield Office(api, bank, model, server, shared_database_url)
        bank.closed.set()
        await server.close()


def decision(kind: str, call: Json, **more: Any) -> Json:
    return {"type": kind, "tool_use_id": call["tool_use_id"], "input_digest": call["input_digest"], **more}


# --- a killed server ---


@dataclass(frozen=True)
class Died:
    """The turns of a killed server. `half` has two calls, of which one was decided. The call of `allowed` was approved
    and had not started. The call of `at_work` was running.
    """

    half: Said
    undecided: Json
    allowed: Said
    at_work: Said


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def died(office: Office) -> Died:
    half, (first, undecided) = await office.ask("transfer ada 10, transfer bob 20")
    await office.decide(half, decision("approve", first, input={"to": "ada", "euros": 7}))
    await until_waiting(office.api, half, without=first["tool_use_id"])
    at_work, (call,) = await office.ask("transfer sloth 1")
    await office.decide(at_work, decision("approve", call))
    await office.bank.reached.wait()
    allowed, (call,) = await office.ask("transfer eve 30")
    edited = decision("approve", call, input={"to": "eve", "euros": 3})
    await die_before_it_runs(office, allowed, edited)
    await office.server.start()
    return Died(half, undecided, allowed, at_work)


async def die_before_it_runs(office: Office, turn: Said, action: Json) -> None:
    """Kills the server between the stored decision and the call: the lock blocks the row that precedes the call."""
    holder, watcher = [await asyncpg.connect(office.database_url) for _ in range(2)]
    lock = Locker(holder, watcher)
    async with lock.holding("LOCK TABLE tool_calls IN SHARE MODE"):
        await office.decide(turn, action)
        await lock.waiting()
        await office.server.kill()
        await watcher.execute(IS_GONE)
    await holder.close()
    await watcher.close()


async def test_of_two_calls_one_is_allowed_with_other_arguments_and_after_a_crash_one_is_refused(
    office: Office, died: Died
) -> None:
    found = await office.api.json("GET", died.half.url)
    assert (found["status"], found["actions"]) == ("waiting", [died.undecided])
    await office.decide(died.half, decision("deny", died.undecided, reason="Bob has enough."))
    turn, events = await whole(office.api, died.half)
    assert (office.bank.paid["ada"], "bob" in office.bank.paid) == ([7], False)
    assert calls_of(turn) == [
        (1, "transfer", {"to": "ada", "euros": 10}),
        (1, "transfer", {"to": "bob", "euros": 20}),
    ]
    assert results_of(turn) == [
        ('The user changed the input to {"to":"ada","euros":7} before allowing the call.\n\n7 euros to ada', False),
        ("The user did not allow this call of transfer. The user says: Bob has enough.", True),
    ]
    assert [event.name for event in events].count("action_required") == 1
    assert turn["degraded"] == []
    lasts = [request["messages"][-1]["content"] for request in office.model.requests]
    (told,) = [last for last in lasts if "Bob has enough." in str(last)]
    assert [(block["type"], block.get("is_error", False)) for block in told] == [
        ("tool_result", False),
        ("tool_result", True),
    ]


async def test_a_call_allowed_before_a_crash_runs_once_after_it_with_the_allowed_arguments(
    office: Office, died: Died
) -> None:
    turn, _ = await whole(office.api, died.allowed)
    assert office.bank.paid["eve"] == [3]
    assert results_of(turn)[0][0].endswith("3 euros to eve")


async def test_a_call_that_ran_when_the_server_died_is_not_repeated(office: Office, died: Died) -> None:
    turn, _ = await whole(office.api, died.at_work)
    assert office.bank.paid["sloth"] == [1]
    ((told, is_error),) = results_of(turn)
    assert is_error
    assert told.startswith("The server stopped while this call was running.")


# --- decisions without effect ---


async def test_a_decision_counts_once(office: Office) -> None:
    turn, (call, other) = await office.ask("transfer carl 10, transfer carla 10")
    key = str(uuid4())
    for _ in range(2):  # like a client that lost the response
        await office.decide(turn, decision("approve", call), key=key)
    for again in (decision("approve", call), decision("approve", call, input={"to": "carl", "euros": 99})):
        refused = await office.decide(turn, again, expect=409)
        assert f"Call {call['tool_use_id']} already has an answer (approve, " in refused["detail"]
    await office.decide(turn, decision("deny", other))
    await whole(office.api, turn)
    late = await office.decide(turn, decision("approve", other), expect=409)
    assert "has ended (complete); none of its calls waits for an answer any more" in late["detail"]
    assert (office.bank.paid["carl"], "carla" in office.bank.paid) == ([10], False)


async def test_a_decision_that_comes_too_late_does_not_count(office: Office) -> None:
    turn, (call, other) = await office.ask("offer dora 10, transfer dan 10")
    assert (call["expires_at"] is None, other["expires_at"]) == (False, None)
    await until_waiting(office.api, turn, without=call["tool_use_id"])
    refused = await office.decide(turn, decision("approve", call), expect=409)
    assert f"Call {call['tool_use_id']} waited until " in refused["detail"]
    await office.decide(turn, decision("approve", other))
    ended, _ = await whole(office.api, turn)
    assert results_of(ended)[0] == ("This call was not run: nobody answered in time.", True)
    assert (office.bank.paid["dan"], "dora" in office.bank.paid) == ([10], False)


async def test_a_decision_about_something_else_does_not_count(office: Office) -> None:
    turn, (call, other) = await office.ask("transfer fay 10, transfer fred 1000")
    swapped = {**decision("approve", call), "tool_use_id": other["tool_use_id"]}
    refused = await office.decide(turn, swapped, expect=409)
    assert "does not match the input of call" in refused["detail"]
    assert refused["errors"][0]["field"] == "actions.0.input_digest"
    elsewhere, (foreign,) = await office.ask("transfer fox 10")
    refused = await office.decide(turn, decision("approve", foreign), expect=422)
    assert f"a waiting call of this turn, not {foreign['tool_use_id']}" in refused["detail"]
    refused = await office.decide(turn, decision("approve", call, input={"to": "fay"}), expect=422)
    assert refused["errors"][0]["field"] == "actions.0.input"
    for one, calls in ((turn, (call, other)), (elsewhere, (foreign,))):
        await office.decide(one, *(decision("deny", each) for each in calls))
        await whole(office.api, one)
    assert office.bank.paid.keys().isdisjoint({"fay", "fred", "fox"})
