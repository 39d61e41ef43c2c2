import asyncio
import json
import sys

import pytest
import structlog
from structlog.testing import capture_logs

from tests.unit.tools.doubles import Gate
from turnstream.domain.turns import ToolSpec
from turnstream.tools.policy import Policy
from turnstream.tools.tool import Outcome, ToolContext, ToolError, tool
from turnstream.tools.toolset import Toolset

AT_ONCE = 0.01


@tool()
async def echo(text: str = "nothing") -> str:
    """Say it again."""
    return text


@tool()
async def refuse() -> str:
    """Say no."""
    raise ToolError("There is no tide today.")


@tool()
async def explode() -> str:
    """Break."""
    raise ValueError("the password is hunter2")


@tool()
async def leave() -> str:
    """Try to end the process."""
    sys.exit(3)


@tool()
async def give_up() -> str:
    """Cancel itself."""
    raise asyncio.CancelledError


@tool(timeout=AT_ONCE)
async def hang() -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return "never"


@tool(timeout=AT_ONCE, read_only=True)
async def hang_harmlessly() -> str:
    """Wait for ever, without effects."""
    await asyncio.Event().wait()
    return "never"


class Panic(BaseException):
    """An exception outside of `Exception`, as some extension modules raise."""


@tool()
async def panic() -> str:
    """Break badly."""
    raise Panic


class Stubborn:
    """A tool that ignores its cancellation until it is `released`."""

    spec = ToolSpec("stubborn", "Never stop.", '{"type":"object"}')

    def __init__(self, timeout: float) -> None:
        self.policy = Policy(timeout=timeout)
        self.started, self.ignored, self.released = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.ended = asyncio.Event()

    async def __call__(self, context: ToolContext, input_json: str) -> Outcome:
        self.started.set()
        while not self.released.is_set():
            try:
                await self.released.wait()
            except asyncio.CancelledError:
                self.ignored.set()
        self.ended.set()
        return Outcome("too late")


TOOLS = Toolset([echo, refuse, explode, leave, give_up, panic, hang, hang_harmlessly], max_result_chars=1000)


async def test_a_tool_that_succeeds_is_ok(context: ToolContext) -> None:
    assert await TOOLS.run("echo", '{"text": "ahoy"}', context) == Outcome("ahoy", is_error=False, kind="ok")


@pytest.mark.parametrize("nothing", ["", "  \n", "{}"])
async def test_an_empty_input_is_an_empty_object(context: ToolContext, nothing: str) -> None:
    assert (await TOOLS.run("echo", nothing, context)).text == "nothing"


async def test_a_deliberate_error_reaches_the_model_unchanged(context: ToolContext) -> None:
    outcome = await TOOLS.run("refuse", "{}", context)
    assert outcome == Outcome("There is no tide today.", is_error=True, kind="error")


@pytest.mark.parametrize(
    ("name", "error"),
    [("explode", "ValueError"), ("leave", "SystemExit"), ("give_up", "CancelledError"), ("panic", "Panic")],
)
async def test_a_broken_tool_reveals_only_the_class_of_the_error(context: ToolContext, name: str, error: str) -> None:
    with capture_logs() as lines:
        outcome = await TOOLS.run(name, "{}", context)
    assert outcome == Outcome(f"The tool {name} failed ({error}).", is_error=True, kind="error")
    assert [line["event"] for line in lines] == ["tool.failed", "tool.settled"]
    assert type(lines[0]["exc_info"]).__name__ == error


async def test_a_tool_that_hangs_is_stopped(context: ToolContext) -> None:
    outcome = await TOOLS.run("hang", "{}", context)
    assert (outcome.kind, outcome.is_error) == ("timeout", True)
    assert outcome.text == (
        "The tool hang was stopped: it did not finish within 0.01 s. Its effects until then are unknown."
    )


async def test_nothing_is_unknown_after_a_read_only_tool_was_stopped(context: ToolContext) -> None:
    outcome = await TOOLS.run("hang_harmlessly", "{}", context)
    assert outcome.text == "The tool hang_harmlessly was stopped: it did not finish within 0.01 s."


async def test_a_tool_that_swallows_its_cancellation_is_left_to_itself(context: ToolContext) -> None:
    stubborn = Stubborn(timeout=AT_ONCE)
    tools = Toolset([stubborn, echo], max_parallel=1, patience=AT_ONCE)
    with capture_logs() as lines:
        outcome = await tools.run("stubborn", "{}", context)
    assert outcome.kind == "timeout"
    assert [line["event"] for line in lines] == ["tool.abandoned", "tool.settled"]
    assert stubborn.ignored.is_set()
    assert (await tools.run("echo", "{}", context)).kind == "ok", "its slot is free"
    stubborn.released.set()
    await stubborn.ended.wait()


