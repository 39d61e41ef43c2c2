"""The ledger of model calls: each call is charged once, at the prices of its time, whatever happens to its turn."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.integration.records import begun, records_of, sealed
from tests.support.harness import OWNER, POLICY, TICK, Harness, Replica, with_model
from tests.support.sweeping import swept
from turnstream.domain.charges import Charge, charge_of_request
from turnstream.domain.errors import TransientError
from turnstream.domain.plans import Plan, Plans
from turnstream.domain.rounds import BilledTokens, Prices
from turnstream.domain.turns import Turn
from turnstream.engine.upkeep.round_writer import RoundWriter
from turnstream.libraries.usage_sums import usage_sums
from turnstream.llm.provider import Provider
from turnstream.scripted import Pause, Reply, ScriptedProvider, message_of, text, tool_use
from turnstream.storage.chats.chats import Chats
from turnstream.storage.database import Statement
from turnstream.storage.owners.accounts import Accounts
from turnstream.stream.directory import Directory
from turnstream.stream.live import LiveView
from turnstream.tools.policy import Summarise
from turnstream.tools.tool import tool

PRICES: dict[str, Prices] = {"scripted": Prices(1.0, 10.0), "small": Prices(0.5, 1.0)}
USAGE = {"input_tokens": 100, "cache_read_input_tokens": 10, "cache_creation_input_tokens": 1, "output_tokens": 20}
GET_ALL = Statement("SELECT kind, model, owner, output_tokens, cost FROM charges ORDER BY kind, call")
EMPTY = Statement("DELETE FROM rounds")
HELD = Statement("SELECT call FROM reservations")
AGE = Statement("UPDATE reservations SET reserved_at = reserved_at - interval '3 minutes'")


PRICED = with_model(POLICY, prices=PRICES.get)


def cut_off(words: str) -> Reply:
    """Returns a reply that fails in the middle."""
    return [*list(message_of(text(words), usage=USAGE))[:3], TransientError("overloaded_error", "Later.")]


async def test_a_round_keeps_its_cost_at_the_seal(harness: Harness) -> None:
    provider = ScriptedProvider([message_of(text("Hello."), usage=USAGE)])
    async with harness.replica(provider, policy=PRICED) as replica:
        turn = await harness.finish(replica, await harness.ask())
    assert turn.rounds[0].cost == 0.000311
    assert await harness.charged(turn.id) == {
        "1.1": Charge("round", "1.1", "scripted", BilledTokens(100, 10, 1, 20), 0.000311)
    }


async def test_a_stopped_answer_is_charged_for_its_written_part(harness: Harness) -> None:
    pause = Pause()
    start, *rest = message_of(text("Ahoy! " * 40), usage=USAGE)
    provider = ScriptedProvider([[start, *rest[:2], pause, *rest[2:]]])
    async with harness.replica(provider, policy=PRICED) as replica:
        asked = await harness.ask()
        replica.worker.wake()
        await pause.reached.wait()
        await replica.cancel(asked)
        turn = await harness.finish(replica, asked)
    assert turn.stop_reason == "cancelled"
    (charge,) = (await harness.charged(turn.id)).values()
    assert charge.tokens.output == turn.rounds[0].estimated_tokens == 61
    assert charge.cost == turn.rounds[0].cost


async def test_a_call_that_failed_after_its_beginning_is_charged_beside_its_repetition(harness: Harness) -> None:
    provider = ScriptedProvider([cut_off("Half"), message_of(text("Whole."), usage=USAGE)])
    async with harness.replica(provider, policy=PRICED) as replica:
        turn = await harness.finish(replica, await harness.ask())
    assert sorted(await harness.charged(turn.id)) == ["1.1", "2.1"]


async def _delete_while_it_runs(harness: Harness, replica: Replica, pause: Pause) -> None:
    asked = await harness.ask()
    replica.worker.wake()
    await pause.reached.wait()
    await Chats(harness.database).delete(OWNER, asked.chat)
    pause.go.set()
    await replica.idle(asked)
    while asked.turn in replica.worker._runs:  # noqa: ASYNC110, a worker has no event for it
        await asyncio.sleep(0)


async def test_the_cost_of_a_deleted_chat_stays(harness: Harness) -> None:
    pause, early = Pause(), Pause()
    start, *rest = message_of(text("Half. ", "And more."), usage=USAGE)
    provider = ScriptedProvider([[start, *rest[:2], pause, *rest[2:]], [early, start, *rest]])
    async with harness.replica(provider, policy=PRICED) as replica:
        await _delete_while_it_runs(harness, replica, pause)
        await _delete_while_it_runs(harness, replica, early)
    charged = await harness.database.rows(GET_ALL)
    assert [(row["kind"], row["model"], row["owner"]) for row in charged] == [("round", "scripted", OWNER)] * 2
    assert all(row["cost"] > 0 for row in charged)


@tool(read_only=True, summarise=Summarise(above=50, model="small"))
async def read_page(page: int = 1) -> str:
    """Read a page."""
    return "The tide is high at noon. " * 40


async def test_summaries_of_results_are_charged_also_those_that_failed(harness: Harness) -> None:
    main = ScriptedProvider(
        [
            message_of(tool_use("read_page", {}, "a"), tool_use("read_page", {"page": 2}, "b")),
            message_of(text("At noon.")),
        ]
    )
    small = ScriptedProvider(
        [
            message_of(text("At noon."), usage={"input_tokens": 300, "output_tokens": 7}),
            cut_off("As the tables have it"),
        ]
    )
    route: Callable[[str], Provider] = lambda model: small if model == "small" else main  # noqa: E731
    async with harness.replica(route, [read_page], policy=PRICED) as replica:
        asked = await harness.ask(tools=[read_page])
        replica.worker.wake()
        await harness.follow(replica, asked)
        await replica.idle(asked)
    rows = [row for row in await harness.database.rows(GET_ALL) if row["kind"] == "summary"]
    assert {row["model"] for row in rows} == {"small"}
    assert sorted(row["output_tokens"] for row in rows) == [5, 7]


async def test_a_repeated_write_charges_once_and_a_charge_lost_in_a_failover_is_repeated(
    harness: Harness,
) -> None:
    turn = await begun(harness, await harness.ask())
    records = await records_of(harness, turn)
    round = replace(sealed(turn.rounds[0]), usage=USAGE, cost=0.5)
    done = replace(turn, rounds=(round,))
    for _ in range(2):
        await records.seal_round(round, [], done)
    expected = {"1.1": Charge("round", "1.1", "scripted", BilledTokens(100, 10, 1, 20), 0.5)}
    assert await harness.charged(turn.id) == expected
    await harness.database.rows(EMPTY)
    await harness.database.rows(Statement("DELETE FROM charges"))
    await records.seal_round(round, [], done)
    assert await harness.charged(turn.id) == expected


async def test_usage_is_summed_by_the_requested_groups(harness: Harness) -> None:
    provider = ScriptedProvider([message_of(text(str(n)), usage=USAGE) for n in range(3)])
    async with harness.replica(provider, policy=PRICED) as replica:
        first = await harness.ask()
        await harness.finish(replica, first)
        await harness.finish(replica, await harness.ask("More", after=first))
        await harness.finish(replica, await harness.ask(model="unpriced"))
    row = await harness.database.row(Statement("SELECT CAST(now() AT TIME ZONE 'UTC' AS date) AS today"))
    assert row is not None
    today = row["today"]
    total, *chats = await usage_sums(harness.database, OWNER, ["chat", "model"], today, today, 10)
    assert (total.calls, total.unpriced, total.cost) == (3, 1, 0.000622)
    assert total.tokens == BilledTokens(300, 30, 3, 60)
    assert [(each.model, each.calls, each.cost) for each in chats] == [("scripted", 2, 0.000622), ("unpriced", 1, None)]
    assert chats[0].chat == first.chat
    everybody, owner = await usage_sums(harness.database, None, ["owner"], today, today, 10)
    assert (everybody.calls, owner.owner, owner.calls) == (3, OWNER, 3)
    (nothing,) = await usage_sums(harness.database, "nobody", ["day"], today, today, 10)
    assert (nothing.calls, nothing.cost, nothing.tokens) == (0, None, BilledTokens())


@pytest.mark.parametrize("limits", [{}, {"tokens_per_day": 1_000_000.0}])
async def test_a_request_is_charged_whose_process_dies_before_the_reply_begins(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, limits: dict[str, float]
) -> None:
    pause = Pause()
    provider = ScriptedProvider([[pause], message_of(text("Hello."), usage=USAGE)])
    policy = replace(PRICED, plans=Plans(Plan("one", limits)))
    asked = await harness.ask("Ahoy! " * 100)
    with monkeypatch.context() as dying:
        async with harness.replica(provider, policy=policy, address="a") as replica:
            replica.worker.wake()
            await pause.reached.wait()
            await _until_reserved(harness)
            for last_write in ("release", "release_call"):
                dying.setattr(Accounts, last_write, _not_written)
            await replica.kill()
    async with harness.replica(provider, policy=policy, address="a") as replica:
        replica.worker.wake()
        await harness.follow(replica, asked)
        await replica.idle(asked)
    await harness.database.rows(AGE)
    await swept(Accounts(harness.database).sweep())
    charged = await harness.charged(asked.turn)
    assert charged["1.2"].tokens == BilledTokens(100, 10, 1, 20)
    tokens = charged["1.1"].tokens
    assert tokens == BilledTokens(tokens.input, 0, 0, 0)
    assert 100 < tokens.input < 300
    assert charged["1.1"].cost == pytest.approx(tokens.input / 1e6)
    assert sorted(charged) == ["1.1", "1.2"]
    assert await harness.database.rows(HELD) == []


async def _until_reserved(harness: Harness) -> None:
    """Waits until the replica's round writer has stored the reservation."""
    while not await harness.database.rows(HELD):  # noqa: ASYNC110, it writes in its own time
        await asyncio.sleep(TICK)


