"""The loop when a model fails and a fallback answers instead."""

from collections.abc import Sequence

import pytest

from tests.support.harness import POLICY, QUICK, Harness, results_of, texts_of, with_model
from turnstream.domain.degraded import FALLBACK_MODEL, degraded
from turnstream.domain.errors import PermanentError, TransientError
from turnstream.llm.provider import ModelRequest, Provider
from turnstream.scripted import ScriptedProvider, message_of, text, thinking, tool_use
from turnstream.tools.tool import tool

DOWN = TransientError("overloaded_error", "Overloaded", request_id="req_1")
FALLBACKS = {"first": ("second", "third")}


@tool()
async def look() -> str:
    """Look."""
    return "seen"


def fallbacks(model: str) -> Sequence[str]:
    return FALLBACKS.get(model, ())


WITH_FALLBACKS = with_model(POLICY, fallbacks=fallbacks)


def down() -> ScriptedProvider:
    return ScriptedProvider(lambda _: [DOWN])


async def test_a_model_that_stays_down_is_stood_in_for(harness: Harness) -> None:
    models = {"first": down(), "second": down(), "third": ScriptedProvider([message_of(text("I am here."))])}
    async with harness.replica(models.__getitem__, policy=WITH_FALLBACKS) as replica:
        turn = await harness.finish(replica, await harness.ask(model="first"))
    assert (turn.status, texts_of(turn)) == ("complete", ["I am here."])
    assert [round.model for round in turn.rounds] == ["third"]
    assert [item.what for item in degraded(turn)] == [FALLBACK_MODEL]
    assert len(models["first"].requests) == len(models["second"].requests) == QUICK.most + 1
    assert models["third"].requests[0].model == "third"


async def test_the_error_tells_of_all_models_when_all_are_down(harness: Harness) -> None:
    refusal = PermanentError("invalid_api_key", "The key is not valid")
    silent = TransientError("overloaded_error", "No.", retry_after=90)
    models = {
        "first": down(),
        "second": ScriptedProvider(lambda _: [silent]),
        "third": ScriptedProvider(lambda _: [refusal]),
    }
    async with harness.replica(models.__getitem__, policy=WITH_FALLBACKS) as replica:
        turn = await harness.finish(replica, await harness.ask(model="first"))
    assert turn.error is not None
    assert (turn.status, turn.error.type, turn.error.request_id) == ("error", "overloaded_error", "req_1")
    assert turn.error.message == (
        "Overloaded. first was called 4 times within one second."
        " Its fallback second failed too: No. The provider asks to wait 90 s."
        " Its fallback third failed too: The key is not valid."
    )


async def test_a_model_that_refuses_is_not_stood_in_for(harness: Harness) -> None:
    refusal = PermanentError("invalid_request_error", "no")
    models: dict[str, Provider] = {"first": ScriptedProvider(lambda _: [refusal]), "second": down()}
    async with harness.replica(models.__getitem__, policy=WITH_FALLBACKS) as replica:
        turn = await harness.finish(replica, await harness.ask(model="first"))
    assert turn.error is not None
    assert turn.error.type == "invalid_request_error"


@pytest.mark.parametrize("thought", [True, False])
async def test_thinking_of_one_model_is_not_sent_to_another(harness: Harness, thought: bool) -> None:
    blocks = [*([thinking("Hm")] if thought else []), text("Let me look."), tool_use("look", {}, "a")]
    replies = iter([message_of(*blocks)])

    def once(_: ModelRequest) -> object:
        return next(replies, [DOWN])

    models = {"first": ScriptedProvider(once), "second": ScriptedProvider([message_of(text("Seen."))])}  # type: ignore[arg-type]
    async with harness.replica(models.__getitem__, [look], policy=WITH_FALLBACKS) as replica:
        turn = await harness.finish(replica, await harness.ask(model="first", tools=[look]))
    assert [round.model for round in turn.rounds] == ["first", "second"]
    assert results_of(turn)["a"].text == "seen"
    sent = models["second"].requests[0].messages[1].blocks
    assert [block.type for block in sent] == ["text", "tool_use"]


# --- breakers --------------------------------------------------------------------------------------------------------

BREAKING = with_model(POLICY, fallbacks=fallbacks, breaker=QUICK.most + 1, breaker_pause=60.0)


async def test_the_fallback_of_a_model_that_keeps_failing_is_called_at_once(harness: Harness) -> None:
    models = {"first": down(), "second": ScriptedProvider(lambda _: message_of(text("Here.")))}
    async with harness.replica(models.__getitem__, policy=BREAKING) as replica:
        turns = [await harness.finish(replica, await harness.ask(model="first")) for _ in range(3)]
        direct = await harness.finish(replica, await harness.ask(model="second"))
    assert [turn.status for turn in (*turns, direct)] == ["complete"] * 4
    assert all([item.what for item in degraded(turn)] == [FALLBACK_MODEL] for turn in turns)
    assert len(models["first"].requests) == QUICK.most + 1, "by the first turn alone"
    assert len(models["second"].requests) == 4


async def test_after_the_pause_one_call_tries_the_model_again(harness: Harness) -> None:
    policy = with_model(BREAKING, breaker_pause=0.0)
    replies = iter([[DOWN]] * (QUICK.most + 1))
    models = {
        "first": ScriptedProvider(lambda _: next(replies, None) or message_of(text("Back."))),
        "second": ScriptedProvider(lambda _: message_of(text("Here."))),
    }
    async with harness.replica(models.__getitem__, policy=policy) as replica:
        turns = [await harness.finish(replica, await harness.ask(model="first")) for _ in range(3)]
    assert [texts_of(turn) for turn in turns] == [["Here."], ["Back."], ["Back."]]


async def test_a_model_without_a_fallback_is_called_although_its_breaker_is_open(harness: Harness) -> None:
    replies = iter([[DOWN]] * 2 * (QUICK.most + 1))
    provider = ScriptedProvider(lambda _: next(replies, None) or message_of(text("Back.")))
    async with harness.replica(provider, policy=with_model(BREAKING, fallbacks=lambda _: ())) as replica:
        turns = [await harness.finish(replica, await harness.ask()) for _ in range(3)]
    assert [turn.status for turn in turns] == ["error", "error", "complete"]


async def test_an_error_names_the_models_that_were_not_called(harness: Harness) -> None:
    models = {"first": down(), "second": ScriptedProvider(lambda _: message_of(text("Here."))), "third": down()}
    async with harness.replica(models.__getitem__, policy=BREAKING) as replica:
        await harness.finish(replica, await harness.ask(model="first"))
        models["second"] = ScriptedProvider(lambda _: [PermanentError("gone", "It is gone")])
        turn = await harness.finish(replica, await harness.ask(model="first"))
    assert turn.error is not None
    assert turn.error.type == "gone"
    assert turn.error.message == (
        "first was not called, because its last calls had failed. Its fallback second failed too: It is gone."
    )