async def test_a_late_answer_to_the_cancellation_is_still_a_timeout(context: ToolContext) -> None:
    stubborn = Stubborn(timeout=AT_ONCE)
    running = asyncio.create_task(Toolset([stubborn]).run("stubborn", "{}", context))
    await stubborn.ignored.wait()
    stubborn.released.set()
    assert (await running).kind == "timeout"


async def test_cancelling_a_call_stops_the_tool_first(context: ToolContext) -> None:
    gate = Gate()
    running = asyncio.create_task(Toolset([gate]).run("gate", "{}", context))
    await gate.reached(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert gate.inside == 0


async def test_cancelling_a_stubborn_tool_does_not_hang(context: ToolContext) -> None:
    stubborn = Stubborn(timeout=60)
    running = asyncio.create_task(Toolset([stubborn], patience=AT_ONCE).run("stubborn", "{}", context))
    await stubborn.started.wait()
    running.cancel()
    with capture_logs() as lines, pytest.raises(asyncio.CancelledError):
        await running
    assert [line["event"] for line in lines] == ["tool.abandoned"]
    stubborn.released.set()
    await stubborn.ended.wait()


async def test_a_second_cancellation_ends_the_wait_for_a_stubborn_tool(context: ToolContext) -> None:
    stubborn = Stubborn(timeout=60)
    running = asyncio.create_task(Toolset([stubborn], patience=60).run("stubborn", "{}", context))
    await stubborn.started.wait()
    running.cancel()
    await stubborn.ignored.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    stubborn.released.set()
    await stubborn.ended.wait()


async def test_a_megabyte_is_cut_and_the_missing_size_reported(context: ToolContext) -> None:
    @tool()
    async def flood() -> str:
        """Return too much."""
        return "é" * 1_000_000

    outcome = await Toolset([flood]).run("flood", "{}", context)
    assert outcome.text == (
        "é" * 100_000 + "\n\n[The result was cut here: 900,000 of its 1,000,000 characters are missing.]"
    )
    assert outcome.kind == "ok"


async def test_a_result_that_just_fits_is_left_alone(context: ToolContext) -> None:
    text = "a" * 1000
    assert (await TOOLS.run("echo", json.dumps({"text": text}), context)).text == text
    assert (await TOOLS.run("echo", json.dumps({"text": f"{text}b"}), context)).text.startswith(f"{text}\n\n[")


async def test_an_error_that_is_too_long_is_cut_too(context: ToolContext) -> None:
    @tool()
    async def rant() -> str:
        """Complain."""
        raise ToolError("no " * 1000)

    outcome = await Toolset([rant], max_result_chars=10).run("rant", "{}", context)
    assert outcome.text.startswith("no no no n\n\n[The result was cut here: 2,990 of")
    assert outcome.kind == "error"


async def test_characters_that_postgres_cannot_store_are_replaced(context: ToolContext) -> None:
    @tool()
    async def binary() -> dict[str, str]:
        """Return a NUL and a lone surrogate."""
        return {"name": "\ud800"}

    @tool()
    async def nul() -> str:
        """Return a NUL."""
        return "a\x00b"

    tools = Toolset([binary, nul])
    assert (await tools.run("nul", "{}", context)).text == "a\ufffdb"
    assert (await tools.run("binary", "{}", context)).text == '{"name":"\ufffd"}'
    assert (await TOOLS.run("echo", '{"text": "\ud800"}', context)).text == "\ufffd"


async def test_an_unknown_tool_is_answered_with_the_known_ones(context: ToolContext) -> None:
    outcome = await Toolset([echo, hang]).run("ecko", "{}", context)
    assert outcome == Outcome("There is no tool 'ecko'; the tools are: echo, hang.", is_error=True, kind="unknown")
    assert (await Toolset([]).run("x", "{}", context)).text == "There is no tool 'x'; the tools are: none."
    assert len((await TOOLS.run("x" * 100_000, "{}", context)).text) < 300


async def test_a_tool_the_model_was_not_offered_is_not_run(context: ToolContext) -> None:
    outcome = await TOOLS.run("explode", "{}", context, offered=[echo.spec])
    assert outcome == Outcome("There is no tool 'explode'; the tools are: echo.", is_error=True, kind="unknown")
    assert (await TOOLS.run("echo", "{}", context, offered=[echo.spec])).kind == "ok"


@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        ('{"text": "a"', "is not valid JSON (EOF while parsing an object at line 1 column 12)"),
        ('{"text": "a"} {}', "is not valid JSON (trailing characters"),
        ("[" * 40_000, "is not valid JSON (recursion limit exceeded"),
        ('{"text": [' + "0," * 50_000 + "0]}", "has more than 50,000 values"),
        ('["a"]', "is not a JSON object"),
        ("null", "is not a JSON object"),
        ('"text"', "is not a JSON object"),
    ],
)
async def test_an_input_that_is_no_json_object_reaches_no_tool(context: ToolContext, sent: str, complaint: str) -> None:
    outcome = await TOOLS.run("explode", sent, context)
    assert (outcome.kind, outcome.is_error) == ("bad_input", True)
    assert outcome.text.startswith(f"The input of explode {complaint}")
    assert outcome.text.endswith("; send one JSON object.")


