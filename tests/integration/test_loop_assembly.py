"""The loop when the results of tools are stored, but no model is left that could finish the answer."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.support.harness import POLICY, QUICK, Harness, texts_of, with_model
from turnstream.domain.assembly import ASSEMBLED
from turnstream.domain.degraded import ASSEMBLED_ANSWER, FALLBACK_MODEL, degraded
from turnstream.domain.errors import PermanentError, ProviderError, TooLong, TransientError
from turnstream.domain.turns import Limits, OutputSpec, RecoveryPolicy
from turnstream.llm.provider import ModelRequest
from turnstream.scripted import ScriptedProvider, Step, message_of, text, tool_use
from turnstream.tools.tool import tool

DOWN = TransientError("overloaded_error", "Overloaded", request_id="req_1")
REFUSED = PermanentError("invalid_request_error", "The request is not valid")
FAIL = Limits(on_provider_failure="fail")


@tool(read_only=True)
async def look(place: str = "") -> str:
    """Look."""
    return f"seen at {place}"


@tool(read_only=True)
async def fall() -> str:
    """Fall."""
    raise RuntimeError


def calls_then(*failures: Sequence[Step], call: str = "look") -> ScriptedProvider:
    """A model that calls a tool once, and then always fails."""
    script = iter([list(message_of(text("I look."), tool_use(call, {"place": "sea"} if call == "look" else {}, "a")))])
    rest = iter(failures)

    def answer(_: ModelRequest) -> Sequence[Step]:
        return next(script, None) or next(rest, None) or failures[-1]

    return ScriptedProvider(answer)


@pytest.mark.parametrize("failure", [DOWN, REFUSED, TooLong("context_length_exceeded", "Too long")])
async def test_the_results_become_the_answer_if_no_model_can_write_one(
    harness: Harness, failure: ProviderError
) -> None:
    async with harness.replica(calls_then([failure]), [look]) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[look]))
    assert (turn.status, turn.stop_reason, turn.error) == ("complete", ASSEMBLED, None)
    assert [item.what for item in degraded(turn)] == [ASSEMBLED_ANSWER]
    answer = turn.blocks[-1]
    assert (answer.type, answer.round) == ("text", 2)
    assert failure.message in answer.text
    assert '**look** `{"place":"sea"}`\n\n```\nseen at sea\n```' in answer.text.replace('": "', '":"')
    notes = json.loads(answer.notes or "")[ASSEMBLED]
    assert (notes["error"], notes["request_id"]) == (failure.type, failure.request_id)
    assert turn.rounds[-1].stop_reason == ASSEMBLED


async def test_text_of_the_model_stays_before_the_answer(harness: Harness) -> None:
    half: list[Step] = [*list(message_of(text("It is "), text("never")))[:-4], REFUSED]
    async with harness.replica(calls_then(half), [look]) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[look]))
    assert turn.stop_reason == ASSEMBLED
    assert texts_of(turn)[1].startswith("It is ")
    assert [round.stop_reason for round in turn.rounds] == ["tool_use", "error", ASSEMBLED]


async def test_no_later_request_holds_the_answer_as_if_the_model_had_written_it(harness: Harness) -> None:
    provider = calls_then(*[[DOWN]] * (QUICK.most + 1), list(message_of(text("Now I can."))))
    async with harness.replica(provider, [look]) as replica:
        first = await harness.ask(tools=[look])
        assert (await harness.finish(replica, first)).stop_reason == ASSEMBLED
        turn = await harness.finish(replica, await harness.ask("And now?", after=first, tools=[look]))
    assert texts_of(turn) == ["Now I can."]
    sent = provider.requests[-1].messages
    assert [block.text for message in sent for block in message.blocks if block.type == "text"] == [
        "Hello",
        "I look.",
        "And now?",
    ]
    assert [block.text for message in sent for block in message.blocks if block.type == "tool_result"] == [
        "seen at sea"
    ]


@pytest.mark.parametrize("failure", [DOWN, REFUSED, TooLong("context_length_exceeded", "Too long")])
async def test_another_model_is_asked_first(harness: Harness, failure: ProviderError) -> None:
    models = {"first": calls_then([failure]), "second": ScriptedProvider([message_of(text("It is the sea."))])}
    policy = with_model(POLICY, fallbacks=lambda _: ["second"])
    async with harness.replica(models.__getitem__, [look], policy=policy) as replica:
        turn = await harness.finish(replica, await harness.ask(model="first", tools=[look]))
    assert (turn.status, texts_of(turn)) == ("complete", ["I look.", "It is the sea."])
    assert [item.what for item in degraded(turn)] == [FALLBACK_MODEL]


async def test_the_answer_tells_why_the_fallback_failed_too(harness: Harness) -> None:
    models = {"first": calls_then([REFUSED]), "second": ScriptedProvider(lambda _: [DOWN])}
    policy = with_model(POLICY, fallbacks=lambda _: ["second"])
    async with harness.replica(models.__getitem__, [look], policy=policy) as replica:
        turn = await harness.finish(replica, await harness.ask(model="first", tools=[look]))
    assert turn.blocks[-1].text.startswith(
        "The model could not finish this answer. The request is not valid. Its fallback second failed too: Overloaded."
        " second was called 4 times within one second.\n\n"
    )


@pytest.mark.parametrize("recovery", ["retry", "continue"])
async def test_a_fallback_is_asked_after_too_many_interruptions(harness: Harness, recovery: RecoveryPolicy) -> None:
    half: list[Step] = [*list(message_of(text("It is "), text("never")))[:-4], DOWN]
    models = {"first": ScriptedProvider(lambda _: half), "second": ScriptedProvider([message_of(text("the sea."))])}
    policy = with_model(POLICY, fallbacks=lambda _: ["second"])
    limits = replace(Limits(max_recoveries=1), recovery=recovery)
    async with harness.replica(models.__getitem__, policy=policy) as replica:
        turn = await harness.finish(replica, await harness.ask(model="first", limits=limits))
    assert turn.status == "complete"
    assert texts_of(turn)[-1] == "the sea."
    assert FALLBACK_MODEL in [item.what for item in degraded(turn)]


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (lambda: calls_then([DOWN]), {"tools": [look], "limits": FAIL}),
        (lambda: calls_then([DOWN], call="fall"), {"tools": [fall]}),
        (lambda: ScriptedProvider(lambda _: [DOWN]), {"tools": [look]}),
        (lambda: calls_then([DOWN]), {"tools": [look], "output": OutputSpec('{"type":"object"}')}),
    ],
    ids=["switched off", "only errors", "nothing but the question", "structured"],
)
async def test_without_an_answer_to_make_the_turn_fails(
    harness: Harness, model: Callable[[], ScriptedProvider], options: dict[str, object]
) -> None:
    async with harness.replica(model(), [look, fall]) as replica:
        turn = await harness.finish(replica, await harness.ask(**options))  # type: ignore[arg-type]
    assert (turn.status, turn.stop_reason) == ("error", "error")
    assert turn.error is not None
    assert turn.error.type == "overloaded_error"
