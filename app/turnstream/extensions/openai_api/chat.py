"""The handler of chat completions, and the conversion of a turn's log to chunks of a completion."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, assert_never

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.codec import to_json
from turnstream.api.http.reading import idempotency_key_of, read_body
from turnstream.api.services import identity_of, services_and_owner
from turnstream.domain.blocks import Block
from turnstream.domain.cursor import Cursor
from turnstream.domain.events import (
    ActionRequired,
    BlockDelta,
    Event,
    Notice,
    RoundStart,
    RoundStop,
    TurnEnd,
    TurnStart,
)
from turnstream.domain.kinds import TEXT, THINKING
from turnstream.domain.output import output_of
from turnstream.domain.turns import Turn
from turnstream.extensions.openai_api.inputs import items_of_messages, options_of_chat, split_input
from turnstream.extensions.openai_api.objects import (
    Json,
    ResponseState,
    custom_input,
    custom_tools,
    failure_of,
    function_of,
    is_server_call,
    names_of,
    role_tools,
    state_of,
    usage_json,
)
from turnstream.extensions.openai_api.posting import Place, Posting, is_to_be_stored
from turnstream.extensions.openai_api.schemas import ChatIn
from turnstream.extensions.openai_api.stream import event_stream
from turnstream.libraries.dialects.projection import (
    Begin,
    CallResult,
    Close,
    Closed,
    Projection,
    ProviderResult,
    Retract,
    calls_of_client,
)
from turnstream.libraries.dialects.streams import PartReader, wait_headers
from turnstream.libraries.dialects.unstored import Forgetting, delivered

PARAGRAPH = "\n\n"
_DONE = b"data: [DONE]\n\n"
_AFTER = b',"finish_reason":null,"logprobs":null}]}\n\n'
_REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}


async def complete_chat(request: Request) -> Response:
    """Posts the last message after its history, or answers the calls that wait. Returns the completion."""
    services, owner = services_and_owner(request)
    sent, body = await read_body(request, ChatIn)
    items, places = await items_of_messages(sent.messages)
    input, options = await split_input(items, places), options_of_chat(services, sent)
    identity_of(request).require_reach(None)
    key = idempotency_key_of(request, body)
    if sent.stream:
        services.streams.take(request)
    stores = is_to_be_stored(services, sent)
    posting = Posting(request, services, options, input, key, stores=stores)
    turn, part = await posting.respond(Place())
    forget = None if stores else Forgetting(services, owner, turn, keeps_chat=False)
    wants_usage = bool(sent.stream_options and sent.stream_options.include_usage)
    reader = PartReader(
        services, owner, turn, lambda turn, view: ChatChunks(turn, part, lambda: view().turn, usage=wants_usage)
    )
    if sent.stream:
        return event_stream(services, delivered(reader.frames(), forget), options.headers)
    await reader.end()
    if forget is not None:
        await forget()
    if (failure := reader.events.failure) is not None:
        # The SDKs must not post the message again, because the turn has already retried its model calls.
        headers = {"x-should-retry": "false", **reader.events.wait}
        return Response(to_json(failure), reader.events.status, headers, "application/json")
    return Response(to_json(reader.events.completion()), 200, options.headers, "application/json")


class ChatChunks:
    """Encodes a part of a turn as chunks of a chat completion. Chunks have no position in the log, so a stream cannot
    be resumed, and the client keeps voided text. `now` returns the turn from its rows.
    """

    def __init__(self, turn: Turn, part: int, now: Callable[[], Turn], *, usage: bool = False) -> None:
        self._now = now
        self._part = part
        self._wants_usage = usage
        self._projection = Projection(turn)
        self._roles, self._customs = role_tools(turn), custom_tools(turn)
        self._is_structured = turn.request is not None and turn.request.output is not None
        self._has_text = self._was_called = False
        self._calls = 0
        self._usages: list[Mapping[str, Any]] = []
        self._end: ResponseState | None = None
        self._before = b"data: %b" % to_json(_shell(turn, part, "chat.completion.chunk"))[:-1]
        self._before += b',"choices":[{"index":0,"delta":'
        self._delta: tuple[bytes, bytes] | None = None  # the JSON before and behind the text of the open block

    @property
    def ended(self) -> bool:
        return self._end is not None

    def __call__(self, event: Event | Notice, cursor: Cursor | None) -> bytes:
        if isinstance(event, BlockDelta):  # the hot path: runs for each piece of text
            return b"%b%b%b" % (self._delta[0], to_json(event.text), self._delta[1]) if self._delta else b""
        return b"" if cursor is None else b"".join(self._frames(event))

    def begin(self) -> bytes:
        return self._chunk(b'{"role":"assistant","content":""}')

    def waiting(self) -> bytes:
        return b"".join(self._finish(ResponseState("completed")))

    def completion(self) -> Json:
        """Returns the completion, which must have ended."""
        steps, turn = self._projection.part(self._part), self._now()
        calls = [self._call(block) for block in calls_of_client(steps)]
        thoughts = [step.block.text for step in steps if step.block.type == THINKING and step.block.text]
        message = {
            "role": "assistant",
            "content": self._text(steps) or (None if calls else ""),
            "refusal": None,
            **({"reasoning_content": "".join(thoughts)} if thoughts else {}),
            **({"tool_calls": calls} if calls else {}),
        }
        choice = {"index": 0, "message": message, "finish_reason": self._finish_reason(), "logprobs": None}
        return {**_shell(turn, self._part, "chat.completion"), "choices": [choice], "usage": _usage(self._usages)}

    @property
    def failure(self) -> Json | None:
        if self._end is None or self._end.error is None:
            return None
        return {"error": self._end.error}

    @property
    def status(self) -> int:
        """Returns the HTTP status of an ended completion."""
        error = self._now().error
        return 200 if error is None else failure_of(error.type)[0]

    @property
    def wait(self) -> dict[str, str]:
        """Returns a header with the time that the provider asked clients to wait."""
        turn = self._now()
        return wait_headers(turn.error.retry_after if turn.error else None, turn.ended_at)

    def _frames(self, event: Event | Notice) -> Iterator[bytes]:
        waits = self._projection.waits
        step = self._projection.take(event)
        self._delta = None
        if self._projection.waits > waits == self._part and self._end is None:
            yield from self._finish(ResponseState("completed"))
        if self._projection.waits != self._part or self._end is not None:
            return
        match step:
            case Begin():
                yield from self._begin(step)
            case Close(block=Block(type="text")) if not self._is_structured:
                self._has_text = True
            case Close(block=block, runner="client") if block.name in self._customs:
                yield self._chunk(to_json({"tool_calls": [{"index": self._calls, **self._call(block)}]}))
                self._calls += 1
            case CallResult() if self._is_of_earlier_call(step):
                self._was_called = True
            case RoundStop(usage=usage):
                self._usages.append(usage)
            case TurnEnd():
                yield from self._finish(state_of(step, self._is_structured))
            case Close() | CallResult() | ProviderResult() | Retract():
                pass
            case TurnStart() | RoundStart() | ActionRequired() | Notice() | None:
                pass
            case _:
                assert_never(step)

    def _begin(self, begin: Begin) -> Iterator[bytes]:
        start = begin.start
        if start.type == TEXT and not self._is_structured:
            if not begin.again:
                if self._was_called and self._has_text:
                    yield self._chunk(b'{"content":%b}' % to_json(PARAGRAPH))
                self._was_called = False
            self._delta = self._around(b'{"content":', b"}")
        elif start.type == THINKING:
            self._delta = self._around(b'{"reasoning_content":', b"}")
        elif begin.runner == "client" and start.name in self._customs:
            pass  # the text of a custom call is known only at the end of the call's JSON
        elif begin.runner == "client":
            if not begin.again:
                function = {"name": start.name, "arguments": ""}
                call = {"index": self._calls, "id": start.tool_use_id, "type": "function", "function": function}
                yield self._chunk(to_json({"tool_calls": [call]}))
                self._calls += 1
            self._delta = self._around(
                b'{"tool_calls":[{"index":%d,"function":{"arguments":' % (self._calls - 1), b"}}]}"
            )
        elif is_server_call(begin.runner, start.name, self._roles):
            self._was_called = True

    def _call(self, block: Block) -> Json:
        if block.name in self._customs:
            called = {"type": "custom", "custom": {**names_of(block.name), "input": custom_input(block.text)}}
        else:
            called = {"type": "function", "function": function_of(block)}
        return {"id": block.tool_use_id, **called}

    def _is_of_earlier_call(self, result: CallResult) -> bool:
        """Returns whether the result belongs to a call of a server's tool that came before the wait at which the part
        starts.
        """
        first = self._projection.part(self._part)[0].block.index
        is_shown = is_server_call(result.runner, result.block.name, self._roles)
        return is_shown and result.call is not None and result.call.index < first

    def _text(self, steps: Sequence[Closed]) -> str:
        """Returns the text without thoughts. A call of a server's tool ends a paragraph."""
        if self._is_structured:
            return output_of(self._now()) or ""
        text, was_called = "", False
        for step in steps:
            match step:
                case Close(block=Block(type="text", text=more)):
                    text += (PARAGRAPH if text and was_called else "") + more
                    was_called = False
                case Close(block=block, runner=runner) if is_server_call(runner, block.name, self._roles):
                    was_called = True
                case CallResult() if self._is_of_earlier_call(step):
                    was_called = True
                case _:
                    pass
        return text

    def _finish(self, state: ResponseState) -> Iterator[bytes]:
        self._end = state
        if state.status == "completed" and (output := output_of(self._now())) is not None:
            yield self._chunk(b'{"content":%b}' % to_json(output))
        if self.failure is not None:
            yield b"data: %b\n\n" % to_json(self.failure) + _DONE
            return
        shell = _shell(self._now(), self._part, "chat.completion.chunk")
        choice = {"index": 0, "delta": {}, "finish_reason": self._finish_reason(), "logprobs": None}
        yield b"data: %b\n\n" % to_json({**shell, "choices": [choice]})
        if self._wants_usage:
            yield b"data: %b\n\n" % to_json({**shell, "choices": [], "usage": _usage(self._usages)})
        yield _DONE

    def _finish_reason(self) -> str:
        if self._end is not None and self._end.reason is not None:
            return _REASONS[self._end.reason]
        return "tool_calls" if calls_of_client(self._projection.part(self._part)) else "stop"

    def _around(self, before: bytes, after: bytes) -> tuple[bytes, bytes]:
        return self._before + before, after + _AFTER

    def _chunk(self, delta: bytes) -> bytes:
        return self._before + delta + _AFTER


def _shell(turn: Turn, part: int, object: str) -> Json:
    assert turn.request is not None
    assert turn.created_at is not None
    id = f"chatcmpl-{turn.chat_id.hex}{turn.id.hex}" + (f"-{part}" if part else "")
    created = int(turn.created_at.timestamp())
    return {"id": id, "object": object, "created": created, "model": turn.request.model}


def _usage(usages: Sequence[Mapping[str, Any]]) -> Json:
    usage = usage_json(usages)
    return {
        "prompt_tokens": usage["input_tokens"],
        "completion_tokens": usage["output_tokens"],
        "total_tokens": usage["total_tokens"],
        "prompt_tokens_details": {"cached_tokens": usage["input_tokens_details"]["cached_tokens"]},
        "completion_tokens_details": usage["output_tokens_details"],
    }
