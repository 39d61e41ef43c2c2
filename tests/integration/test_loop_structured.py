"""Structured turns: attempts, drafts, submissions, and all the ways such a turn can end."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.harness import Asked, Harness, results_of
from tests.support.stream_client import Client
from turnstream.domain.kinds import TOOL_RESULT
from turnstream.domain.output import output_of, output_tools
from turnstream.domain.turns import OutputSpec, Turn
from turnstream.engine.hooks import AfterTool, BeforeAttempt, BeforeTool, Hooks, OutputRejected
from turnstream.llm.conversation.messages import NO_OUTPUT
from turnstream.scripted import Pause, Reply, ScriptedProvider, message_of, text, tool_use
from turnstream.tools.outputs import OUTPUT, Outputs
from turnstream.tools.tool import ToolContext, tool
from turnstream.tools.toolset import Toolset

SCHEMA = '{"type":"object","properties":{"year":{"type":"integer"}},"required":["year"]}'
PLAIN = OutputSpec(SCHEMA)
REFLECTED = OutputSpec(SCHEMA, handler="critic")


@tool(read_only=True)
async def look() -> str:
    """Look."""
    return "seen"


async def critic(draft: Any, context: ToolContext) -> str:
    return f"{draft['year']} is a draft of {context.owner}"


async def plausible(value: Any) -> str | None:
    return None if value["year"] < 2100 else "that year is in the future"


def broken(value: Any) -> str | None:
    raise RuntimeError(value)


OUTPUTS = Outputs({"plausible": plausible, "broken": broken}, {"critic": critic})


def out(id: str, **value: Any) -> Any:
    return tool_use(OUTPUT, value, id)


def submit(id: str) -> Any:
    return tool_use("submit", {}, id)


async def ask(harness: Harness, spec: OutputSpec) -> Asked:
    return await harness.ask(tools=[look, *output_tools(spec)], output=spec)


async def run(harness: Harness, spec: OutputSpec, *replies: Reply) -> tuple[Turn, ScriptedProvider]:
    provider = ScriptedProvider(replies)
    async with harness.replica(provider, toolset=Toolset([look], outputs=OUTPUTS)) as replica:
        return await harness.finish(replica, await ask(harness, spec)), provider


def ended(turn: Turn) -> tuple[str, str | None, str | None, str | None]:
    return turn.status, turn.stop_reason, turn.error.type if turn.error else None, output_of(turn)


async def test_a_model_works_with_its_tools_and_then_puts_out(harness: Harness) -> None:
    turn, provider = await run(
        harness, PLAIN, message_of(tool_use("look", {}, "a")), message_of(text("So:"), out("b", year=1969))
    )
    assert ended(turn) == ("complete", "output", None, '{"year":1969}')
    assert len(provider.requests) == 2


@pytest.mark.parametrize(
    ("spec", "wrong", "complaint"),
    [
        (PLAIN, {"year": "never"}, "`year`: 'never' is not of type 'integer'"),
        (OutputSpec(SCHEMA, validator="plausible"), {"year": 2345}, "that year is in the future"),
    ],
)
async def test_a_wrong_output_starts_the_next_attempt_with_the_error(
    harness: Harness, spec: OutputSpec, wrong: dict[str, Any], complaint: str
) -> None:
    turn, provider = await run(harness, spec, message_of(out("a", **wrong)), message_of(out("b", year=1969)))
    assert ended(turn) == ("complete", "output", None, '{"year":1969}')
    result = results_of(turn)["a"]
    assert result.is_error
    assert complaint in result.text
    assert provider.requests[1].messages[-1].blocks[-1].text == result.text


async def test_attempts_are_used_up(harness: Harness) -> None:
    replies = [message_of(out(id, year="x")) for id in "abc"]
    turn, _ = await run(harness, PLAIN, *replies)
    assert ended(turn) == ("error", "max_attempts", "max_attempts", None)
    assert turn.usage["output_tokens"] == 15


async def test_an_attempt_has_so_many_model_calls_and_no_more(harness: Harness) -> None:
    replies = [message_of(tool_use("look", {}, id)) for id in "abc"]
    turn, _ = await run(harness, OutputSpec(SCHEMA, max_iterations=3), *replies)
    assert ended(turn) == ("error", "max_iterations", "max_iterations", None)


async def test_every_attempt_has_its_own_model_calls(harness: Harness) -> None:
    look_twice = [message_of(tool_use("look", {}, id)) for id in "ab"]
    replies = [*look_twice, message_of(out("c", year="x")), *look_twice, message_of(out("d", year=1))]
    turn, _ = await run(harness, OutputSpec(SCHEMA, max_iterations=3), *replies)
    assert ended(turn) == ("complete", "output", None, '{"year":1}')


async def test_a_reply_without_a_tool_fails_its_attempt_and_the_model_gets_the_reason(
    harness: Harness,
) -> None:
    turn, provider = await run(harness, PLAIN, message_of(text("In 1969.")), message_of(out("a", year=1969)))
    assert ended(turn) == ("complete", "output", None, '{"year":1969}')
    assert provider.requests[1].messages[-1].blocks[-1].text == NO_OUTPUT.format("output")
    turn, _ = await run(harness, OutputSpec(SCHEMA, max_attempts=1), message_of(text("In 1969.")))
    assert ended(turn) == ("error", "invalid_response", "invalid_response", None)


async def test_drafts_are_refined_until_the_last_one_is_submitted(harness: Harness) -> None:
    turn, _ = await run(
        harness, REFLECTED, message_of(out("a", year=1)), message_of(out("b", year=2)), message_of(submit("c"))
    )
    assert ended(turn) == ("complete", "output", None, '{"year":2}')
    assert results_of(turn)["a"].text == "1 is a draft of ada"


async def test_one_reply_may_hold_several_drafts_and_the_submission(harness: Harness) -> None:
    reply = message_of(tool_use("look", {}, "l"), out("a", year=1), out("b", year=2), submit("c"))
    turn, _ = await run(harness, REFLECTED, reply)
    assert ended(turn) == ("complete", "output", None, '{"year":2}')
    assert sum(block.type == TOOL_RESULT for block in turn.blocks) == 4


async def test_a_submission_is_judged(harness: Harness) -> None:
    turn, _ = await run(
        harness,
        OutputSpec(SCHEMA, validator="plausible", handler="critic"),
        message_of(out("a", year=3000), submit("b")),
        message_of(out("c", year=3), submit("d")),
    )
    assert ended(turn) == ("complete", "output", None, '{"year":3}')
    assert "in the future" in results_of(turn)["b"].text


async def test_a_submission_without_a_draft_is_an_end_of_its_own(harness: Harness) -> None:
    turn, _ = await run(harness, REFLECTED, message_of(submit("a")))
    assert ended(turn) == ("error", "submit_before_output", "submit_before_output", None)
    assert results_of(turn)["a"].is_error


async def test_a_validator_that_fails_is_an_outcome(harness: Harness) -> None:
    spec = OutputSpec(SCHEMA, validator="broken", max_attempts=1)
    turn, _ = await run(harness, spec, message_of(out("a", year=1)))
    assert ended(turn) == ("error", "max_attempts", "max_attempts", None)
    assert results_of(turn)["a"].text == "The output could not be judged. Try again."


async def test_a_crash_between_draft_and_submission_loses_nothing(harness: Harness) -> None:
    pause = Pause()
    first = ScriptedProvider([message_of(out("a", year=7)), [pause]])
    toolset = Toolset([look], outputs=OUTPUTS)
    asked = await ask(harness, REFLECTED)
    async with harness.replica(first, toolset=toolset, address="here") as replica:
        replica.worker.wake()
        await pause.reached.wait()
        await replica.kill()
    second = ScriptedProvider([message_of(submit("b"))])
    async with harness.replica(second, toolset=toolset, address="here") as replica:
        turn = await harness.finish(replica, asked)
    assert ended(turn) == ("complete", "output", None, '{"year":7}')


class Listener(Hooks):
    def __init__(self) -> None:
        self.calls: list[tuple[str | None, str]] = []

    async def before_tool(self, event: BeforeTool) -> None:
        self.calls.append((event.call.name, event.input))

    async def after_tool(self, event: AfterTool) -> None:
        self.calls.append((event.call.name, event.outcome.text))


async def test_hooks_are_called_for_every_draft_and_the_submission(harness: Harness) -> None:
    listener, provider = Listener(), ScriptedProvider([message_of(out("a", year=1)), message_of(submit("b"))])
    async with harness.replica(provider, toolset=Toolset([look], outputs=OUTPUTS), hooks=[listener]) as replica:
        await harness.finish(replica, await ask(harness, REFLECTED))
    assert listener.calls == [
        (OUTPUT, '{"year":1}'),
        (OUTPUT, "1 is a draft of ada"),
        ("submit", "{}"),
        ("submit", "The output was accepted."),
    ]


class Judge(Hooks):
    """Judges outputs. Records the attempts and the mistakes in their outputs, and raises at every second attempt."""

    def __init__(self) -> None:
        self.events: list[tuple[int, str]] = []

    async def before_attempt(self, event: BeforeAttempt) -> None:
        self.events.append((event.attempt, "begins"))
        if event.attempt == 2:
            raise LookupError("no")

    async def output_rejected(self, event: OutputRejected) -> None:
        self.events.append((event.attempt, event.outcome.text))


async def test_hooks_are_called_for_attempts_and_for_outputs_that_are_not_right(harness: Harness) -> None:
    judge, spec = Judge(), OutputSpec(SCHEMA, validator="plausible", handler="critic")
    replies = [
        message_of(tool_use("look", {}, "l")),
        message_of(out("a", year=3000), submit("b")),
        message_of(out("c", year=3)),
        message_of(submit("d")),
    ]
    async with harness.replica(
        ScriptedProvider(replies), toolset=Toolset([look], outputs=OUTPUTS), hooks=[judge]
    ) as replica:
        turn = await harness.finish(replica, await ask(harness, spec))
    wrong = "The output is not right. that year is in the future"
    assert judge.events == [(1, "begins"), (1, wrong), (2, "begins")]
    assert turn.hook_failures == 1


async def test_a_failed_end_has_its_figures_and_the_last_complaint(harness: Harness) -> None:
    spec = OutputSpec(SCHEMA, max_attempts=2)
    looks = message_of(tool_use("look", {}, "l"))
    turn, _ = await run(harness, spec, message_of(out("a", year="x")), looks, message_of(out("b", year="y")))
    assert turn.error is not None
    complaint = "The output is not right. `year`: 'y' is not of type 'integer'."
    assert turn.error.details == {
        "attempt": 2,
        "iterations": 2,
        "max_attempts": 2,
        "max_iterations": 15,
        "complaint": complaint,
    }
    assert turn.error.message == (
        "no output was valid, in as many attempts as there may be (attempt 2 of 2, model call 2 of 15 in it);"
        f" the last complaint: {complaint}"
    )


async def test_the_tools_have_the_names_and_descriptions_of_the_caller(harness: Harness) -> None:
    spec = OutputSpec(
        SCHEMA,
        handler="critic",
        name="draft_report",
        description="Draft the report.",
        submit_name="file_report",
        submit_description="File it.",
    )
    replies = [
        message_of(text("Well.")),
        message_of(tool_use("draft_report", {"year": 3}, "a")),
        message_of(tool_use("file_report", {}, "b")),
    ]
    turn, provider = await run(harness, spec, *replies)
    assert ended(turn) == ("complete", "output", None, '{"year":3}')
    offered = [(spec.name, spec.description) for spec in provider.requests[0].tools][1:]
    assert offered == [("draft_report", "Draft the report."), ("file_report", "File it.")]
    assert provider.requests[1].messages[-1].blocks[-1].text == NO_OUTPUT.format("draft_report")


def three(value: Any) -> str | None:
    return None if len(value) == 3 else f"{len(value)} years are not three"


async def count(draft: Any, context: ToolContext) -> str:
    return f"{len(draft)} years"


YEARS = OutputSpec('{"type":"array","items":{"type":"integer"}}', validator="three", wrapped=True)
OF_YEARS = Toolset([look], outputs=Outputs({"three": three}, {"count": count}))


async def test_an_output_that_is_no_object_is_wrapped_for_the_model_alone(harness: Harness) -> None:
    wrongs: list[dict[str, Any]] = [{"value": ["x"]}, {"years": [1]}, {"value": [1]}]
    replies = [message_of(tool_use("output", wrong, f"w{place}")) for place, wrong in enumerate(wrongs)]
    provider = ScriptedProvider([*replies, message_of(tool_use("output", {"value": [1, 2, 3]}, "a"))])
    spec = replace(YEARS, max_attempts=4)
    async with harness.replica(provider, toolset=OF_YEARS) as replica:
        turn = await harness.finish(replica, await ask(harness, spec))
    assert ended(turn) == ("complete", "output", None, "[1, 2, 3]")
    assert [results_of(turn)[f"w{place}"].text.removeprefix("The output is not right. ") for place in range(3)] == [
        "`value.0`: 'x' is not of type 'integer'.",
        "Send an object with the output as its member `value`.",
        "1 years are not three",
    ]


async def test_a_handler_gets_the_value_of_a_draft(harness: Harness) -> None:
    replies = [
        message_of(tool_use("output", [1], "a")),  # type: ignore[arg-type]
        message_of(tool_use("output", {"value": [1, 2, 3]}, "b")),
        message_of(submit("c")),
    ]
    async with harness.replica(ScriptedProvider(replies), toolset=OF_YEARS) as replica:
        turn = await harness.finish(replica, await ask(harness, replace(YEARS, handler="count")))
    assert ended(turn) == ("complete", "output", None, "[1, 2, 3]")
    assert results_of(turn)["b"].text == "3 years"


async def test_a_cancelled_one_has_no_output(harness: Harness) -> None:
    pause = Pause()
    provider = ScriptedProvider([[*list(message_of(out("a", year=7)))[:3], pause]])
    async with harness.replica(provider, toolset=Toolset([look], outputs=OUTPUTS)) as replica:
        asked = await ask(harness, PLAIN)
        replica.worker.wake()
        await pause.reached.wait()
        await replica.cancel(asked)
        await harness.follow(replica, asked, Client())
        turn = await harness.turn(asked)
    assert ended(turn) == ("cancelled", "cancelled", None, None)
