import asyncio
from contextlib import AbstractContextManager
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.unit.tools.doubles import SCHEMA, Clock, Gate, Logged, Script, counted
from turnstream.domain.turns import HttpCall, ToolSpec
from turnstream.kit import circuit as circuits
from turnstream.kit.circuit import Circuit, OwnersCircuit
from turnstream.tools.policy import Breaker, Policy
from turnstream.tools.tool import Outcome, Tool, ToolContext, ToolError, ToolUnavailable
from turnstream.tools.toolset import Toolset

SPEC = ToolSpec("tide", "Tell the tide.", SCHEMA)
POLICY = Policy(breaker=Breaker(failures=2, pause=30.0))
AWAY = ConnectionError


async def kinds(tools: Toolset, context: ToolContext, times: int) -> list[str]:
    return [(await tools.run("tide", "{}", context)).kind for _ in range(times)]


async def test_a_tool_that_fails_in_a_row_is_left_alone(context: ToolContext) -> None:
    clock, tide = Clock(), Script(SPEC, POLICY, [AWAY, AWAY])
    tools = Toolset([tide], clock=clock)
    before = counted("tide", "breaker")
    assert await kinds(tools, context, 2) == ["error", "error"]
    clock.now += 1.5
    outcome = await tools.run("tide", "{}", context)
    assert outcome == Outcome(
        "The tool tide is not available: its last calls failed. It may be tried again in 29 s.",
        kind="unavailable",
        notes={"breaker": "open"},
    )
    assert len(tide.calls) == 2
    assert counted("tide", "breaker") == before + 1


async def test_after_the_pause_a_success_closes_the_breaker(context: ToolContext, logged: Logged) -> None:
    clock, tide = Clock(), Script(SPEC, POLICY, [AWAY, AWAY])
    tools = Toolset([tide], clock=clock)
    await kinds(tools, context, 3)
    clock.now += 30
    assert await kinds(tools, context, 3) == ["ok", "ok", "ok"]
    events = [(line["event"], line.get("pause")) for line in logged if "breaker" in line["event"]]
    assert events == [("tool.breaker_open", 30.0), ("tool.breaker_closed", None)]


async def test_after_the_pause_a_failure_opens_the_breaker_again(context: ToolContext) -> None:
    clock, tide = Clock(), Script(SPEC, POLICY, [AWAY, AWAY, AWAY])
    tools = Toolset([tide], clock=clock)
    await kinds(tools, context, 2)
    clock.now += 30
    assert await kinds(tools, context, 2) == ["error", "unavailable"]
    clock.now += 30
    assert await kinds(tools, context, 1) == ["ok"]


async def test_only_one_call_at_a_time_tries_a_tool_that_failed(context: ToolContext) -> None:
    clock, gate = Clock(), Gate("tide", Policy(timeout=0.001, breaker=Breaker(failures=1)))
    tools = Toolset([gate], clock=clock)
    assert await kinds(tools, context, 1) == ["timeout"]
    gate.policy = POLICY
    clock.now += 30
    first = asyncio.create_task(tools.run("tide", "{}", context))
    await gate.reached(1)
    second = await tools.run("tide", "{}", context)
    assert (second.kind, second.text[-34:]) == ("unavailable", "It may be tried again in a moment.")
    gate.open.set()
    assert (await first).kind == "ok"
    assert await kinds(tools, context, 1) == ["ok"]


async def test_a_trial_that_is_cancelled_lets_the_next_call_try(context: ToolContext) -> None:
    clock, gate = Clock(), Gate("tide", Policy(timeout=0.001, breaker=Breaker(failures=1)))
    tools = Toolset([gate], clock=clock)
    await kinds(tools, context, 1)
    gate.policy = POLICY
    clock.now += 30
    first = asyncio.create_task(tools.run("tide", "{}", context))
    await gate.reached(1)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    gate.open.set()
    assert await kinds(tools, context, 1) == ["ok"]


