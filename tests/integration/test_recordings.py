"""Every recorded Anthropic stream through the real SDK client, and every recorded session rebuilt round by round."""

import json
import re
from collections.abc import AsyncIterator
from itertools import cycle, repeat
from random import Random

import pytest

from tests.integration.recordings import (
    Heard,
    Json,
    answer,
    asked,
    conversation,
    errors,
    events,
    hear,
    is_edited,
    is_one_chat,
    needs_recordings,
    oracle,
    path_of,
    plain,
    read,
    recorded_error,
    reply_by,
    rounds_of,
    running,
    sessions,
    streams,
    taken_in,
)
from tests.support.canned import Answer, CannedServer, canned_server
from tests.support.legal.anthropic import request_problems
from turnstream.domain.blocks import Block
from turnstream.domain.errors import AccountRefused, PermanentError, TooLong, TransientError
from turnstream.libraries.providers.anthropic.provider import AnthropicProvider
from turnstream.libraries.providers.anthropic.render import render, render_block
from turnstream.libraries.providers.anthropic.wire import AnthropicWire
from turnstream.llm.conversation.messages import build_messages
from turnstream.llm.provider import ModelRequest

pytestmark = needs_recordings

# Tool inputs that are truncated. The SDK shows a guess, or mixes the text of two blocks. This server keeps the streamed
# text and closes the block as interrupted, so that the block never becomes a call.
CUT_INPUTS = {
    "anthropic/composite-max-tokens-mid-tool-input-unclosed.sse": "max_tokens inside the input, block never closed",
    "anthropic/composite-overloaded-mid-tool-input.sse": "an error inside the input",
    "anthropic/composite-overloaded-after-server-tool.sse": "an error inside the input of a server tool",
    "anthropic/truncated-eof-mid-tool-input.sse": "the connection ended inside the input",
    "anthropic/vercel-spliced-message-start.sse": "a second message_start inside the input, its keys used again",
}


@pytest.fixture
async def server() -> AsyncIterator[CannedServer]:
    async with canned_server() as server:
        yield server


@pytest.fixture
async def provider(server: CannedServer) -> AsyncIterator[AnthropicProvider]:
    async with AnthropicProvider("a key", server.url) as provider:
        yield provider


def content_of(blocks: list[Block]) -> list[Json]:
    return [plain(json.loads(render_block(block))) for block in blocks]


@pytest.mark.parametrize("file", streams())
async def test_a_recorded_stream_gives_the_same_result_as_the_sdk(
    file: str, server: CannedServer, provider: AnthropicProvider
) -> None:
    server.answer = Answer(read(file), sizes=Random(file).choices([20, 200, 2_000, 20_000], k=20))
    heard = await Heard().listen(provider)
    sdk = oracle(file)
    has_failed = any("error" in event for event in events(read(file)))
    assert (heard.error is not None) == has_failed
    assert heard.accumulator.unknown == []
    message = sdk.get("message") or sdk.get("partial_message")
    if message is None:
        assert has_failed or not sdk["ok"]
        return
    if not sdk["ok"] and not has_failed:  # the SDK itself gave up
        content = message["content"][:-1]
        assert content_of(heard.blocks)[: len(content)] == [plain(block) for block in content]
        return
    assert heard.accumulator.stop_reason == message["stop_reason"]
    assert heard.accumulator.usage == {k: v for k, v in message["usage"].items() if v is not None}
    if file not in CUT_INPUTS:
        said, expected = content_of(heard.blocks), [plain(block) for block in message["content"]]
        assert [_without_guess(*pair) for pair in zip(said, expected, strict=True)] == said


def _without_guess(said: Json, expected: Json) -> Json:
    """Returns the block of the SDK. For a truncated input the SDK shows a guess, which is replaced."""
    is_cut = "INVALID_JSON" in (said.get("input") or {})
    return {**expected, "input": said["input"]} if is_cut else expected


@pytest.mark.parametrize("file", CUT_INPUTS)
async def test_a_tool_input_that_was_cut_is_kept_as_it_came_and_is_never_a_call(
    file: str, server: CannedServer, provider: AnthropicProvider
) -> None:
    body = read(file)
    server.answer = Answer(body)
    heard = await Heard().listen(provider)
    cut = [block for block in heard.blocks if block.interrupted]
    assert len(cut) == 1
    assert cut[0].name
    assert not cut[0].is_call
    fragments = [json.loads(line[6:])["delta"].get("partial_json", "") for line in deltas(body)]
    assert cut[0].text
    assert cut[0].text in "".join(fragments)
    with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
        json.loads(cut[0].text)


