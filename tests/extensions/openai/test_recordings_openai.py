"""Plays each recorded stream of Chat Completions to the real SDK client, rebuilds each session, and classifies each
error.
"""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import cycle, repeat
from random import Random
from typing import Any, NamedTuple

import pytest

from tests.integration.recordings import (
    Heard,
    Json,
    closed_blocks,
    errors_of_others,
    events,
    needs_recordings,
    oracles,
    read,
    recorded_error,
    reply_by,
    rounds_of,
    sessions,
    streams,
    taken_in,
)
from tests.support.canned import Answer, CannedServer, canned_server
from tests.support.legal.openai import request_problems
from turnstream.domain.blocks import Block
from turnstream.domain.errors import AccountRefused, PermanentError, ProviderError, TooLong, TransientError
from turnstream.extensions.openai.chat.render import render
from turnstream.extensions.openai.chat.wire import STOP_REASONS, ChatWire
from turnstream.extensions.openai.provider import OpenAIChatProvider
from turnstream.llm.accumulator import Accumulator
from turnstream.llm.provider import Message, ModelRequest

pytestmark = needs_recordings

CHAT = "openai-chat"
THOUGHTS = ("reasoning_content", "reasoning")


class Said(NamedTuple):
    """An answer in the form of Chat Completions, which has one text, one thought, and calls."""

    text: str
    thought: str
    calls: list[tuple[str | None, str | None, str]]


@dataclass(frozen=True)
class Right:
    """The expected result of a stream. A member that is None must equal the SDK's state before the SDK's error."""

    why: str
    text: str | None = None
    thought: str | None = None
    calls: Sequence[tuple[str, str, str]] | None = None


def weather(place: str, id: str) -> tuple[str, str, str]:
    return id, "get_weather", f'{{"location": "{place}"}}'