async def test_a_call_that_waited_for_a_slot_is_not_made_once_the_breaker_is_open(context: ToolContext) -> None:
    gate = Gate("tide", Policy(timeout=0.01, concurrency=1, breaker=Breaker(failures=1)))
    tools = Toolset([gate], clock=Clock())
    outcomes = await asyncio.gather(*(tools.run("tide", "{}", context) for _ in range(3)))
    assert [outcome.kind for outcome in outcomes] == ["timeout", "unavailable", "unavailable"]


async def test_a_call_of_a_tool_that_is_left_alone_does_not_wait_for_a_slot(context: ToolContext) -> None:
    gate, tide = Gate(), Script(SPEC, POLICY, [AWAY, AWAY])
    tools = Toolset([gate, tide], max_parallel=1, clock=Clock())
    await kinds(tools, context, 2)
    running = asyncio.create_task(tools.run("gate", "{}", context))
    await gate.reached(1)
    assert await kinds(tools, context, 1) == ["unavailable"]
    gate.open.set()
    await running


def test_a_call_that_fails_late_does_not_make_the_pause_longer() -> None:
    clock = Clock()
    circuit = Circuit(2, 10.0, clock)
    circuit.failed()
    circuit.failed()
    clock.now += 9
    circuit.failed()
    assert circuit.wait == 1
    clock.now += 1
    assert circuit.wait is None


@pytest.mark.parametrize(
    "good",
    [Outcome("ahoy"), ToolError("There is no such harbour."), Outcome("no such harbour", is_error=True)],
)
async def test_an_intended_error_does_not_count_for_the_breaker(
    context: ToolContext, good: Outcome | BaseException
) -> None:
    tide = Script(SPEC, POLICY, [AWAY, good, AWAY, good, good, good, AWAY, good])
    assert "unavailable" not in await kinds(Toolset([tide], clock=Clock()), context, 8)


@pytest.mark.parametrize(
    "bad",
    [ValueError(), ToolUnavailable("Away."), Outcome("away", kind="unavailable"), Outcome("late", kind="timeout")],
)
async def test_an_unintended_error_counts_for_the_breaker(context: ToolContext, bad: Outcome | BaseException) -> None:
    tools = Toolset([Script(SPEC, POLICY, [bad, bad])], clock=Clock())
    outcomes = [await tools.run("tide", "{}", context) for _ in range(3)]
    assert "breaker" in outcomes[2].notes


async def test_a_bad_input_does_not_count_for_the_breaker(context: ToolContext) -> None:
    tools = Toolset([Script(SPEC, POLICY, [AWAY, Outcome("which?", kind="bad_input"), AWAY])], clock=Clock())
    assert await kinds(tools, context, 4) == ["error", "bad_input", "error", "unavailable"]


async def test_a_tool_without_a_breaker_is_always_called(context: ToolContext) -> None:
    tide = Script(SPEC, Policy(breaker=None), [AWAY] * 20)
    assert await kinds(Toolset([tide], clock=Clock()), context, 20) == ["error"] * 20


async def test_two_addresses_or_two_owners_do_not_share_a_breaker(context: ToolContext) -> None:
    def declared(spec: ToolSpec) -> Tool:
        return Script(spec, POLICY, [AWAY] if spec.http is not None and "down" in spec.http.url else [])

    def offered(url: str) -> list[ToolSpec]:
        return [ToolSpec("tide", "Tell the tide.", SCHEMA, http=HttpCall(url))]

    tools = Toolset([Script(SPEC)], declared=declared, clock=Clock())
    down = [await tools.run("tide", "{}", context, offered=offered("https://down.example")) for _ in range(3)]
    assert [outcome.kind for outcome in down] == ["error", "error", "unavailable"]
    up = await tools.run("tide", "{}", context, offered=offered("https://up.example"))
    own = await tools.run("tide", "{}", context)
    other = ToolContext("eve", context.chat_id, context.turn_id, "toolu_2", "key-2", context.progress)
    theirs = await tools.run("tide", "{}", other, offered=offered("https://down.example"))
    assert [up.kind, own.kind, theirs.kind] == ["ok", "ok", "error"]


def for_owner(context: ToolContext, owner: str) -> ToolContext:
    return replace(context, owner=owner)