async def _not_written(_self: Accounts, *_which: object) -> None:
    """Replaces the write of a process that has died."""


async def test_a_call_that_fails_before_its_reply_begins_is_not_charged(harness: Harness) -> None:
    pause = Pause()
    provider = ScriptedProvider([[pause, TransientError("overloaded_error", "Later.")], message_of(text("Hello."))])
    async with harness.replica(provider, policy=PRICED) as replica:
        asked = await harness.ask()
        replica.worker.wake()
        await pause.reached.wait()
        await _until_reserved(harness)
        pause.go.set()
        turn = await harness.finish(replica, asked)
    assert turn.attempt == 1
    assert await harness.database.rows(HELD) == []


async def test_a_call_that_fails_while_its_request_is_reserved_is_not_charged(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = await begun(harness, await harness.ask())
    request = charge_of_request("round", "2.1", "scripted", 10, None)
    view, directory = LiveView(turn), Directory()
    view.unreserved = lambda: request
    reserve_requests, written = Accounts.reserve_requests, list[int]()

    async def fails_meanwhile(self: Accounts, requests: Sequence[tuple[Turn, Charge]]) -> None:
        await reserve_requests(self, requests)
        written.append(len(await harness.database.rows(HELD)))
        view.unreserved = None

    monkeypatch.setattr(Accounts, "reserve_requests", fails_meanwhile)
    with directory.host(view, OWNER):
        await RoundWriter(harness.database, directory, 1).flush()
    assert written == [1]
    assert await harness.database.rows(HELD) == []
