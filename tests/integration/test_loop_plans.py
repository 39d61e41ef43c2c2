"""Plans of owners in the loop: a reservation is made before each model call, and is settled with the round or given
back.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from structlog.testing import capture_logs

from tests.support.harness import OWNER, POLICY, Harness, results_of, with_model
from tests.support.sweeping import swept
from turnstream.domain.charges import charge_of_request
from turnstream.domain.errors import PermanentError, TransientError
from turnstream.domain.plans import PERIODS, Plan, Plans, seconds_to_next
from turnstream.domain.rounds import Prices
from turnstream.domain.turns import Limits
from turnstream.engine.worker import WorkerPolicy
from turnstream.llm.provider import Provider
from turnstream.scripted import Pause, ScriptedProvider, message_of, text, tool_use
from turnstream.storage.chats.chats import Chats
from turnstream.storage.database import Statement
from turnstream.storage.owners.accounts import Accounts, CallPlace
from turnstream.storage.owners.charges import beginning
from turnstream.tools.policy import Summarise
from turnstream.tools.tool import tool

USAGE = {"input_tokens": 100, "output_tokens": 20}
GET_ACCOUNT = Statement("SELECT tokens_per_day, cost_per_day, calls_per_day FROM accounts WHERE owner = :owner")
GET_HELD = Statement("SELECT turn_id, call, tokens FROM reservations")
GET_HELD_OF_FAMILY = Statement("SELECT turn_id, call, request_tokens FROM reservations WHERE root_turn = :root")
AGE = Statement("UPDATE reservations SET reserved_at = reserved_at - interval '3 minutes'")
PRICES: dict[str, Prices] = {"scripted": Prices(1.0, 10.0)}


def limited(**rates: float) -> WorkerPolicy:
    priced = with_model(POLICY, prices=PRICES.get, longest_reply=lambda _: 1000)
    return replace(priced, plans=Plans(Plan("small", rates)))


async def account(harness: Harness) -> tuple[float, ...]:
    """Returns the owner's tokens, cost and calls of the day."""
    row = await harness.database.row(GET_ACCOUNT, owner=OWNER)
    assert row is not None
    return tuple(float(figure) for figure in row)


@tool(read_only=True)
async def look(at: str) -> str:
    """Look."""
    return f"seen {at}"


@tool(read_only=True, summarise=Summarise(above=50, model="small"))
async def read_page() -> str:
    """Read a page."""
    return "The tide is high at noon. " * 40


def looks(*places: str) -> Any:
    return message_of(*(tool_use("look", {"at": place}, place) for place in places), usage=USAGE)


async def test_a_turn_ends_with_figures_at_the_next_boundary_and_returns_its_reservation(
    harness: Harness,
) -> None:
    provider = ScriptedProvider([looks("a"), looks("b"), message_of(text("Never."))])
    async with harness.replica(provider, [look], policy=limited(tokens_per_day=200)) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[look]))
        other = await harness.finish(replica, await harness.ask("More"))
    assert (turn.status, turn.stop_reason, len(provider.requests)) == ("error", "budget", 2)
    assert turn.error is not None
    assert turn.error.details == {"name": "tokens_per_day", "limit": 200, "used": 240}
    assert "limit `tokens_per_day` of the plan is 200" in turn.error.message
    assert all(result.text for result in results_of(turn).values()), "every call has a result"
    assert (other.stop_reason, other.rounds) == ("budget", ())
    assert await harness.database.rows(GET_HELD) == []
    assert await account(harness) == (240, 0.0006, 0)


async def test_the_cost_of_a_day_is_limited_too(harness: Harness) -> None:
    provider = ScriptedProvider([looks("a"), message_of(text("Never."))])
    async with harness.replica(provider, [look], policy=limited(cost_per_day=0.0002)) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[look]))
    assert turn.error is not None
    assert turn.error.details == {"name": "cost_per_day", "limit": 0.0002, "used": 0.0003}


async def test_calls_of_tools_beyond_the_plan_are_not_run_and_the_turn_ends(harness: Harness) -> None:
    provider = ScriptedProvider([looks("a", "b"), looks("c", "d"), message_of(text("Never."))])
    async with harness.replica(provider, [look], policy=limited(calls_per_day=3)) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[look]))
    results = results_of(turn)
    assert [results[id].text for id in "abc"] == ["seen a", "seen b", "seen c"]
    assert "This call was not run." in results["d"].text
    assert (turn.stop_reason, len(provider.requests)) == ("budget", 2)
    assert (await account(harness))[2] == 3


