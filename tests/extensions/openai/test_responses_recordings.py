"""Every recorded Responses stream through the real SDK client, every session rebuilt, every error sorted."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
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
FAILED = "openai-responses/prism-stream-rate-limited-1.sse"
# Four responses in one file; the first of them is the answer.
SPLICED = "openai-responses/vercel-openai-reasoning-encrypted-content-1.sse"
COPILOT = "sessions/resp-rig-copilot-reasoning-roundtrip-streaming/"
# Streams for which the SDK raises or is wrong; the final forms of the items are correct there.
EXCEPTIONS = {
    SPLICED: "the SDK raises on the second response",
    "openai-responses/langchain-incomplete-response-1.sse": "it was cut by its length, on which the SDK raises",
    "openai-responses/rig-reasoning-session-two-tool-calls-streaming.sse": "the last event says that there is none",
    "openai-responses/rig-tool-call-completed-response-without-output.sse": "the last event says that there is none",
    f"{COPILOT}01-response.sse": "the ids of items change from event to event, on which the SDK raises",
    f"{COPILOT}02-response.sse": "the ids of items change from event to event, on which the SDK raises",
}
# Of the folder that is named. Those in the folders beside it are not compared yet.
STREAMS = [file for file in streams(KIND) if (recordings.FOLDER / file).exists()]
SESSIONS = [
    name
    for name, one in manifest()["sessions"].items()
    if one["kind"] == KIND and (recordings.FOLDER / "sessions" / name).exists()
]
# An item as plain values, the form of its block too.
Plain = tuple[Any, ...]


@pytest.fixture
async def talk() -> AsyncIterator[Talk]:
    async with talking(KIND) as talk:
        yield talk


def events(file: str) -> list[Json]:
    """Of the first response in a stream."""
    found: list[Json] = []
    for event in recordings.events(read(file)):
        found.append(event)
        if event.get("type") in {"response.completed", "response.incomplete"}:
            break
    return found


def right(file: str) -> list[Plain]:
    """The SDK's result for a stream, or the final forms of its items where the SDK raises or is wrong."""
    sdk = recordings.oracles(file)["responses"]
    done = [event["item"] for event in events(file) if event["type"] == "response.output_item.done"]
    assert sdk["ok"] or file in {FAILED, *EXCEPTIONS}
    output = done if file in EXCEPTIONS else sdk["response"]["output"] if sdk["ok"] else []
    return [plain for item in output for plain in plain_item(item)]


def plain_item(item: Json) -> Iterator[Plain]:
    match item["type"]:
        case "message":
            for piece in item["content"]:
                yield "text", piece.get("text") or piece["refusal"], piece.get("annotations") or []
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
        case _ if "item" in data:
            yield "item", data["item"]["type"], data["item"]["id"]
        case _:
            assert block.type == "server_tool_use"
            assert json.loads(block.text)


def plain_blocks(blocks: Sequence[Block]) -> list[Plain]:
    assert not any(block.interrupted for block in blocks)
    return [plain for block in blocks for plain in plain_block(block)]


def but_for_ids(file: str, said: Sequence[Plain]) -> list[Plain]:
    """Copilot gives a thought another id in each event."""
    return [(plain[0], *plain[2:]) if file.startswith(COPILOT) and plain[0] == "thought" else plain for plain in said]


def stop_reason_of(response: Json, said: Sequence[Plain]) -> str:
    if response["status"] == "incomplete":
        return STOP_REASONS[response["incomplete_details"]["reason"]]
    return "tool_use" if any(plain[0] == "call" for plain in said) else "end_turn"


@pytest.mark.parametrize("file", STREAMS)
async def test_a_recorded_stream_gives_what_the_sdk_makes_of_it_or_what_is_right(file: str, talk: Talk) -> None:
    talk.server.answer = Answer(read(file), sizes=Random(file).choices([20, 200, 2_000, 20_000], k=20))
    heard = await Heard().listen(talk.provider)
    said = plain_blocks(heard.blocks)
    assert but_for_ids(file, said) == but_for_ids(file, right(file))
    assert heard.accumulator.unknown == []
    if file == FAILED:
        assert heard.error is not None
        assert (type(heard.error), heard.error.type) == (PermanentError, "rate_limit_exceeded")
        assert heard.error.message.startswith("Request too large for gpt-4o")
        assert heard.error.request_id == "resp_6867f1cae59481a0a6d8b23d1b93e4aa02dfa4dca8f6376f"
        assert not heard.accumulator.ended
        return
    assert heard.error is None
    assert heard.accumulator.ended
    response = events(file)[-1]["response"]
    reason = "refusal" if "refusal" in file else stop_reason_of(response, said)
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


