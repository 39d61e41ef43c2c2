"""Plays each recorded stream of Responses to the real SDK client, rebuilds each session, and classifies each error."""

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from itertools import cycle, repeat
from random import Random
from typing import Any

import pytest

from tests.extensions.openai.test_recordings_openai import assert_sorted
from tests.integration import recordings
from tests.integration.adapters import Talk, talking
from tests.integration.recordings import (
    Heard,
    Json,
    errors_of_others,
    manifest,
    needs_recordings,
    read,
    recorded_error,
    reply_by,
    rounds_of,
    sessions,
    streams,
    taken_in,
)
from tests.support.canned import Answer
from tests.support.legal.responses import request_problems
from turnstream.domain.blocks import Block
from turnstream.domain.errors import PermanentError
from turnstream.extensions.openai.responses.render import render
from turnstream.extensions.openai.responses.wire import STOP_REASONS, ResponsesWire
from turnstream.extensions.openai.usage import usage_of
from turnstream.llm.provider import Message, ModelRequest

pytestmark = needs_recordings

KIND = "openai-responses"
STREAMS = streams(KIND)
FAILED = "openai-responses/prism-stream-rate-limited-1.sse"
# Streams whose last event contradicts the earlier events. Our readers keep the content of the earlier events.
NEW_IDS = (  # The last event has another id for a thought.
    "openai-responses/vercel-openai-github-copilot-id-rotation-1.sse",
    "openai-responses/pydai-openai-responses-raw-cot-stream-openrouter.sse",
    "sessions/resp-rig-copilot-reasoning-roundtrip-streaming/",
)
OTHER_ORDER = (
    "openai-responses/vercel-xai-x-search-tool.sse",
    "openai-responses/pydai-openai-responses-openai-responses-model-mcp-list-tools-stream-backfills",
)
OTHER_TEXT = ("openai-responses/vercel-openai-shell-container-1.sse",)
# The plain values of an item, or of the block for this item.
Plain = tuple[Any, ...]


@pytest.fixture
async def talk() -> AsyncIterator[Talk]:
    async with talking(KIND) as talk:
        yield talk


def events(file: str) -> list[Json]:
    """Returns the events of the first response in a stream."""
    found: list[Json] = []
    for event in recordings.events(read(file)):
        found.append(event)
        if event.get("type") in {"response.completed", "response.incomplete"}:
            break
    return found


def right(file: str) -> list[Plain]:
    """Returns the result that the SDK has for a stream. If the SDK raises an error or has no result, returns the final
    forms of the items.
    """
    sdk = recordings.oracles(file)["responses"]
    done = [event["item"] for event in events(file) if event["type"] == "response.output_item.done"]
    output = sdk["response"]["output"] if sdk["ok"] else []
    return [plain for item in output or done for plain in plain_item(item)]


def has_failed(file: str) -> bool:
    return any(event["type"] in {"response.failed", "error"} for event in events(file))


def plain_item(item: Json) -> Iterator[Plain]:
    match item["type"]:
        case "message":
            for piece in item["content"]:
                if text := piece.get("text") or piece.get("refusal"):
                    yield "text", text, piece.get("annotations") or []
        case "reasoning":
            pieces = [*(item.get("summary") or ()), *(item.get("content") or ())]
            yield "thought", item["id"], "\n\n".join(piece["text"] for piece in pieces)
        case "function_call":
            yield "call", item["call_id"], item["name"], item["arguments"]
        case "custom_tool_call":
            yield "call", item["call_id"], item["name"], json.dumps({"input": item["input"]}, separators=(",", ":"))
        case type:
            yield "item", type, item["id"]


def plain_block(block: Block) -> Iterator[Plain]:
    data = json.loads(block.data or "{}")
    match block.type:
        case "text":
            yield "text", block.text, data.get("annotations") or []
        case "thinking":
            yield "thought", data["item"]["id"], block.text
        case "tool_use":
            yield "call", block.tool_use_id, block.name, block.text
        case _ if "id" in data.get("item", {}):
            yield from plain_item(data["item"])
        case _:
            assert block.type == "server_tool_use"
            assert json.loads(block.text)


def plain_blocks(blocks: Sequence[Block]) -> list[Plain]:
    assert not any(block.interrupted for block in blocks)
    return [plain for block in blocks for plain in plain_block(block)]


def comparable(file: str, said: Sequence[Plain]) -> Sequence[Plain]:
    """Returns the values on which all events of the stream agree."""
    if file.startswith(NEW_IDS):
        return [(plain[0], *plain[2:]) if plain[0] == "thought" else plain for plain in said]
    if file.startswith(OTHER_TEXT):
        return [plain for plain in said if plain[0] != "text"]
    return sorted(said) if file.startswith(OTHER_ORDER) else said