WRITER = "chatcmpl-tool-"
NO_TYPE = "the SDK gives up where a piece of a call has a null type or arguments, or comes with the reason to stop"
# The expected results for streams on which the SDK raises an error or is wrong. Streams whose answer reached its length
# limit are not listed if the SDK raises only for that reason: the SDK's state before the error is correct.
EXCEPTIONS = {
    "ddpy-azure-chat-completion-streamed": Right(
        "the delta is null",
        text="I'm unable to provide real-time weather updates. To find the current weather in New York City, I "
        "recommend checking a reliable weather website or app for the most accurate and up-to-date information.",
    ),
    "fantasy-testopenaicompatiblecommon-multi-tool-streaming-zai-glm-4-5": Right(
        NO_TYPE,
        text="\n\nI'll add and multiply the numbers 2 and 3 for you.\n",
        thought="The user wants me to add and multiply the numbers 2 and 3. I need to use both the add and ",
        calls=[
            ("call_45efa0f70be44aecae811210", "add", '{"a": 2, "b": 3}'),
            ("call_be460d113b7f48bea4bd9987", "multiply", '{"a": 2, "b": 3}'),
        ],
    ),
    "fantasy-testopenaicompatiblecommon-thinking-streaming-zai-glm-4-5": Right(
        NO_TYPE,
        text="\n\nI'll check the weather in Florence, Italy for you.\n",
        thought="The user is asking for the weather in Florence, Italy. I have access to a weather function",
        calls=[("call_db9178c4859a49d799521c00", "weather", '{"location": "Florence, Italy"}')],
    ),
    "fantasy-testopenaicompatiblecommon-tool-streaming-zai-glm-4-5": Right(
        NO_TYPE,
        text="\n\nI'll get the weather information for Florence, Italy for you.\n",
        thought="The user is asking for the weather in Florence, Italy. I have access to a weather function",
        calls=[("call_03cb5929634948f0b7806908", "weather", '{"location": "Florence,Italy"}')],
    ),
    "fantasy-testopenroutercommon-tool-streaming-kimi-k2-baseten": Right(
        "the id comes with every piece, and the SDK strings them together",
        calls=[("functions.weather:0", "weather", '{"location": "Florence,Italy"}')],
    ),
    "ollmetry-writer-async-streaming-chat-multiple-tool-call-requests-legacy": Right(
        NO_TYPE,
        calls=[
            weather("Zakopane", WRITER + "5ac885d9b1b54a66b11f014a1ecb5b9d"),
            weather("Warsaw", WRITER + "368eedfd835c4186b5cb97c69d803cf0"),
            weather("Lodz", WRITER + "af73f77676e3402e9e04a4f867552ddd"),
            weather("Katowice", WRITER + "e9d9b531d7954d789c1ccc21dbdd3be0"),
            weather("Krakow", WRITER + "a5155160b47c4f5c9f02eb234cac9e7c"),
            weather("Poznan", WRITER + "aad9face17d14c7296dd569213e61f47"),
            weather("Lublin", WRITER + "938c427496df48f3b2efb60d6a854461"),
        ],
    ),
    "ollmetry-writer-async-streaming-chat-tool-call-request-legacy": Right(
        NO_TYPE, calls=[weather("Zakopane", WRITER + "a31f1a5690b14b7daf0e78d2a2d23da2")]
    ),
    "pydai-openrouter-web-search-annotations-stream": Right(
        "a source has no index",
        text="The URL for Pydantic AI's GitHub repository is:  \n\nhttps://github.com/pydantic/pydantic-ai",
    ),
    "pydai-snowflake-thinking-streaming": Right("the thought is nowhere but in its details", thought="15 * 27 = 405"),
    "rig-raw-stream-surfaces-two-distinct-tool-calls-before-text": Right(
        NO_TYPE,
        calls=[("call_REDACTED_1", "lookup_harbor_label", "{}"), ("call_REDACTED_2", "lookup_orchard_label", "{}")],
    ),
    "rubyllm-k-qwen3-can-use-tools-without-parameters-in-multi-turn-streaming-conversations": Right(
        "the call has no index, on which the SDK raises at its very end"
    ),
    "rubyllm-k-qwen3-can-use-tools-without-parameters-in-multi-turn-streaming-conversations-2": Right(
        "the call has no index, on which the SDK raises at its very end"
    ),
    "vercel-mistral-reasoning": Right(
        "the content is a list",
        text="2 + 2 = 4",
        thought="The user is asking for 2+2. This is basic arithmetic. 2+2=4.",
    ),
    "vercel-mistral-tool-call": Right("the call has no index, on which the SDK raises at its very end"),
    "oai-llm-tools-streaming-variant-a/01-response": Right(
        "id and name come with every piece, and the SDK strings them together", calls=[("0", "llm_version", "{}")]
    ),
}
# Members that the recorded client omitted from its later requests. Our adapter sends these members.
CLIENT_EDITS = {
    "oai-fantasy-testopenaicompatiblecommon-avian-kimi-multi-tool-streaming": "the text before the calls",
}
# Streams in which the provider reports a failure.
FAILED = {
    "pydai-openrouter-stream-error": (PermanentError, "http_400", "Token limit reached"),
    "pydai-tool-use-failed-error-streaming-with-text": (
        TransientError,
        "tool_use_failed",
        "Tool choice is required, but model did not call a tool",
    ),
}


def short(file: str) -> str:
    return file.removeprefix("openai-chat/").removeprefix("sessions/").removesuffix(".sse")


def oracle(file: str) -> Json:
    found: Json = oracles(file)["chat"]
    return found


def chunks(file: str) -> list[Json]:
    return [event for event in events(read(file)) if isinstance(event, dict)]


def has_failed(file: str) -> bool:
    choices = [choice for chunk in chunks(file) for choice in chunk.get("choices") or ()]
    return any(each.get("error") for each in (*chunks(file), *choices))