def test_every_exception_is_one_of_the_recordings_and_the_sdk_is_wrong_there() -> None:
    assert {*STREAMS} > EXCEPTIONS.keys()
    for file in EXCEPTIONS:
        sdk = recordings.oracles(file)["responses"]
        assert not sdk["ok"] or not sdk["response"]["output"]


@pytest.mark.parametrize("file", [file for file in STREAMS if events(file)[-1].get("response", {}).get("output")])
def test_a_response_that_only_its_last_event_tells_of_is_the_same(file: str) -> None:
    """Servers stream different parts; the final event has all of them."""
    streamed, *rest = taken_in(ResponsesWire(), read(file), repeat(100_000))
    last = b"data: " + json.dumps(events(file)[-1]).encode() + b"\n\n"
    alone, *same = taken_in(ResponsesWire(), last, repeat(100_000))
    assert isinstance(streamed, list)
    assert isinstance(alone, list)
    assert but_for_ids(file, plain_blocks(alone)) == but_for_ids(file, plain_blocks(streamed))
    assert same == rest


# --- sessions ------------------------------------------------------------------------------------------------

# Changes that the recorded client made when it sent items back; we send the original.
RENAMED_IDS = "resp-pydai-reused-tool-call-ids-stream"
# xAI's thought is kept by its id alone, which we leave out: we ask for nothing to be stored.
STORED_THOUGHTS = "resp-rig-permission-control-streaming-example"
# The client left the thought out.
FORGOTTEN_THOUGHTS = "resp-fantasy-testazureresponsescommon-azure-o4-mini-tool-streaming"


@pytest.mark.parametrize("name", [name for name in sessions(KIND) if name in SESSIONS])
def test_a_recorded_session_is_sent_back_with_the_items_its_client_sent(name: str) -> None:
    asked = [said_by_client(name, number) for number in range(1, rounds_of(name) + 1)]
    messages = [Message("user", (_text(asked[0][0][1]),))]
    before: list[Json] = []
    for number in range(1, rounds_of(name) + 1):
        body = json.loads(render(ModelRequest("gpt-6-sol", tuple(messages))))
        assert request_problems(body) == []
        assert body["input"][: len(before)] == before
        before = body["input"]
        sent, recorded = [sent_item(item) for item in before], asked[number - 1]
        if name == STORED_THOUGHTS:
            recorded = [item for item in recorded if item[0] != "reasoning"]
        if name == FORGOTTEN_THOUGHTS:
            sent = [item for item in sent if item[0] != "reasoning"]
        assert sent == recorded
        if number < rounds_of(name):
            reply = reply_by(ResponsesWire(), name, number)[0]
            messages += [Message("assistant", tuple(reply)), following(asked[number])]


@pytest.mark.parametrize("name", SESSIONS)
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
            if json.loads(raw)["type"] not in {"message", "function_call"}:
                assert raw in body


def raw_items(stream: bytes) -> Iterator[bytes]:
    """Items at their ends, as they came."""
    for line in stream.splitlines():
        if b'"response.output_item.done"' in line and line.startswith(b"data:"):
            _, _, after = line.partition(b'"item":')
            after = after.lstrip()
            _, end = json.JSONDecoder().raw_decode(after.decode())
            yield after.decode()[:end].encode()


def said_by_client(name: str, number: int) -> list[Plain]:
    asked = json.loads(read(f"sessions/{name}/{number:02}-request.json"))["input"]
    said = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    items = [sent_item(item) for item in said if item.get("role") not in {"system", "developer"}]
    return [_with_own_id(item) for item in items] if name == RENAMED_IDS else items


def _with_own_id(item: Plain) -> Plain:
    """The client put the id of the response before that of the call."""
    return tuple(part.rpartition(":")[2] if isinstance(part, str) else part for part in item)


def sent_item(item: Json) -> Plain:
    """An item without members of no meaning, and without those for a store at the provider."""
    match item.get("type", "message"):
        case "message":
            return item["role"], _words(item["content"])
        case "function_call":
            return "call", item["call_id"], item["name"], json.loads(item["arguments"]), item.get("namespace")
        case "function_call_output":
            return "result", item["call_id"], item["output"]
        case "reasoning":
            return "reasoning", item["id"], item["summary"], item.get("encrypted_content")
        case type:
            return "item", type, item["id"]


def _words(content: str | Sequence[Json]) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _text(words: str) -> Block:
    return Block(0, 0, 1, "text", words)


def following(asked: Sequence[Plain]) -> Message:
    """The items of the user's side at the end of a request."""
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
    assert error.message in said or error.message.partition(": ")[2] in said  # behind the name of a gateway's provider
    assert error.request_id == talk.server.answer.headers.get("x-request-id")
