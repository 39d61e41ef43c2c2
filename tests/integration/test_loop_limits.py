"""Limits inside a turn that the loop enforces: budgets, calls, and the limits that the model is informed of."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.harness import Harness, results_of, texts_of
from turnstream.domain.degraded import Degraded, degraded
from turnstream.domain.rounds import Prices
from turnstream.domain.turns import Limits
from turnstream.engine.tool_gate import TOO_MANY_CALLS
from turnstream.llm.conversation.messages import NO_ROUND_LEFT, ONE_ROUND_LEFT, ROUNDS_LEFT
from turnstream.scripted import Reply, ScriptedProvider, message_of, text, tool_use
from turnstream.telemetry import LIMITS_REACHED
from turnstream.tools.tool import tool

ran: list[str] = []


@tool(read_only=True)
async def look(at: str) -> str:
    """Look."""
    ran.append(at)
    return f"seen {at}"


@tool()
async def draw(what: str) -> str:
    """Draw."""
    ran.append(what)
    return f"drawn {what}"


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


def looks(*places: str) -> Reply:
    return message_of(*(tool_use("look", {"at": place}, place) for place in places))


def reached(limit: str) -> float:
    return float(LIMITS_REACHED.labels(limit)._value.get())


@pytest.mark.parametrize(
    ("limits", "what", "amount", "used"),
    [
        (Limits(budget_tokens=20), "budget_tokens", 20, 30),
        (Limits(budget_cost=1e-5, prices={"scripted": Prices(1.0, 1.0)}), "budget_cost", 1e-5, 1.5e-5),
    ],
)
async def test_a_budget_that_is_spent_ends_the_turn_with_figures(
    harness: Harness, limits: Limits, what: str, amount: float, used: float, capsys: Any
) -> None:
    before = reached(what)
    provider = ScriptedProvider([looks("a"), looks("b"), message_of(text("Never."))])
    async with harness.replica(provider, [look]) as replica:
        asked = await harness.ask(tools=[look], limits=limits)
        turn = await harness.finish(replica, asked)
        (await harness.follow(replica, asked)).assert_holds(turn)
    calls = 2 if what == "budget_tokens" else 1
    assert (turn.status, turn.stop_reason, len(provider.requests)) == ("error", "budget", calls)
    assert turn.error is not None
    assert turn.error.type == "budget"
    assert turn.error.details == {"name": what, "limit": amount, "used": used}
    assert f"its `limits.{what}` is" in turn.error.message
    assert Degraded(what, limit=amount, used=used) in degraded(turn)
    assert all(result.text for result in results_of(turn).values()), "every call has a result"
    assert reached(what) == before + 1
    assert "limit.reached" in capsys.readouterr().out


async def test_time_that_is_used_up_ends_the_turn_before_the_next_call(harness: Harness) -> None:
    provider = ScriptedProvider([looks("a"), message_of(text("Never."))])
    async with harness.replica(provider, [look]) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[look], limits=Limits(budget_seconds=1e-6)))
    assert (turn.status, turn.stop_reason, provider.requests) == ("error", "budget", [])


async def test_calls_beyond_the_limit_are_refused_and_the_model_answers_without_tools(harness: Harness) -> None:
    calls = [("draw", "a"), ("look", "b"), ("look", "c")]
    three = message_of(*(tool_use(name, {"at" if name == "look" else "what": id}, id) for name, id in calls))
    provider = ScriptedProvider([three, message_of(text("Done."))])
    async with harness.replica(provider, [look, draw]) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[look, draw], limits=Limits(max_calls=2)))
    assert (turn.status, texts_of(turn), sorted(ran)) == ("complete", ["Done."], ["a", "b"])
    assert results_of(turn)["c"].text == TOO_MANY_CALLS.format(2)
    assert [request.may_use_tools for request in provider.requests] == [True, False]
    assert [item.what for item in degraded(turn)] == ["max_calls"]


async def test_recoveries_continue_beyond_their_limit_while_they_make_progress(harness: Harness) -> None:
    replies = [looks("a"), looks("b"), looks("b"), message_of(text("That is all."))]
    provider = ScriptedProvider(replies)
    limits = Limits(max_rounds=1, hard_max_rounds=9)
    async with harness.replica(provider, [look]) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[look], limits=limits))
    assert [request.may_use_tools for request in provider.requests] == [True, True, True, False]
    assert degraded(turn) == (Degraded("hard_max_rounds", limit=3, used=3),)


async def test_the_model_is_sent_how_many_rounds_are_left_and_each_request_begins_as_the_one_before(
    harness: Harness,
) -> None:
    provider = ScriptedProvider([looks("a"), looks("b"), message_of(text("Done."))])
    limits = Limits(max_rounds=2, tell_rounds=True)
    async with harness.replica(provider, [look]) as replica:
        await harness.finish(replica, await harness.ask(tools=[look], limits=limits))
    requests = [
        [(message.role, block.text) for message in request.messages for block in message.blocks]
        for request in provider.requests
    ]
    assert [request[-1] for request in requests] == [
        ("user", ROUNDS_LEFT.format(2)),
        ("user", ONE_ROUND_LEFT),
        ("user", NO_ROUND_LEFT),
    ]
    assert requests[2][: len(requests[1])] == requests[1]
    assert requests[1][: len(requests[0])] == requests[0]


async def test_nothing_is_sent_of_rounds_unless_it_is_asked_for(harness: Harness) -> None:
    provider = ScriptedProvider([message_of(text("Hi.")), message_of(text("Hi."))])
    async with harness.replica(provider, [look]) as replica:
        await harness.finish(replica, await harness.ask(tools=[look]))
        await harness.finish(replica, await harness.ask(limits=replace(Limits(), tell_rounds=True)))
    assert [len(request.messages[-1].blocks) for request in provider.requests] == [1, 1]
