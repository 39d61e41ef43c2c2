"""Tools that a toolset receives after its creation: tools of a source, and tools that a request declares."""

import pytest
from prometheus_client import REGISTRY

from tests.unit.tools.doubles import DEFAULT, SCHEMA, Clock, Gate, Logged, Script
from turnstream.domain.turns import HttpCall, ToolSpec
from turnstream.tools.policy import Breaker, Policy
from turnstream.tools.running.limiter import ToolStates
from turnstream.tools.tool import Outcome, Tool, ToolContext
from turnstream.tools.toolset import Toolset


def spec(name: str, url: str | None = None) -> ToolSpec:
    return ToolSpec(name, "Help.", SCHEMA, http=None if url is None else HttpCall(url))


def returning(name: str, text: str, policy: Policy = DEFAULT) -> Script:
    return Script(spec(name), policy, [Outcome(text)] * 5)


class Source:
    def __init__(self, *tools: Tool) -> None:
        self.found = {tool.spec.name: tool for tool in tools}

    def tools(self) -> dict[str, Tool]:
        return self.found


async def test_the_tools_of_a_source_come_and_go(context: ToolContext) -> None:
    source = Source()
    tools = Toolset([returning("own", "own")], sources=[source])
    assert [*tools.names] == ["own"]
    assert (await tools.run("late", "{}", context)).kind == "unknown"

    source.found = {"late": returning("late", "late", Policy(timeout=7.0))}
    assert [*tools.names] == ["own", "late"]
    assert tools.specs(["late", "own"]) == (spec("late"), spec("own"))
    assert tools.policy("late").timeout == 7.0
    assert (await tools.run("late", "{}", context)).text == "late"

    source.found = {}
    with pytest.raises(ValueError, match="There is no tool 'late'; the tools are: own"):
        tools.specs(["late"])
    gone = await tools.run("late", "{}", context, offered=[spec("late")])
    assert gone == Outcome("The tool late is not available at the moment.", kind="unavailable")


async def test_of_two_tools_with_one_name_the_first_counts(context: ToolContext) -> None:
    sources = [Source(returning("both", "first"), returning("own", "theirs")), Source(returning("both", "second"))]
    tools = Toolset([returning("own", "mine")], sources=sources)
    assert tools.names == ("own", "both")
    assert [(await tools.run(name, "{}", context)).text for name in tools.names] == ["mine", "first"]


async def test_a_declared_tool_is_never_the_registered_one_of_its_name(context: ToolContext) -> None:
    own = returning("pay", "own")
    made: list[ToolSpec] = []

    def declared(spec: ToolSpec) -> Tool:
        made.append(spec)
        return Script(spec, script=[Outcome("declared")])

    tools = Toolset([own], declared=declared)
    offered = [spec("other"), spec("pay", "https://pay.example")]
    assert (await tools.run("pay", "{}", context, offered=offered)).text == "declared"
    assert (made, own.calls) == ([offered[1]], [])
    assert (await tools.run("pay", "{}", context, offered=[spec("pay")])).text == "own"


async def test_a_declared_tool_that_cannot_be_made_is_an_outcome(context: ToolContext, logged: Logged) -> None:
    def declared(spec: ToolSpec) -> Tool:
        raise ValueError("the key is hunter2")

    own = returning("pay", "own")
    away = Outcome("The tool pay is not available at the moment.", kind="unavailable")
    for tools in (Toolset([own], declared=declared), Toolset([own])):
        assert await tools.run("pay", "{}", context, offered=[spec("pay", "https://pay.example")]) == away
    assert tools.policy("pay", [spec("pay", "https://pay.example")]) == Policy()
    assert [line["event"] for line in logged] == ["tool.failed", "tool.settled", "tool.settled"]


async def test_a_tool_of_the_client_is_not_run_here(context: ToolContext) -> None:
    own = returning("pay", "own")
    offered = [ToolSpec("pay", "Pay.", SCHEMA, client=True)]
    assert (await Toolset([own]).run("pay", "{}", context, offered=offered)).kind == "unavailable"
    assert own.calls == []


async def test_names_that_come_with_requests_are_no_metrics(context: ToolContext) -> None:
    def declared(spec: ToolSpec) -> Tool:
        slow = Gate(policy=Policy(timeout=0.001))
        slow.spec = spec
        return slow

    offered = [spec("from-a-request", "https://slow.example")]
    outcome = await Toolset([], declared=declared).run("from-a-request", "{}", context, offered=offered)
    assert outcome.notes == {"timeout": 0.001}
    labels = {label for metric in REGISTRY.collect() for sample in metric.samples for label in sample.labels.values()}
    assert "from-a-request" not in labels
    assert "(declared)" in labels


def test_a_healthy_idle_tool_has_no_state() -> None:
    states = ToolStates(Clock())
    for number in range(10):
        with states.of(spec("a", f"https://{number}.example"), Policy(), "ada") as state:
            assert len(states) == 1
            state.circuit.succeeded("ada")
    assert len(states) == 0


def test_overlapping_calls_share_a_state() -> None:
    states, policy = ToolStates(Clock()), Policy(concurrency=2)
    with states.of(spec("a"), policy, "ada") as first:
        with states.of(spec("a"), policy, "eve") as second:
            assert first is second
        with states.of(spec("a"), policy, "ada") as third:
            assert first is third


def test_the_number_of_remembered_failed_tools_is_limited() -> None:
    states, policy = ToolStates(Clock(), limit=3), Policy(breaker=Breaker(failures=1))

    def fail(name: str, url: str | None) -> None:
        with states.of(spec(name, url), policy, "ada") as state:
            state.circuit.failed("ada")

    fail("own", None)
    with states.of(spec("a", "https://busy.example"), policy, "ada") as busy:
        for number in range(20):
            fail("a", f"https://{number}.example")
            assert len(states) <= 4
        with states.of(spec("a", "https://busy.example"), policy, "ada") as again:
            assert again is busy, "what is in use is not forgotten"
    with states.of(spec("own"), policy, "ada") as own:
        assert own.circuit.wait is not None, "nor is what belongs to the server"
    with states.of(spec("a", "https://19.example"), policy, "ada") as newest:
        assert newest.circuit.wait is not None
