"""The handler of chat completions, and the log of a turn as their chunks."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.codec import to_json
from turnstream.api.http.reading import idempotency_key_of, read_body
from turnstream.api.services import identity_of, services_and_owner
from turnstream.domain.cursor import Cursor
from turnstream.domain.events import BlockDelta, Event, Notice
from turnstream.domain.turns import Turn
from turnstream.extensions.openai_api.events import ResponseEvents
from turnstream.extensions.openai_api.history import PARAGRAPH, calls_in, text_in
from turnstream.extensions.openai_api.inputs import items_of_messages, options_of_chat, split_input
from turnstream.extensions.openai_api.objects import Json
from turnstream.extensions.openai_api.posting import Forgetting, Place, Posting, delivered
from turnstream.extensions.openai_api.schemas import ChatIn
from turnstream.extensions.openai_api.stream import ResponseReader, event_stream

_DONE = b"data: [DONE]\n\n"
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}


async def complete_chat(request: Request) -> Response:
    """Posts the last message where its history leads to, or answers calls that wait; returns the completion."""
    services, owner = services_and_owner(request)
    sent, body = await read_body(request, ChatIn)
    items, places = await items_of_messages(sent.messages)
    input, options = await split_input(items, places), options_of_chat(sent)
    identity_of(request).require_reach(None)
    key = idempotency_key_of(request, body)
    if sent.stream:
        services.streams.take(request)
    turn, part = await Posting(request, services, options, input, key, keeps_history=True).respond(Place())
    forget = Forgetting(services, owner, turn, keeps_chat=False) if sent.store is False else None
    if sent.stream:
        wants_usage = bool(sent.stream_options and sent.stream_options.include_usage)
        reader = ResponseReader(services, owner, turn, part, encoder=lambda *args: ChatChunks(*args, usage=wants_usage))
        return event_stream(services, delivered(reader.frames(), forget))
    response = await ResponseReader(services, owner, turn, part).ended()
    if forget is not None:
        await forget()
    if response["error"] is not None:
        # The turn has had its own tries; the SDKs would post the message anew.
        return Response(to_json(_failure(response)), 500, {"x-should-retry": "false"}, "application/json")
    return Response(to_json(_completion(response)), media_type="application/json")


class ChatChunks(ResponseEvents):
    """Encodes a response as chunks of a chat completion. They have no place in the log: nothing resumes, and text that
    is taken back stays at the client.
    """

    def __init__(self, turn: Turn, part: int, *args: Any, usage: bool = False) -> None:
        super().__init__(turn, part, *args)
        self._wants_usage = usage
        self._has_text = self._was_called = False
        self._indexes: dict[int, int] = {}  # of calls, by the index of their item
        shell = to_json(_shell(turn, part, "chat.completion.chunk")).replace(b"%", b"%%")
        choice = b',"choices":[{"index":0,"delta":%b,"finish_reason":null,"logprobs":null}]}\n\n'
        self._chunk = b"data: " + shell[:-1] + choice

    def __call__(self, event: Event | Notice, cursor: Cursor | None) -> bytes:
        if isinstance(event, BlockDelta):  # the token path
            return self._text(event)
        return b"" if cursor is None else b"".join(map(self._chunk_of, self.take(event)))

    def begin(self) -> bytes:
        return self._chunk % to_json({"role": "assistant", "content": ""})

    def waiting(self) -> bytes:
        return b"".join(map(self._chunk_of, self.end_of_wait()))

    def _text(self, delta: BlockDelta) -> bytes:
        item, text = self._open, to_json(delta.text)
        if item is None or item.json["type"] == "mcp_call":
            return b""
        if item.json["type"] == "message":
            return self._chunk % (b'{"content":%b}' % text)
        if item.json["type"] == "reasoning":
            return self._chunk % (b'{"reasoning_content":%b}' % text)
        index = self._indexes[item.output_index]
        return self._chunk % (b'{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]}' % (index, text))

    def _chunk_of(self, event: Json) -> bytes:
        item = event.get("item", {})
        match event["type"]:
            case "response.output_item.added" if item["type"] == "function_call":
                index = self._indexes.setdefault(event["output_index"], len(self._indexes))
                function = {"name": item["name"], "arguments": ""}
                call = {"index": index, "id": item["call_id"], "type": "function", "function": function}
                return self._chunk % to_json({"tool_calls": [call]})
            case "response.output_item.added" if item["type"] == "mcp_call":
                self._was_called = True
            case "response.output_item.added" if item["type"] == "message" and self._was_called:
                self._was_called = False
                return self._chunk % to_json({"content": PARAGRAPH}) if self._has_text else b""
            case "response.output_text.done":
                self._has_text = True
            case "response.output_text.delta":  # of an output that is sent at once
                return self._chunk % to_json({"content": event["delta"]})
            case type if type in _ENDS:
                return self._end_chunk(event["response"])
            case _:
                pass
        return b""

    def _end_chunk(self, response: Json) -> bytes:
        if response["error"] is not None:
            return b"data: %b\n\n" % to_json(_failure(response)) + _DONE
        shell = _shell(self._turn(), self._part, "chat.completion.chunk")
        choice = {"index": 0, "delta": {}, "finish_reason": _finish_reason(response), "logprobs": None}
        frames = b"data: %b\n\n" % to_json({**shell, "choices": [choice]})
        if self._wants_usage:
            frames += b"data: %b\n\n" % to_json({**shell, "choices": [], "usage": _usage(response["usage"])})
        return frames + _DONE


def _shell(turn: Turn, part: int, object: str) -> Json:
    assert turn.request is not None
    assert turn.created_at is not None
    id = f"chatcmpl-{turn.chat_id.hex}{turn.id.hex}" + (f"-{part}" if part else "")
    created = int(turn.created_at.timestamp())
    return {"id": id, "object": object, "created": created, "model": turn.request.model}


def _completion(response: Mapping[str, Any]) -> Json:
    """The completion that says what the response does."""
    calls = [
        {"id": c["call_id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
        for c in calls_in(response)
    ]
    thoughts = [part["text"] for item in response["output"] if item["type"] == "reasoning" for part in item["summary"]]
    message = {
        "role": "assistant",
        "content": text_in(response) or (None if calls else ""),
        "refusal": None,
        **({"reasoning_content": "".join(thoughts)} if thoughts else {}),
        **({"tool_calls": calls} if calls else {}),
    }
    choice = {"index": 0, "message": message, "finish_reason": _finish_reason(response), "logprobs": None}
    id = response["id"].removeprefix("resp_").replace("_", "-")
    return {
        "id": f"chatcmpl-{id}",
        "object": "chat.completion",
        "created": response["created_at"],
        "model": response["model"],
        "choices": [choice],
        "usage": _usage(response["usage"]),
    }


def _finish_reason(response: Mapping[str, Any]) -> str:
    details = response["incomplete_details"]
    if details is not None:
        return _REASONS[details["reason"]]
    return "tool_calls" if calls_in(response) else "stop"


def _usage(usage: Mapping[str, Any]) -> Json:
    return {
        "prompt_tokens": usage["input_tokens"],
        "completion_tokens": usage["output_tokens"],
        "total_tokens": usage["total_tokens"],
        "prompt_tokens_details": {"cached_tokens": usage["input_tokens_details"]["cached_tokens"]},
        "completion_tokens_details": usage["output_tokens_details"],
    }


def _failure(response: Mapping[str, Any]) -> Json:
    error = response["error"]
    return {"error": {"message": error["message"], "type": "server_error", "param": None, "code": error["code"]}}