async def test_failing_inputs_of_one_owner_leave_the_tool_to_all_others(context: ToolContext) -> None:
    """The operator's tool is shared by all owners."""
    tools = Toolset([Script(SPEC, POLICY, [AWAY] * 2)], clock=Clock())
    assert await kinds(tools, for_owner(context, "eve"), 6) == ["error"] * 2 + ["unavailable"] * 4
    assert await kinds(tools, for_owner(context, "ben"), 2) == ["ok"] * 2
    assert await kinds(tools, for_owner(context, "eve"), 1) == ["unavailable"], "its own inputs still fail"


async def test_a_tool_that_fails_for_several_owners_is_left_alone_by_all(context: ToolContext) -> None:
    clock, tide = Clock(), Script(SPEC, POLICY, [AWAY] * 3)
    tools = Toolset([tide], clock=clock)
    seen = [await kinds(tools, for_owner(context, owner), 1) for owner in ("ada", "ben", "cid", "dan")]
    assert seen == [["error"], ["error"], ["error"], ["unavailable"]]
    clock.now += 30
    assert await kinds(tools, for_owner(context, "eve"), 2) == ["ok", "ok"], "the trial of any owner closes it"
    assert await kinds(tools, for_owner(context, "dan"), 1) == ["ok"]


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 10])
def test_no_two_owners_open_a_breaker_for_a_third_one(limit: int) -> None:
    circuit = OwnersCircuit(limit, 10.0, Clock())
    for _ in range(10 * limit):
        circuit.failed("ada")
        circuit.failed("ben")
        assert circuit.wait("cid") is None
    for _ in range(limit):
        circuit.failed("cid")
    assert circuit.wait("dan") is not None


def test_a_trial_that_fails_opens_a_breaker_for_all_again() -> None:
    clock = Clock()
    circuit = OwnersCircuit(1, 10.0, clock)
    for owner in ("ada", "ben", "cid"):
        circuit.failed(owner)
    clock.now += 10
    with circuit.trial("ada"):
        assert circuit.wait("dan") == 0, "one at a time, of all owners"
        assert circuit.failed("ada")
    assert circuit.wait("dan") == 10


def test_only_so_many_owners_have_a_breaker_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuits, "_MOST_OWNERS", 2)
    circuit = OwnersCircuit(1, 10.0, Clock())
    for owner in ("ada", "ben"):
        circuit.failed(owner)
    circuit.succeeded("none")
    circuit.failed("cid")
    assert [circuit.wait(owner) is None for owner in ("ada", "ben", "cid")] == [True, False, False]


class Breaking(RuleBasedStateMachine):
    """Compares the breaker, under calls that overlap at random, with a model that knows only the recent outcomes."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.circuit = Circuit(3, 10.0, self.clock)
        self.in_a_row = 0
        self.opened_at = -100.0
        self.inside: list[AbstractContextManager[None]] = []

    @precondition(lambda self: self.circuit.wait is None)
    @rule()
    def call(self) -> None:
        assert self.in_a_row < 3 or self.clock.now >= self.opened_at + 10
        trial = self.circuit.trial()
        trial.__enter__()
        self.inside.append(trial)
        if self.in_a_row >= 3:
            assert self.circuit.wait == 0, "nobody else may try"

    @precondition(lambda self: self.inside)
    @rule(failed=st.none() | st.booleans())
    def settle(self, failed: bool | None) -> None:
        trial = self.inside.pop(0)
        if failed is not None:
            self.in_a_row = self.in_a_row + 1 if failed else 0
            if self.in_a_row >= 3 and self.clock.now >= self.opened_at + 10:
                self.opened_at = self.clock.now
            (self.circuit.failed if failed else self.circuit.succeeded)()
        trial.__exit__(None, None, None)

    @rule()
    def time_passes(self) -> None:
        self.clock.now += 4

    @invariant()
    def it_is_never_stuck(self) -> None:
        if not self.inside and self.clock.now >= self.opened_at + 10:
            assert self.circuit.wait is None


TestBreaking = Breaking.TestCase