def stop_reason_of(response: Json, blocks: Sequence[Block]) -> str:
    if response["status"] == "incomplete":
        return STOP_REASONS[response["incomplete_details"]["reason"]]
    return "tool_use" if any(block.is_call for block in blocks) else "end_turn"


@pytest.mark.parametrize("file", STREAMS)
async def test_a_recorded_stream_gives_the_result_of_the_sdk_or_the_correct_one(file: str, talk: Talk) -> None:
    talk.server.answer = Answer(read(file), sizes=Random(file).choices([20, 200, 2_000, 20_000], k=20))
    heard = await Heard().listen(talk.provider)
    said = plain_blocks(heard.blocks)
    assert comparable(file, said) == comparable(file, right(file))
    assert heard.accumulator.unknown == []
    if has_failed(file):
        assert heard.error is not None
        assert not heard.accumulator.ended
    if file == FAILED:
        assert heard.error is not None
        assert (type(heard.error), heard.error.type) == (PermanentError, "rate_limit_exceeded")
        assert heard.error.message.startswith("Request too large for gpt-4o")
        assert heard.error.request_id == "resp_6867f1cae59481a0a6d8b23d1b93e4aa02dfa4dca8f6376f"
    if has_failed(file):
        return
    assert heard.error is None
    assert heard.accumulator.ended
    response = events(file)[-1]["response"]
    reason = "refusal" if "refusal" in file else stop_reason_of(response, heard.blocks)
    assert heard.accumulator.stop_reason == reason
    assert heard.accumulator.usage == usage_of(response["usage"])
    assert heard.accumulator.request_id == events(file)[0]["response"]["id"]


@pytest.mark.parametrize("file", STREAMS)
def test_the_figures_of_a_recorded_stream_add_up_to_those_of_its_provider(file: str) -> None:
    usage = taken_in(ResponsesWire(), read(file), repeat(100_000))[2]
    assert isinstance(usage, Mapping)
    said = events(file)[-1].get("response", {}).get("usage") or {}
    asked = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert sum(usage.get(name, 0) for name in asked) == said.get("input_tokens", 0)
    assert usage.get("output_tokens", 0) == said.get("output_tokens", 0)
    thought = usage.get("output_tokens_details", {}).get("thinking_tokens", 0)
    assert thought == said.get("output_tokens_details", {}).get("reasoning_tokens", 0)


@pytest.mark.parametrize("file", STREAMS)
def test_the_parts_do_not_depend_on_the_cuts_of_the_network(file: str) -> None:
    body = read(file)
    whole = taken_in(ResponsesWire(), body, repeat(len(body)))
    for sizes in (repeat(1 if len(body) < 6_000 else 7), cycle(Random(file).choices([1, 2, 40, 400], k=50))):
        assert taken_in(ResponsesWire(), body, sizes) == whole


def test_every_exception_is_one_of_the_recordings() -> None:
    for name in (*NEW_IDS, *OTHER_ORDER, *OTHER_TEXT):
        assert any(file.startswith(name) for file in STREAMS), name


@pytest.mark.parametrize("file", [file for file in STREAMS if events(file)[-1].get("response", {}).get("output")])
def test_a_response_that_only_its_last_event_tells_of_is_the_same(file: str) -> None:
    """Servers differ in the parts that they stream, but the last event contains all parts."""
    streamed, *rest = taken_in(ResponsesWire(), read(file), repeat(100_000))
    last = b"data: " + json.dumps(events(file)[-1]).encode() + b"\n\n"
    alone, *same = taken_in(ResponsesWire(), last, repeat(100_000))
    assert isinstance(streamed, list)
    assert isinstance(alone, list)
    assert comparable(file, plain_blocks(alone)) == comparable(file, plain_blocks(streamed))
    assert same == rest


# --- sessions ------------------------------------------------------------------------------------------------


def raw_items(stream: bytes) -> Iterator[bytes]:
    """Returns the final form of each item, as the server sent it."""
    for line in stream.splitlines():
        if b'"response.output_item.done"' in line and line.startswith(b"data:"):
            _, _, after = line.partition(b'"item":')
            after = after.lstrip()
            _, end = json.JSONDecoder().raw_decode(after.decode())
            yield after.decode()[:end].encode()


def said_by_client(name: str, number: int) -> list[Plain]:
    asked = json.loads(read(f"sessions/{name}/{number:02}-request.json"))["input"]
    said = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    return [sent_item(item) for item in said if item.get("role") not in {"system", "developer"}]