def read_plainly(file: str) -> Said:
    """Joins the members of all deltas."""
    texts: list[str] = []
    calls: dict[object, list[str]] = {}
    for chunk in chunks(file):
        for choice in (each for each in chunk.get("choices") or () if not each.get("index")):
            delta = choice.get("delta") or choice.get("message") or {}
            content = delta.get("content") or delta.get("refusal") or ""
            texts += [piece.get("text") or "" for piece in content] if isinstance(content, list) else [content]
            for call in delta.get("tool_calls") or ():
                call_id = call.get("id") or ""
                function = call.get("function") or {}
                known = calls.setdefault(call.get("index", call_id), ["", "", ""])
                known[0], known[1] = call_id or known[0], function.get("name") or known[1]
                known[2] += function.get("arguments") or ""
    return Said("".join(texts), "", [(id, name, arguments) for id, name, arguments in calls.values()])


@pytest.fixture
async def server() -> AsyncIterator[CannedServer]:
    async with canned_server() as server:
        yield server


@pytest.fixture
async def provider(server: CannedServer) -> AsyncIterator[OpenAIChatProvider]:
    async with OpenAIChatProvider("a key", server.url) as provider:
        yield provider


def said_in(blocks: Sequence[Block]) -> Said:
    def joined(type: str) -> str:
        return "".join(block.text for block in blocks if block.type == type)

    calls = [(block.tool_use_id, block.name, block.text) for block in blocks if block.type == "tool_use"]
    return Said(joined("text"), joined("thinking"), calls)


def said_to_the_sdk(file: str) -> Said:
    known = oracle(file)
    completion = known.get("completion") or known.get("partial_completion") or {"choices": [{"message": {}}]}
    message = completion["choices"][0]["message"]
    content = message.get("content") or message.get("refusal") or ""
    thought = next((message[name] for name in THOUGHTS if message.get(name)), "")
    functions = [(call["id"], call["function"]) for call in message.get("tool_calls") or []]
    sdk = Said(content, thought, [(id, said["name"], said["arguments"]) for id, said in functions])
    right = EXCEPTIONS.get(short(file), Right(""))
    return Said(
        sdk.text if right.text is None else right.text,
        sdk.thought if right.thought is None else right.thought,
        sdk.calls if right.calls is None else list(right.calls),
    )


def last_reason(file: str) -> str | None:
    """Returns the last stop reason in the recorded bytes, as the constant that we use."""
    choices = [choice for chunk in chunks(file) for choice in chunk.get("choices") or () if not choice.get("index")]
    reasons = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
    return STOP_REASONS[reasons[-1]] if reasons else None


@pytest.mark.parametrize("file", streams(CHAT))
async def test_a_recorded_stream_gives_the_result_of_the_sdk_or_the_correct_one(
    file: str, server: CannedServer, provider: OpenAIChatProvider
) -> None:
    server.answer = Answer(read(file), sizes=Random(file).choices([20, 200, 2_000, 20_000], k=20))
    heard = await Heard().listen(provider)
    said, right = said_in(heard.blocks), said_to_the_sdk(file)
    if (said.text, said.calls) != (right.text, right.calls):  # the SDK has raised an error, or has omitted content
        plainly = read_plainly(file)
        assert (said.text, said.calls) == (plainly.text, plainly.calls)
        assert short(file) not in EXCEPTIONS
    assert said.thought.startswith(right.thought)
    assert heard.accumulator.unknown == []
    if short(file) in FAILED:
        assert heard.error is not None
        assert (type(heard.error), heard.error.type, heard.error.message) == FAILED[short(file)]
        assert not heard.accumulator.ended
        return
    assert (heard.error is not None) == has_failed(file)
    if heard.error is not None:
        return
    assert heard.accumulator.ended
    told = last_reason(file) or ("tool_use" if said.calls else "end_turn")
    refused = "refusal" in file
    assert heard.accumulator.stop_reason == ("refusal" if refused else told)