async def test_after_a_second_message_start_the_blocks_of_both_messages_stay_apart(
    server: CannedServer, provider: AnthropicProvider
) -> None:
    server.answer = Answer(read("anthropic/vercel-spliced-message-start.sse"))
    blocks = (await Heard().listen(provider)).blocks
    assert [(block.type, block.text, block.interrupted) for block in blocks] == [
        ("thinking", "I will call the tool.", False),
        ("tool_use", '{"value":"Spark', True),
        ("thinking", "Let me call the tool.", False),
        ("tool_use", '{"value":"Sparkle Day"}', False),
    ]


def deltas(body: bytes) -> list[bytes]:
    return [line for line in body.splitlines() if line.startswith(b'data: {"type":"content_block_delta"')]


@pytest.mark.parametrize("file", streams())
def test_a_recorded_stream_means_the_same_however_it_is_cut_and_framed(file: str) -> None:
    body = read(file)
    whole = taken_in(AnthropicWire(), body, repeat(len(body)))
    sizes = Random(file)
    assert taken_in(AnthropicWire(), body, cycle([1] if len(body) < 10_000 else [7])) == whole
    assert taken_in(AnthropicWire(), body, iter(lambda: sizes.randint(1, 300), 0)) == whole
    assert taken_in(AnthropicWire(), body.replace(b"\n", b"\r\n"), cycle([1, 2, 30])) == whole
    assert taken_in(AnthropicWire(), body.replace(b"\n", b"\r"), cycle([7])) == whole
    assert taken_in(AnthropicWire(), body.replace(b"data: ", b": a comment\ndata:"), cycle([11])) == whole


@pytest.mark.parametrize("name", [name for name in sessions() if is_one_chat(name)])
def test_a_recorded_session_is_sent_back_byte_for_byte(name: str) -> None:
    path = path_of(conversation(asked(name, 1)["messages"]))
    before: list[tuple[str, list[Json]]] = []
    for number in range(1, rounds_of(name) + 1):
        recorded = conversation(asked(name, number)["messages"])
        if number > 1 and recorded[-1][0] == "user":  # otherwise the provider continues its own answer
            hear(path, recorded[-1][1])
        path = running(path)
        container = asked(name, number).get("container")
        params = {"max_tokens": 100, **({"container": container} if container else {})}
        request = ModelRequest("claude-opus-5-5", build_messages(path), params=params)
        body = json.loads(render(request))
        sent = conversation(body["messages"])
        assert request_problems(body, paused=recorded[-1][0] == "assistant") == []
        assert sent[: len(before) - 1] == before[:-1]
        if number > 1 and is_edited(name):
            assert [role for role, _ in sent] == [role for role, _ in recorded]
            assert sent[-1] == recorded[-1] or recorded[-1][0] == "assistant"
        else:
            assert sent == recorded
        before = sent
        path = answer(path, *reply_of(name, number))


@pytest.mark.parametrize("name", sessions())
def test_a_reply_of_a_recorded_session_goes_back_block_by_block_unchanged(name: str) -> None:
    followed = range(1, rounds_of(name))
    assert followed, "a session of one round shows nothing"
    for number in followed:
        blocks, stop_reason = reply_of(name, number)
        path = running([*answer(path_of([("user", [{"type": "text", "text": "Hello"}])]), blocks, stop_reason)])
        sent = conversation(json.loads(render(ModelRequest("m", build_messages(path))))["messages"])
        said = oracle(f"sessions/{name}/{number:02}-response.sse")["message"]["content"]
        assert sent[1] == ("assistant", [plain(block) for block in said])


def reply_of(name: str, number: int) -> tuple[list[Block], str | None]:
    return reply_by(AnthropicWire(), name, number)


TOO_LONG = re.compile("context window|prompt is too long|exceeds the maximum size")
TRANSIENT_STATUSES = {408, 409, 429, 500, 502, 503, 504, 529}


@pytest.mark.parametrize("file", errors())
async def test_a_recorded_error_is_transient_or_permanent_and_has_the_text_of_the_provider(
    file: str, server: CannedServer, provider: AnthropicProvider
) -> None:
    recorded, server.answer = recorded_error(file)
    headers = server.answer.headers
    error = (await Heard().listen(provider)).error
    body = recorded.get("body_json") or {}
    nameless = f"http_{recorded['status']}"
    told = body.get("error") or {"message": recorded["body"].strip()}
    lasting = AccountRefused if recorded["status"] == 401 else PermanentError
    lasting = TooLong if TOO_LONG.search(told["message"]) else lasting
    assert type(error) is (TransientError if recorded["status"] in TRANSIENT_STATUSES else lasting)
    assert error is not None
    assert error.type == ("context_length_exceeded" if lasting is TooLong else told.get("type", nameless))
    assert error.message == told["message"]
    assert error.request_id == (headers.get("request-id") or body.get("request_id"))
    assert error.retry_after == (float(headers["retry-after"]) if "retry-after" in headers else None)
