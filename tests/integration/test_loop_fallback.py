"""The loop when a model is down and another stands in for it."""

from collections.abc import Sequence

import pytest

from app.domain.degraded import FALLBACK_MODEL, degraded
from app.domain.errors import PermanentError, TransientError
from app.llm.provider import ModelRequest, Provider
from app.llm.scripted import ScriptedProvider, message_of, text, thinking, tool_use
from app.tools.tool import tool
from tests.support.harness import POLICY, QUICK, Harness, results_of, texts_of, with_model

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


async def test_the_error_is_the_last_ones_when_all_are_down(harness: Harness) -> None:
    models = {"first": down(), "second": down(), "third": down()}
    async with harness.replica(models.__getitem__, policy=WITH_FALLBACKS) as replica:
        turn = await harness.finish(replica, await harness.ask(model="first"))
    assert turn.error is not None
    assert (turn.status, turn.error.type) == ("error", "overloaded_error")


async def test_a_model_that_refuses_is_not_stood_in_for(harness: Harness) -> None:
    refusal = PermanentError("invalid_request_error", "no")
    models: dict[str, Provider] = {"first": ScriptedProvider(lambda _: [refusal]), "second": down()}
    async with harness.replica(models.__getitem__, policy=WITH_FALLBACKS) as replica:
        turn = await harness.finish(replica, await harness.ask(model="first"))
    assert turn.error is not None
    assert turn.error.type == "invalid_request_error"


@pytest.mark.parametrize("thought", [True, False])
async def test_what_one_model_thought_is_not_told_to_another(harness: Harness, thought: bool) -> None:
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