async def test_a_call_under_way_holds_its_reservation_so_that_another_turn_is_refused(harness: Harness) -> None:
    pause = Pause()
    start, *rest = message_of(text("Here."), usage=USAGE)
    provider = ScriptedProvider([[start, pause, *rest], message_of(text("Then."))])
    async with harness.replica(provider, policy=limited(tokens_per_day=500)) as replica:
        first = await harness.ask()
        replica.worker.wake()
        await pause.reached.wait()
        (held,) = await harness.database.rows(GET_HELD)
        assert (held["turn_id"], held["call"]) == (first.turn, "1.1")
        assert held["tokens"] > 1000
        refused = await harness.finish(replica, await harness.ask("And?"))
        pause.go.set()
        await harness.finish(replica, first)
        later = await harness.finish(replica, await harness.ask("And now?"))
    assert (refused.stop_reason, later.stop_reason) == ("budget", "end_turn")


async def test_within_a_plan_each_request_counts_against_the_budgets_of_the_family_too(harness: Harness) -> None:
    pause, root = Pause(), uuid4()
    start, *rest = message_of(text("Here."), usage=USAGE)
    provider = ScriptedProvider([looks("a"), [start, pause, *rest]])
    async with harness.replica(provider, [look], policy=limited(tokens_per_day=50_000)) as replica:
        asked = await harness.ask(tools=[look], limits=Limits(budget_tokens=5_000), root_turn=root)
        replica.worker.wake()
        await pause.reached.wait()
        held = await harness.database.rows(GET_HELD_OF_FAMILY, root=root)
        assert [(row["turn_id"], row["call"]) for row in held] == [(asked.turn, "2.1")]
        assert held[0]["request_tokens"] > 0
        pause.go.set()
        await harness.finish(replica, asked)
    assert await harness.database.rows(GET_HELD) == []


@pytest.mark.parametrize("failure", [PermanentError("invalid_request_error", "No."), None], ids=["failed", "cancelled"])
async def test_the_reservation_of_a_call_that_never_began_is_returned(
    harness: Harness, failure: PermanentError | None
) -> None:
    pause = Pause()
    provider = ScriptedProvider(
        [[TransientError("overloaded_error", "Later.")], [pause, *([failure] if failure else [])]]
    )
    async with harness.replica(provider, policy=limited(tokens_per_day=500)) as replica:
        asked = await harness.ask()
        replica.worker.wake()
        await pause.reached.wait()
        assert len(await harness.database.rows(GET_HELD)) == 1, "a try of the same call again reserves nothing more"
        if failure is None:
            await replica.cancel(asked)
        else:
            pause.go.set()
        await harness.finish(replica, asked)
    assert await harness.database.rows(GET_HELD) == []
    assert (await account(harness))[0] == 0


async def test_a_takeover_settles_the_reservations_of_the_crashed_replica(harness: Harness) -> None:
    pause = Pause()
    start, *rest = message_of(text("Half. ", "Whole."), usage=USAGE)
    policy = limited(tokens_per_day=5000)
    async with harness.replica(ScriptedProvider([[start, *rest[:2], pause]]), policy=policy, address="a") as first:
        asked = await harness.ask()
        first.worker.wake()
        await pause.reached.wait()
        await first.store_open()
        await first.kill()
    async with harness.replica(
        ScriptedProvider([message_of(text("On."), usage=USAGE)]), policy=policy, address="a"
    ) as next:
        turn = await harness.finish(next, asked)
    assert turn.attempt > 1
    assert await harness.database.rows(GET_HELD) == []
    spent = sum(charge.tokens.total for charge in (await harness.charged(turn.id)).values())
    assert (await account(harness))[0] == spent > 120