@pytest.mark.parametrize("file", streams(CHAT))
async def test_the_figures_of_a_recorded_stream_are_those_of_its_provider(
    file: str, server: CannedServer, provider: OpenAIChatProvider
) -> None:
    server.answer = Answer(read(file))
    usage = (await Heard().listen(provider)).accumulator.usage
    said: Json = {}
    for frame in chunks(file):
        said |= {name: value for name, value in (frame.get("usage") or {}).items() if value is not None}
    asked = sum(
        usage.get(name, 0) for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    )
    assert asked == said.get("prompt_tokens", 0)
    apart = said.get("total_tokens", 0) - said.get("prompt_tokens", 0) - said.get("completion_tokens", 0)
    assert usage.get("output_tokens", 0) == said.get("completion_tokens", 0) + (apart if "xai" in file else 0)


def test_every_exception_is_one_of_the_recordings_and_the_sdk_is_wrong_there() -> None:
    names = {short(file): file for file in streams(CHAT)}
    assert names.keys() >= EXCEPTIONS.keys() | FAILED.keys()
    for name in EXCEPTIONS:
        body, known = read(names[name]), oracle(names[name])
        wire, accumulator = ChatWire(), Accumulator(1, 1, 0)
        blocks = closed_blocks(accumulator, accumulator.feed([*wire.feed(body), *wire.end()]))
        saved = EXCEPTIONS.get(name, Right(""))
        assert not known["ok"] or said_in(blocks) != Said(*_untouched(names[name])), saved.why


def _untouched(file: str) -> tuple[Any, ...]:
    message = oracle(file)["completion"]["choices"][0]["message"]
    thought = next((message[name] for name in THOUGHTS if message.get(name)), "")
    functions = [(call["id"], call["function"]) for call in message.get("tool_calls") or []]
    return message.get("content") or "", thought, [(id, said["name"], said["arguments"]) for id, said in functions]


@pytest.mark.parametrize("file", streams(CHAT))
def test_the_parts_do_not_depend_on_the_cuts_of_the_network(file: str) -> None:
    body = read(file)
    whole = taken_in(ChatWire(), body, repeat(len(body)))
    for sizes in (repeat(1 if len(body) < 10_000 else 7), cycle(Random(file).choices([1, 2, 40, 400], k=50))):
        assert taken_in(ChatWire(), body, sizes) == whole


# --- sessions ------------------------------------------------------------------------------------------------


def is_whole(name: str) -> bool:
    """Returns False if a reply is missing or has failed, because then the client sent something else in place of the
    reply.
    """
    first = json.loads(read(f"sessions/{name}/01-request.json"))["messages"]
    return {message["role"] for message in first} <= {"system", "user"} and not any(
        has_failed(f"sessions/{name}/{number:02}-response.sse") for number in range(1, rounds_of(name) + 1)
    )


@pytest.mark.parametrize("name", [name for name in sessions(CHAT) if is_whole(name)])
def test_a_recorded_session_is_sent_back_with_the_calls_and_results_its_client_sent(name: str) -> None:
    asked = [
        json.loads(read(f"sessions/{name}/{n:02}-request.json"))["messages"] for n in range(1, rounds_of(name) + 1)
    ]
    messages = [Message("user", (_text(users(asked[0])),))]
    before: list[Json] = []
    for number in range(1, rounds_of(name) + 1):
        body = json.loads(render(ModelRequest("gpt-6-sol", tuple(messages))))
        assert request_problems(body) == []
        assert body["messages"][: len(before)] == before
        before = body["messages"]
        recorded = [plain(message) for message in asked[number - 1] if message["role"] != "system"]
        sent = [plain(message) for message in before]
        if name in CLIENT_EDITS:
            sent = [{**message, "content": None} if "tool_calls" in message else message for message in sent]
            recorded = [{**message, "content": None} if "tool_calls" in message else message for message in recorded]
        assert sent == [message for message in recorded if message.keys() > {"role"}]
        if number < rounds_of(name):
            messages += [Message("assistant", tuple(reply_of(name, number))), results_in(asked[number])]


def users(messages: Sequence[Json]) -> str:
    (said,) = [message["content"] for message in messages if message["role"] == "user"]
    return _words(said)


def _words(content: object) -> str:
    return "".join(part["text"] for part in content) if isinstance(content, list) else str(content or "")