async def test_a_wrong_argument_is_bad_input(context: ToolContext) -> None:
    outcome = await TOOLS.run("echo", '{"texts": "a"}', context)
    assert outcome.kind == "bad_input"
    assert "There is no `texts`; the arguments are text." in outcome.text


async def test_a_tool_that_is_not_written_as_agreed_is_an_outcome_too(context: ToolContext) -> None:
    class Careless:
        spec = ToolSpec("careless", "Return what it should not.", '{"type":"object"}')
        policy = Policy(timeout=1.0)

        async def __call__(self, context: ToolContext, input_json: str) -> Outcome:
            return "just a string"  # type: ignore[return-value]

    outcome = await Toolset([Careless()]).run("careless", "{}", context)
    assert outcome == Outcome("The tool careless failed (AttributeError).", is_error=True, kind="error")


async def test_no_more_calls_run_at_once_than_allowed(context: ToolContext) -> None:
    gate = Gate()
    tools = Toolset([gate], max_parallel=3)
    calls = [asyncio.create_task(tools.run("gate", f'{{"n":{number}}}', context)) for number in range(8)]
    await gate.reached(3)
    for _ in range(20):
        await asyncio.sleep(0)
        assert gate.inside == 3
    gate.open.set()
    assert [(await call).text for call in calls] == [f'{{"n":{number}}}' for number in range(8)]


async def test_calls_run_side_by_side(context: ToolContext) -> None:
    gate = Gate()
    tools = Toolset([gate])
    async with asyncio.TaskGroup() as group:
        for _ in range(16):
            group.create_task(tools.run("gate", "{}", context))
        await gate.reached(16)
        gate.open.set()


async def test_a_call_that_waits_for_its_turn_can_be_cancelled(context: ToolContext) -> None:
    gate = Gate()
    tools = Toolset([gate, echo], max_parallel=1)
    first = asyncio.create_task(tools.run("gate", "{}", context))
    await gate.reached(1)
    second = asyncio.create_task(tools.run("echo", "{}", context))
    third = asyncio.create_task(tools.run("echo", "{}", context))
    await asyncio.sleep(0)
    third.cancel()
    with pytest.raises(asyncio.CancelledError):
        await third
    gate.open.set()
    assert [(await first).kind, (await second).kind] == ["ok", "ok"]


def test_specs_have_the_order_of_the_names() -> None:
    tools = Toolset([echo, refuse, hang])
    assert tools.names == ("echo", "refuse", "hang")
    assert [spec.name for spec in tools.specs(None)] == ["echo", "refuse", "hang"]
    assert tools.specs(["hang", "echo", "hang"]) == (hang.spec, echo.spec)
    assert tools.specs([]) == ()


def test_an_unknown_tool_is_refused_with_the_known_names() -> None:
    with pytest.raises(ValueError, match="There is no tool 'sing'; the tools are: echo, hang"):
        Toolset([echo, hang]).specs(["echo", "sing"])


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two tools have the name echo"):
        Toolset([echo, echo])


async def test_every_call_leaves_one_line_in_the_log(context: ToolContext) -> None:
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        await TOOLS.run("echo", '{"text": "ahoy"}', context)
    (line,) = lines
    assert line.pop("seconds") >= 0
    assert line == {
        "event": "tool.settled",
        "log_level": "info",
        "tool": "echo",
        "tool_use_id": "toolu_1",
        "kind": "ok",
        "characters": 4,
        "files": 0,
    }


async def test_log_lines_of_a_tool_name_their_call(context: ToolContext) -> None:
    @tool()
    async def talk() -> None:
        """Log something."""
        structlog.get_logger().info("talking")

    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        await Toolset([talk]).run("talk", "{}", context)
    assert lines[0] == {"event": "talking", "log_level": "info", "tool": "talk", "tool_use_id": "toolu_1"}
