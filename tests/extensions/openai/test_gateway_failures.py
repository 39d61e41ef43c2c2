"""A gateway wraps the failures of a provider. The tests check the turn's reaction and the error text for users."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from tests.extensions.openai.test_openai_wire import DONE, chunk, frame, text
from tests.support.canned import Answer, Asked, CannedServer, served
from tests.support.harness import POLICY, QUICK, Harness, texts_of
from turnstream.domain.history import COMPACTED
from turnstream.domain.turns import Limits
from turnstream.extensions.openai.provider import OpenAIChatProvider
from turnstream.extensions.openai.quirks import QUIRKS

JSON = {"content-type": "application/json"}
OVERFLOW = {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 > 5 maximum"}}


def failed(raw: object, code: int, upstream: str) -> dict[str, object]:
    words = raw if isinstance(raw, str) else json.dumps(raw)
    return {"message": "Provider returned error", "code": code, "metadata": {"raw": words, "provider_name": upstream}}


@dataclass
class Gateway(CannedServer):
    """A gateway that refuses requests of more than `window` characters. Its first `busy` answers fail in mid-stream,
    with the error in the choice.
    """

    window: int = 1_000_000
    in_stream: bool = False
    busy: int = 0

    def answer_to(self, asked: Asked) -> Answer:
        size = sum(len(str(message["content"])) for message in json.loads(asked.body)["messages"])
        if size > self.window:
            body = {"error": failed(OVERFLOW, 400, "Anthropic"), "user_id": "u"}
            return Answer(frame(body)) if self.in_stream else Answer(json.dumps(body).encode(), 400, JSON)
        if self.busy:
            self.busy -= 1
            error = failed("m is temporarily rate-limited upstream.", 429, "BaseTen")
            choice = {"index": 0, "delta": {"content": ""}, "finish_reason": "error", "error": error}
            return Answer(frame({"choices": [choice]}) + DONE)
        words = "In short." if b"Write only the summary" in asked.body else "word " * 200
        return Answer(text(words) + chunk(finish="stop") + DONE)


@asynccontextmanager
async def behind(gateway: Gateway) -> AsyncIterator[OpenAIChatProvider]:
    async with served(gateway), OpenAIChatProvider("k", gateway.url, quirks=QUIRKS["openrouter"]) as provider:
        yield provider


@pytest.mark.parametrize("in_stream", [False, True])
async def test_a_wrapped_overflow_has_the_conversation_summarised(harness: Harness, in_stream: bool) -> None:
    gateway = Gateway(window=1_500, in_stream=in_stream)
    async with behind(gateway) as provider, harness.replica(provider) as replica:
        asked = await harness.ask()
        await harness.finish(replica, asked)
        asked = await harness.ask("x" * 600, after=asked)
        turn = await harness.finish(replica, asked)
    assert (turn.status, turn.stop_reason) == ("complete", "end_turn")
    assert [round.stop_reason for round in turn.rounds if round.sealed] == [COMPACTED, "end_turn"]


async def test_a_wrapped_overload_is_tried_again(harness: Harness) -> None:
    async with behind(Gateway(busy=2)) as provider, harness.replica(provider) as replica:
        turn = await harness.finish(replica, await harness.ask())
    assert turn.status == "complete"
    assert texts_of(turn) == ["word " * 200]


async def test_people_read_the_error_of_the_provider_behind_the_gateway(harness: Harness) -> None:
    policy = replace(POLICY, model=replace(POLICY.model, retries=replace(QUICK, most=1)))
    async with behind(Gateway(busy=99)) as provider, harness.replica(provider, policy=policy) as replica:
        turn = await harness.finish(replica, await harness.ask(limits=Limits(max_recoveries=0)))
    assert turn.error is not None
    assert (turn.error.type, turn.error.message) == (
        "http_429",
        "BaseTen: m is temporarily rate-limited upstream. scripted was called 2 times within one second.",
    )


@dataclass
class Portal(Gateway):
    """A gateway that answers its first `pages` requests with a log-in page."""

    pages: int = 1

    def answer_to(self, asked: Asked) -> Answer:
        self.pages -= 1
        if self.pages >= 0:
            return Answer(b"<html><title>Log in</title></html>", 200, {"content-type": "text/html"})
        return super().answer_to(asked)


async def test_a_page_with_status_200_is_tried_again(harness: Harness) -> None:
    async with behind(Portal(pages=2)) as provider, harness.replica(provider) as replica:
        turn = await harness.finish(replica, await harness.ask())
    assert (turn.status, texts_of(turn)) == ("complete", ["word " * 200])


async def test_a_page_with_status_200_is_never_an_empty_answer(harness: Harness) -> None:
    policy = replace(POLICY, model=replace(POLICY.model, retries=replace(QUICK, most=1)))
    async with behind(Portal(pages=99)) as provider, harness.replica(provider, policy=policy) as replica:
        turn = await harness.finish(replica, await harness.ask(limits=Limits(max_recoveries=0)))
    assert turn.error is not None
    assert (turn.error.type, turn.status) == ("bad_content_type", "error")
    assert "a page of HTML: Log in." in turn.error.message