def _text(words: str) -> Block:
    return Block(0, 0, 1, "text", words)


def reply_of(name: str, number: int) -> list[Block]:
    """Returns a recorded reply. In the later request, the recorder has replaced the reply's real id."""
    return reply_by(ChatWire(), name, number)[0]


def results_in(messages: Sequence[Json]) -> Message:
    """Returns the results and the user's words that end a request."""
    blocks: list[Block] = []
    for message in reversed(messages):
        words = _words(message.get("content"))
        match message["role"]:
            case "tool":
                blocks.insert(0, Block(0, 0, 1, "tool_result", words, tool_use_id=message["tool_call_id"]))
            case "user":
                blocks.insert(0, _text(words))
            case _:
                break
    return Message("user", tuple(blocks))


def plain(message: Json) -> Json:
    """Returns a message without meaningless members, and without the blanks and thoughts of the recorded client."""
    members: Json = {"role": message["role"]}
    if words := _words(message.get("content")).strip():
        members["content"] = words
    if message.get("tool_calls"):
        functions = [(call["id"], call["function"]) for call in message["tool_calls"]]
        members["tool_calls"] = [(id, said["name"], json.loads(said["arguments"])) for id, said in functions]
    return members | ({"tool_call_id": message["tool_call_id"]} if message["role"] == "tool" else {})


# --- errors --------------------------------------------------------------------------------------------------


SORTED = {
    "azure-408-upstream-timeout-plain-text": (TransientError, "http_408"),
    "deepseek-422-plain-text": (PermanentError, "http_422"),
    "github-models-429-retry-after-plain-text": (TransientError, "http_429"),
    "groq-400-tool-use-failed": (TransientError, "tool_use_failed"),
    "mistral-500": (TransientError, "internal_server_error"),
    "openai-400-reasoning-without-following-item": (PermanentError, "invalid_request_error"),
    "openai-401-incorrect-key": (AccountRefused, "invalid_api_key"),
    "openai-404-model": (PermanentError, "model_not_found"),
    # This one request alone exceeds the limit for a minute.
    "openai-429-tokens-per-min-headers": (PermanentError, "rate_limit_exceeded"),
    "openai-responses-400-context-length": (TooLong, "context_length_exceeded"),
    "openai-responses-400-temperature": (PermanentError, "decimal_below_min_value"),
    "openrouter-400-context-length": (TooLong, "context_length_exceeded"),
    "openrouter-401-no-cookie": (AccountRefused, "http_401"),
    "xai-503-at-capacity": (TransientError, "http_503"),
}


def assert_sorted(error: ProviderError, file: str, status: int) -> None:
    """Asserts the class of the error: the table's class if the file is listed, or else the class that the status
    implies.
    """
    if known := SORTED.get(file.removeprefix("errors/").removesuffix(".json")):
        assert (type(error), error.type) == known
    else:
        lasts = status < 500 and status not in {408, 409, 425, 429}
        assert isinstance(error, PermanentError if lasts else TransientError)


@pytest.mark.parametrize("file", errors_of_others())
async def test_a_recorded_error_is_transient_or_permanent_and_has_the_text_of_the_provider(
    file: str, server: CannedServer, provider: OpenAIChatProvider
) -> None:
    recorded, server.answer = recorded_error(file)
    headers = server.answer.headers
    error = (await Heard().listen(provider)).error
    assert error is not None
    assert_sorted(error, file, recorded["status"])
    said = recorded.get("body_json") or {"message": recorded["body"].strip()}
    inner: Any = said.get("error", said)
    # the answer comes from a gateway and contains the provider's message
    if isinstance(inner, dict) and "metadata" in inner:
        words = recorded["body"].encode().decode("unicode_escape")
        # the provider's name may precede the message
        assert error.message in words or error.message.partition(": ")[2] in words
    else:
        assert error.message == (inner if isinstance(inner, str) else inner["message"])
    assert error.request_id == headers.get("x-request-id")
    assert error.retry_after == (float(headers["retry-after"]) if "retry-after" in headers else None)