def sent_item(item: Json) -> Plain:
    """Returns an item without meaningless members, and without members that refer to the provider's store."""
    match item.get("type", "message"):
        case "message":
            return item["role"], _words(item["content"])
        case "function_call":
            return "call", item["call_id"], item["name"], json.loads(item["arguments"]), item.get("namespace")
        case "custom_tool_call":
            return "call", item["call_id"], item["name"], item["input"], None
        case "function_call_output" | "custom_tool_call_output":
            return "result", item["call_id"], item["output"]
        case "reasoning":
            return "reasoning", item["id"], item["summary"], item.get("encrypted_content")
        case type:
            return "item", type, item.get("id")


def _words(content: str | Sequence[Json]) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def is_edited(name: str) -> bool:
    """Returns True if the client changed items before it sent them back. Our adapter sends the original items."""
    last = rounds_of(name)
    replies = [read(f"sessions/{name}/{number:02}-response.sse") for number in range(1, last)]
    received = [sent_item(json.loads(raw)) for reply in replies for raw in raw_items(reply)]
    return received != [item for item in said_by_client(name, last) if item[0] not in {"user", "result"}]


def without_stored(items: Iterable[Plain]) -> list[Plain]:
    """Omits thoughts that only the provider has stored, because our requests ask the provider to store nothing."""
    return [item for item in items if item[0] != "reasoning" or item[3] is not None]


UNEDITED = [name for name in sessions(KIND) if not is_edited(name)]


@pytest.mark.parametrize("name", UNEDITED)
def test_a_recorded_session_is_sent_back_with_the_items_its_client_sent(name: str) -> None:
    asked = [said_by_client(name, number) for number in range(1, rounds_of(name) + 1)]
    messages = [Message("user", (_text(asked[0][0][1]),))]
    before: list[Json] = []
    for number in range(1, rounds_of(name) + 1):
        body = json.loads(render(ModelRequest("gpt-6-sol", tuple(messages))))
        assert request_problems(body) == []
        assert body["input"][: len(before)] == before
        before = body["input"]
        assert without_stored(map(sent_item, before)) == without_stored(asked[number - 1])
        if number < rounds_of(name):
            reply = reply_by(ResponsesWire(), name, number)[0]
            messages += [Message("assistant", tuple(reply)), following(asked[number])]


@pytest.mark.parametrize("name", [name for name, one in manifest()["sessions"].items() if one["kind"] == KIND])
def test_every_reply_of_a_session_goes_back_with_its_opaque_items_byte_for_byte(name: str) -> None:
    said: list[Message] = [Message("user", (_text("Hello"),))]
    for number in range(1, rounds_of(name) + 1):
        blocks = reply_by(ResponsesWire(), name, number)[0]
        results = [
            Block(0, 0, 1, "tool_result", "seen", tool_use_id=block.tool_use_id) for block in blocks if block.is_call
        ]
        said += [Message("assistant", tuple(blocks)), Message("user", tuple(results) or (_text("Go on"),))]
        body = render(ModelRequest("gpt-6-sol", tuple(said), params={"store": True}))
        assert request_problems(json.loads(body)) == []
        for raw in raw_items(read(f"sessions/{name}/{number:02}-response.sse")):
            if is_opaque(json.loads(raw)):
                assert raw in body


def is_opaque(item: Json) -> bool:
    """Returns False for messages and calls, which requests render again, and for a tool search that the client must
    run.
    """
    return item["type"] not in {"message", "function_call", "custom_tool_call"} and item.get("execution") != "client"


def _text(words: str) -> Block:
    return Block(0, 0, 1, "text", words)


def following(asked: Sequence[Plain]) -> Message:
    """Returns the user's items that end a request."""
    results = [Block(0, 0, 1, "tool_result", said, tool_use_id=id) for kind, id, said in _last(asked, "result")]
    words = [_text(said) for _, said in _last(asked, "user")]
    return Message("user", (*results, *words))


def _last(asked: Sequence[Plain], kind: str) -> list[Plain]:
    found: list[Plain] = []
    for item in reversed(asked):
        if item[0] != kind:
            break
        found.insert(0, item)
    return found


# --- errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", errors_of_others())
async def test_a_recorded_error_is_sorted_as_chat_completions_has_it(file: str, talk: Talk) -> None:
    recorded, talk.server.answer = recorded_error(file)
    error = (await Heard().listen(talk.provider)).error
    assert error is not None
    assert_sorted(error, file, recorded["status"])
    said = recorded["body"].encode().decode("unicode_escape")
    # the name of the gateway's provider may precede the message
    assert error.message in said or error.message.partition(": ")[2] in said
    assert error.request_id == talk.server.answer.headers.get("x-request-id")
