"""The effects of a tool's policies on calls: slots, timeout, retries, fallback, and the size of results."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pictures import PIXEL
from tests.unit.tools.doubles import SCHEMA, Clock, Gate, Logged, Script, counted
from turnstream.domain.turns import ToolSpec
from turnstream.tools.policy import Policy
from turnstream.tools.running.fit import Sizes, fit
from turnstream.tools.running.tries import short_backoff
from turnstream.tools.tool import File, Outcome, Tool, ToolContext, ToolError, ToolUnavailable, tool
from turnstream.tools.toolset import Toolset

READS = ToolSpec("tide", "Tell the tide.", SCHEMA, read_only=True)
SAFE = ToolSpec("tide", "Move the moon.", SCHEMA, retry_safe=True)
ACTS = ToolSpec("tide", "Move the sea.", SCHEMA)
SHORT = 0.01


def at_once(retry: int) -> float:
    return 0.0


def toolset(*tools: Tool) -> Toolset:
    return Toolset(tools, backoff=at_once)


# --- slots -----------------------------------------------------------------------------------------------------------


async def test_no_more_calls_of_one_tool_run_at_once_than_it_allows(context: ToolContext) -> None:
    narrow, wide = Gate("narrow", Policy(concurrency=2)), Gate("wide")
    tools = Toolset([narrow, wide], max_parallel=5)
    calls = [asyncio.create_task(tools.run("narrow", "{}", context)) for _ in range(8)]
    calls += [asyncio.create_task(tools.run("wide", "{}", context)) for _ in range(3)]
    await wide.reached(3)
    for _ in range(20):
        await asyncio.sleep(0)
        assert narrow.inside == 2
    narrow.open.set()
    wide.open.set()
    assert {(await call).kind for call in calls} == {"ok"}


async def test_waiting_for_a_slot_takes_nothing_off_the_timeout(context: ToolContext) -> None:
    gate = Gate("gate", Policy(concurrency=1, timeout=0.05))
    quick = Gate("quick", Policy(concurrency=1, timeout=0.05))
    quick.open.set()
    tools = Toolset([gate, quick], max_parallel=1, patience=SHORT)
    outcomes = await asyncio.gather(
        *(tools.run("gate", "{}", context) for _ in range(3)), tools.run("quick", "{}", context)
    )
    assert [outcome.kind for outcome in outcomes] == ["timeout", "timeout", "timeout", "ok"]


@pytest.mark.parametrize(
    ("seconds", "notes"), [(0.9, {}), (1.0, {"waited": 1.0}), (12.34, {"waited": 12.3})], ids=["short", "just", "long"]
)
@pytest.mark.parametrize("policy", [Policy(concurrency=1), Policy()], ids=["its own limit", "the server's limit"])
async def test_a_wait_that_can_be_noticed_is_noted(
    context: ToolContext, policy: Policy, seconds: float, notes: dict[str, float]
) -> None:
    clock, gate = Clock(), Gate("gate", policy)
    tools = Toolset([gate], max_parallel=1, clock=clock)
    first = asyncio.create_task(tools.run("gate", "{}", context))
    await gate.reached(1)
    second = asyncio.create_task(tools.run("gate", "{}", context))
    await asyncio.sleep(0)
    clock.now += seconds
    gate.open.set()
    assert (await first).notes == {}
    assert (await second).notes == notes


# --- timeout ---------------------------------------------------------------------------------------------------------


async def test_a_timeout_is_noted_and_counted(context: ToolContext) -> None:
    before = counted("gate", "timeout")
    outcome = await toolset(Gate("gate", Policy(timeout=SHORT))).run("gate", "{}", context)
    assert (outcome.kind, outcome.notes) == ("timeout", {"timeout": SHORT})
    assert counted("gate", "timeout") == before + 1


# --- retries ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [READS, SAFE])
async def test_a_safe_tool_that_broke_is_tried_again_with_the_same_key(
    context: ToolContext, spec: ToolSpec, logged: Logged
) -> None:
    tide = Script(spec, Policy(retries=2), [ConnectionError, ConnectionError])
    before = counted("tide", "retries")
    outcome = await toolset(tide).run("tide", '{"n":1}', context)
    assert outcome == Outcome("well", notes={"retries": 2})
    assert tide.calls == [(context, '{"n":1}')] * 3
    assert counted("tide", "retries") == before + 1
    assert [line["retry"] for line in logged if line["event"] == "tool.retry"] == [1, 2]


async def test_the_last_failure_reports_the_number_of_tries(context: ToolContext) -> None:
    tide = Script(READS, Policy(retries=2), [ConnectionError, ConnectionError, ValueError])
    outcome = await toolset(tide).run("tide", "{}", context)
    assert outcome == Outcome(
        "The tool tide failed (ValueError). It was tried 3 times.", kind="error", notes={"retries": 2}
    )


async def test_a_tool_that_may_not_be_run_twice_is_not(context: ToolContext) -> None:
    tide = Script(ACTS, Policy(retries=2), [ConnectionError])
    outcome = await toolset(tide).run("tide", "{}", context)
    assert outcome == Outcome("The tool tide failed (ConnectionError).", kind="error")
    assert len(tide.calls) == 1


@pytest.mark.parametrize(
    ("first", "kind", "calls"),
    [
        (ToolUnavailable("The harbour does not answer."), "ok", 2),
        (Outcome("The harbour does not answer.", kind="unavailable"), "ok", 2),
        (ToolError("There is no such harbour."), "error", 1),
        (Outcome("There is no such harbour.", kind="error"), "error", 1),
        (Outcome("which harbour?", kind="bad_input"), "bad_input", 1),
        (Outcome("the harbour took too long", kind="timeout"), "timeout", 1),
        (SystemExit, "ok", 2),
        (asyncio.CancelledError, "error", 1),
    ],
)
async def test_only_a_passing_failure_is_retried(
    context: ToolContext, first: BaseException | Outcome, kind: str, calls: int
) -> None:
    tide = Script(READS, Policy(retries=1), [first])
    outcome = await toolset(tide).run("tide", "{}", context)
    assert (outcome.kind, len(tide.calls)) == (kind, calls)


async def test_an_unavailable_tool_reports_in_its_own_words(context: ToolContext) -> None:
    tide = Script(ACTS, Policy(), [ToolUnavailable("The harbour does not answer."), ToolUnavailable()])
    tools = toolset(tide)
    first, second = [await tools.run("tide", "{}", context) for _ in range(2)]
    assert first == Outcome("The harbour does not answer.", kind="unavailable")
    assert second == Outcome("The tool tide failed.", kind="unavailable")


async def test_the_timeout_is_for_all_tries_together(context: ToolContext) -> None:
    class Flaky(Gate):
        async def __call__(self, context: ToolContext, input_json: str) -> Outcome:
            if not self.open.is_set():
                self.open.set()
                raise ConnectionError
            await asyncio.Event().wait()
            return Outcome("never")

    flaky = Flaky("tide", Policy(timeout=SHORT, retries=5))
    flaky.spec = READS
    outcome = await toolset(flaky).run("tide", "{}", context)
    assert (outcome.kind, outcome.notes) == ("timeout", {"retries": 1, "timeout": SHORT})


async def test_a_tool_that_makes_an_error_of_its_cancellation_is_not_run_again(context: ToolContext) -> None:
    calls = 0

    @tool(read_only=True, timeout=SHORT, retries=5)
    async def translate() -> None:
        """Turn a cancellation into an error."""
        nonlocal calls
        calls += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError from None

    assert (await toolset(translate).run("translate", "{}", context)).kind == "timeout"
    assert calls == 1


def test_pauses_between_tries_are_short_grow_and_differ() -> None:
    pauses = [[short_backoff(retry) for _ in range(50)] for retry in range(1, 8)]
    for number, tries in enumerate(pauses):
        longest = min(2.0, 0.2 * 2**number)
        assert all(longest / 2 <= pause <= longest for pause in tries)
        assert len(set(tries)) > 1


# --- fallback --------------------------------------------------------------------------------------------------------


ALMANAC = ToolSpec("almanac", "Look the tide up.", SCHEMA, read_only=True)
WITH_ALMANAC = Policy(fallback="almanac", retries=0, timeout=SHORT)


@pytest.mark.parametrize(
    ("failure", "because", "why"),
    [
        (ConnectionError, "error", "failed"),
        (ToolError("No signal."), "error", "failed"),
        (ToolUnavailable("Away."), "unavailable", "is not available"),
        (Outcome("late", kind="timeout"), "timeout", "ran out of time"),
    ],
)
async def test_another_tool_answers_for_one_that_failed(
    context: ToolContext, failure: BaseException | Outcome, because: str, why: str
) -> None:
    tide, almanac = Script(READS, WITH_ALMANAC, [failure]), Script(ALMANAC, Policy(), [Outcome("high at noon")])
    before = counted("tide", "fallback")
    outcome = await toolset(tide, almanac).run("tide", '{"day":1}', context, offered=[READS])
    assert outcome == Outcome(
        f"[The tool that was called {why}; this is the answer of almanac.]\n\nhigh at noon",
        notes={"fallback": {"tool": "almanac", "because": because}},
    )
    assert almanac.calls == [(context, '{"day":1}')]
    assert counted("tide", "fallback") == before + 1


async def test_a_tool_that_hangs_has_its_fallback_too(context: ToolContext) -> None:
    gate = Gate("tide", WITH_ALMANAC)
    outcome = await toolset(gate, Script(ALMANAC)).run("tide", "{}", context)
    assert outcome.kind == "ok"
    assert outcome.notes == {"timeout": SHORT, "fallback": {"tool": "almanac", "because": "timeout"}}


async def test_a_tool_that_is_left_alone_has_its_fallback_too(context: ToolContext) -> None:
    tools = Toolset([Script(READS, WITH_ALMANAC, [ValueError] * 5), Script(ALMANAC)], clock=Clock())
    outcomes = [await tools.run("tide", "{}", context) for _ in range(6)]
    assert [outcome.kind for outcome in outcomes] == ["ok"] * 6
    assert outcomes[5].notes == {"breaker": "open", "fallback": {"tool": "almanac", "because": "unavailable"}}


@pytest.mark.parametrize("fine", [Outcome("ahoy"), Outcome("which?", kind="bad_input")])
async def test_a_fallback_is_only_for_failures(context: ToolContext, fine: Outcome) -> None:
    almanac = Script(ALMANAC)
    assert await toolset(Script(READS, WITH_ALMANAC, [fine]), almanac).run("tide", "{}", context) == fine
    assert almanac.calls == []


async def test_notes_of_the_fallback_are_nested(context: ToolContext) -> None:
    almanac = Script(ALMANAC, Policy(retries=1), [ConnectionError])
    before = counted("almanac", "retries")
    outcome = await toolset(Script(READS, WITH_ALMANAC, [ValueError]), almanac).run("tide", "{}", context)
    assert outcome.notes == {"fallback": {"tool": "almanac", "because": "error", "notes": {"retries": 1}}}
    assert counted("almanac", "retries") == before + 1


async def test_when_both_fail_both_errors_are_reported_and_no_third_tool_runs(context: ToolContext) -> None:
    third = Script(ToolSpec("third", "Guess.", SCHEMA, read_only=True))
    almanac = Script(ALMANAC, Policy(fallback="third", retries=0), [ToolError("The page is torn.")])
    outcome = await toolset(Gate("tide", WITH_ALMANAC), almanac, third).run("tide", "{}", context)
    assert outcome.kind == "timeout"
    assert outcome.text == (
        "The tool tide was stopped: it did not finish within 0.01 s. Its effects until then are unknown.\n\n"
        "[almanac was run instead:]\n\nThe page is torn."
    )
    assert third.calls == []


async def test_files_and_texts_of_both_keep_their_order(context: ToolContext) -> None:
    tide = Script(READS, WITH_ALMANAC, [Outcome("first", kind="error", more=(File(PIXEL), "after it"))])
    broken = Script(ALMANAC, Policy(retries=0), [Outcome("second", kind="error", more=(File(PIXEL), "and why"))])
    outcome = await toolset(tide, broken).run("tide", "{}", context)
    middle = "after it\n\n[almanac was run instead:]\n\nsecond"
    assert (outcome.text, outcome.more) == ("first", (File(PIXEL), middle, File(PIXEL), "and why"))
    assert outcome.is_error


@pytest.mark.parametrize(
    ("spec", "stand_in", "policy", "complaint"),
    [
        (READS, ToolSpec("other", "Else.", SCHEMA), Policy(), "tide has the fallback almanac, which is not in"),
        (
            READS,
            ToolSpec("almanac", "Act.", SCHEMA, retry_safe=True),
            Policy(),
            "is read_only, and almanac is not",
        ),
        (SAFE, ToolSpec("almanac", "Act.", SCHEMA), Policy(), "tide is retry_safe, and almanac is not"),
        (READS, ALMANAC, Policy(approval="always"), "a call of it may need an approval"),
        (READS, ALMANAC, Policy(approval=bool), "a call of it may need an approval"),
    ],
)
def test_a_fallback_with_more_rights_than_the_tool_is_refused_at_once(
    spec: ToolSpec, stand_in: ToolSpec, policy: Policy, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        toolset(Script(spec, WITH_ALMANAC), Script(stand_in, policy))


async def test_a_fallback_that_came_late_is_looked_at_then(context: ToolContext, logged: Logged) -> None:
    class Source:
        def __init__(self) -> None:
            self.found: dict[str, Tool] = {}

        def tools(self) -> dict[str, Tool]:
            return self.found

    source = Source()
    tools = Toolset([Script(ALMANAC, Policy(approval="always"))], sources=[source])
    tide = source.found["tide"] = Script(READS, WITH_ALMANAC, [ValueError])
    assert (await tools.run("tide", "{}", context)).kind == "error"
    assert [line["event"] for line in logged] == ["tool.failed", "tool.no_fallback", "tool.settled"]
    assert len(tide.calls) == 1


# --- size ------------------------------------------------------------------------------------------------------------


@tool(max_result_chars=10)
async def echo(text: str) -> str:
    """Say it again."""
    return text


async def echoed(tools: Toolset, context: ToolContext, text: str, offered: list[ToolSpec] | None = None) -> Outcome:
    return await tools.run("echo", json.dumps({"text": text}), context, offered=offered)


async def test_a_tools_own_limit_goes_before_the_servers(context: ToolContext) -> None:
    before = counted("echo", "cut")
    for tools in (Toolset([echo], max_result_chars=5), Toolset([echo])):
        assert await echoed(tools, context, "0123456789") == Outcome("0123456789")
        assert await echoed(tools, context, "0123456789a") == Outcome(
            "0123456789\n\n[The result was cut here: 1 of its 11 characters are missing.]",
            whole="0123456789a",
            notes={"cut": {"shown": 10, "of": 11}},
        )
    assert counted("echo", "cut") == before + 2


async def test_the_hint_to_read_on_needs_the_tool_for_it(context: ToolContext) -> None:
    reader = ToolSpec("read_result", "Read on.", SCHEMA, read_only=True)
    tools = Toolset([echo, Script(reader)])
    able = await echoed(tools, context, "0123456789abc", [echo.spec, reader])
    unable = await echoed(tools, context, "0123456789abc", [echo.spec])
    assert able.text == (
        "0123456789\n\n[The result was cut here: 3 of its 13 characters are missing. "
        'To read on, call read_result with tool_use_id "toolu_1" and offset 10.]'
    )
    assert "read_result" not in unable.text


async def test_the_kept_text_is_limited(context: ToolContext) -> None:
    outcome = await echoed(Toolset([echo], max_whole_chars=12), context, "0123456789abcd")
    assert (outcome.whole, outcome.notes) == ("0123456789ab", {"cut": {"shown": 10, "of": 14, "kept": 12}})
    assert "4 of its 14 characters are missing. Only the first 12 were kept.]" in outcome.text


async def test_a_whole_text_of_the_tool_itself_is_kept(context: ToolContext) -> None:
    script = [Outcome("0" * 11, whole="all of it", notes={"seconds": 2})]
    outcome = await Toolset([Script(READS, Policy(max_result_chars=10), script)]).run("tide", "{}", context)
    assert outcome.whole == "all of it"
    assert outcome.notes == {"seconds": 2, "cut": {"shown": 10, "of": 11}}


@given(text=st.text(), shown=st.integers(1, 20), kept=st.integers(1, 40))
def test_shown_and_kept_are_the_beginning_of_the_result(text: str, shown: int, kept: int) -> None:
    outcome = fit(Outcome(text), Sizes(shown, kept), "toolu_1", ["read_result"])
    assert outcome.text.startswith(text[:shown])
    if len(text) <= shown:
        assert outcome == Outcome(text)
    else:
        assert outcome.whole == text[:kept]


def test_invalid_characters_in_the_name_of_a_file_are_replaced() -> None:
    outcome = fit(Outcome.of([File(b"\0", "a\0b\ud800")]), Sizes(100, 100), "toolu_1", [])
    assert outcome.more == ("[a�b�, 1 bytes: neither an image nor a PDF that can be shown]",)


def test_the_files_of_one_result_are_not_too_large_together() -> None:
    files = [File(PIXEL + bytes(900 + number)) for number in range(9)]
    outcome = fit(Outcome.of(files), Sizes(1000, 1000, file=1000), "toolu_1", [])
    assert [isinstance(part, File) for part in outcome.more] == [True] * 4 + [False] * 5
    assert outcome.more[4] == f"[image/png, {len(PIXEL) + 904} bytes: left out, since there are too many]"