async def test_a_deleted_chat_returns_its_reservation_and_its_usage_counts(harness: Harness) -> None:
    pause = Pause()
    start, *rest = message_of(text("Half. ", "Whole."), usage=USAGE)
    async with harness.replica(
        ScriptedProvider([[start, *rest[:2], pause, *rest[2:]]]), policy=limited(tokens_per_day=5000)
    ) as replica:
        asked = await harness.ask()
        replica.worker.wake()
        await pause.reached.wait()
        await Chats(harness.database).delete(OWNER, asked.chat)
        pause.go.set()
        await replica.idle(asked)
    assert await harness.database.rows(GET_HELD) == []
    assert (await account(harness))[0] > 0


async def test_reservations_that_nobody_settles_are_swept(harness: Harness) -> None:
    accounts, plan = Accounts(harness.database), Plan("small", {"tokens_per_day": 100})
    asked = await harness.turn(await harness.ask())
    request = charge_of_request("round", "1.1", "scripted", 30, PRICES["scripted"])
    assert await accounts.reserve(OWNER, plan, CallPlace.of(asked), request, 70, 0.0) is None
    assert await swept(accounts.sweep()) == 0
    await harness.database.rows(AGE)
    assert await swept(accounts.sweep()) == 1
    assert (await account(harness))[:2] == (30, 0.00003), "the request is charged, the rest is given back"
    assert await harness.charged(asked.id) == {"1.1": request}


async def test_a_summary_that_the_plan_has_no_room_for_is_left_out(harness: Harness) -> None:
    main = ScriptedProvider([message_of(tool_use("read_page", {}, "a"), usage=USAGE), message_of(text("At noon."))])
    small = ScriptedProvider([message_of(text("Never."))])
    route: Callable[[str], Provider] = lambda model: small if model == "small" else main  # noqa: E731
    async with harness.replica(route, [read_page], policy=limited(tokens_per_day=120)) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[read_page]))
    assert (turn.stop_reason, small.requests) == ("budget", [])
    assert results_of(turn)["a"].notes is not None
    assert '"summary_failed":"budget"' in (results_of(turn)["a"].notes or "")


async def test_an_account_begins_with_the_sums_of_the_ledger(harness: Harness) -> None:
    provider = ScriptedProvider([message_of(text("One."), usage=USAGE), message_of(text("Never."))])
    async with harness.replica(provider) as replica:
        await harness.finish(replica, await harness.ask())
    async with harness.replica(provider, policy=limited(tokens_per_month=120)) as replica:
        turn = await harness.finish(replica, await harness.ask("Two"))
    assert turn.error is not None
    assert turn.error.details == {"name": "tokens_per_month", "limit": 120, "used": 120}


async def test_a_turn_that_has_ended_is_reported_though_its_run_is_stopped_then(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner's runs are stopped while the reservation of the ended turn is still being released."""
    closing, may_close, release = asyncio.Event(), asyncio.Event(), Accounts.release

    async def release_late(accounts: Accounts, turn: UUID, attempt: int, since: int) -> None:
        closing.set()
        await may_close.wait()
        await release(accounts, turn, attempt, since)

    monkeypatch.setattr(Accounts, "release", release_late)
    provider = ScriptedProvider([message_of(text("Done."), usage=USAGE)])
    with capture_logs() as lines:
        async with harness.replica(provider, policy=limited(tokens_per_day=5000)) as replica:
            asked = await harness.ask()
            replica.worker.wake()
            await closing.wait()
            replica.worker.release([OWNER])
            may_close.set()
            await replica.idle(asked)
    assert [line["status"] for line in lines if line["event"] == "turn.ended"] == ["complete"]
    assert await harness.database.rows(GET_HELD) == []


@pytest.mark.parametrize("period", PERIODS)
@pytest.mark.parametrize("at", ["2026-02-28T23:59:30Z", "2026-12-31T00:00:00Z", "2028-02-29T12:34:56Z"])
async def test_a_period_ends_in_postgres_when_a_refusal_says_so(harness: Harness, period: str, at: str) -> None:
    start = datetime.fromisoformat(at)
    last = start + timedelta(seconds=seconds_to_next(period, start) - 1)
    moments = {"at": start, "before": last - timedelta(microseconds=1), "last": last}
    begins = ", ".join(f"{beginning(period, f'CAST(:{name} AS timestamptz)')} AS begin_{name}" for name in moments)
    row = await harness.database.row(Statement(f"SELECT {begins}"), **moments)
    assert row is not None
    assert row["begin_at"] == row["begin_before"] < row["begin_last"] == last
