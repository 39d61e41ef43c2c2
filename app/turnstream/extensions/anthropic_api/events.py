"""Encodes the log of a turn as Anthropic's messages: each part between two waits for the client is a separate message.

A stream of this API cannot void content. If the log voids content that was sent, the stream ends with an error. A
client that has resumed a message accepts that the message starts again, so its stream restarts instead.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, assert_never
from uuid import UUID

import msgspec
from msgspec import Raw

from turnstream.api.codec import parsed, to_json
from turnstream.domain.blocks import Block
from turnstream.domain.cursor import START, Cursor
from turnstream.domain.events import (
    ActionRequired,
    BlockDelta,
    Event,
    Notice,
    Reset,
    RoundStart,
    RoundStop,
    TurnEnd,
    TurnStart,
)
from turnstream.domain.kinds import PORTABLE, TEXT, THINKING, THOUGHTS, TOOL_USE, kind_of
from turnstream.domain.output import output_of
from turnstream.domain.rounds import billed_tokens
from turnstream.domain.turns import Turn
from turnstream.extensions.anthropic_api.errors import error_json, failure_of
from turnstream.extensions.anthropic_api.schemas import Json
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
from turnstream.libraries.providers.anthropic.render import render_block
from turnstream.libraries.providers.raw_members import NULL
from turnstream.libraries.providers.translation import provider_of
from turnstream.llm.raw_json import members_of
from turnstream.stream.live import LiveView

_MESSAGE = re.compile("msg_([0-9a-f]{32})([0-9a-f]{32})(?:_([1-9][0-9]{0,5}))?")
_PLACE = re.compile(r"([0-9-]{1,40})(?:\.([0-9]{1,6}))?")
_STOP_REASONS = frozenset({"end_turn", "max_tokens", "stop_sequence", "refusal", "model_context_window_exceeded"})
_WITH_DETAILS = frozenset({"stop_sequence", "refusal"})
_DELTAS = {
    TEXT: b'"delta":{"type":"text_delta","text":',
    THINKING: b'"delta":{"type":"thinking_delta","thinking":',
    TOOL_USE: b'"delta":{"type":"input_json_delta","partial_json":',
}
_CANCELLED = "api_error", "The answer was cancelled before its end."
_TAKEN_BACK = (
    "The model had to begin this message again, so what was sent of it is void. Send the request again with the header"
    " `Turnstream-Resume` of this response to receive the message from its start."
)
_RETRACTED = "overloaded_error", _TAKEN_BACK


@dataclass(frozen=True, slots=True)
class MessageId:
    """The message id of a turn, or of a turn's part between two waits for the client."""

    chat: UUID
    turn: UUID
    part: int = 0

    @classmethod
    def parse(cls, text: str) -> Self | None:
        found = _MESSAGE.fullmatch(text)
        return cls(UUID(found[1]), UUID(found[2]), int(found[3] or 0)) if found else None

    def __str__(self) -> str:
        return f"msg_{self.chat.hex}{self.turn.hex}" + (f"_{self.part}" if self.part else "")


@dataclass(frozen=True, slots=True)
class EventPlace:
    """The id of a sent event. The client has received everything up to `cursor`, and the first `frames` frames of the
    log's next event.
    """

    cursor: Cursor = START
    frames: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Decodes the id of an event. Raises ValueError."""
        found = _PLACE.fullmatch(text)
        if found is None:
            raise ValueError("`Last-Event-ID` must be the id of an event of this message, such as 1-4-120.")
        return cls(Cursor.parse(found[1]), int(found[2] or 0))


class MessageEvents:
    """Encodes one part of a turn. `view` returns the live view. Events up to the position `after` are omitted. Without
    `after`, there is no stream, and only the complete message is encoded.
    """

    def __init__(
        self,
        turn: Turn,
        part: int,
        view: Callable[[], LiveView],
        after: EventPlace | None = None,
        *,
        is_resumed: bool = False,
    ) -> None:
        self.failure: tuple[str, str] | None = None
        self.is_void = False  # the client has content that the log has voided
        self._view = view
        self._part = part
        self._id = str(MessageId(turn.chat_id, turn.id, part))
        self._model = turn.request.model if turn.request else ""
        self._is_structured = turn.request is not None and turn.request.output is not None
        self._projection = Projection(turn)
        self._is_resumed = is_resumed
        self._is_stream, after = after is not None, after or EventPlace()
        self._after = after
        self._is_behind = after.cursor != START  # whether the marks before that position are still unprocessed
        self._skip = after.frames
        self._at = after.cursor
        self._index = -1  # index of the newest block in the message
        self._newest = -1  # index of the newest block in the turn
        self._is_open = False  # whether the newest block is incomplete
        self._delta: bytes | None = None  # start of a delta frame, before its text
        self._usages: list[Mapping[str, Any]] = []
        self._stop_reason: str | None = None

    @property
    def turn(self) -> Turn:
        return self._view().turn

    @property
    def ended(self) -> bool:
        return self._stop_reason is not None or self.failure is not None or self.is_void

    def __call__(self, event: Event | Notice, cursor: Cursor | None) -> bytes:
        if cursor is None or self.is_void:
            return b""
        if isinstance(event, BlockDelta):  # most events are deltas, so they take a short path
            if self._is_behind:
                self._catch_up()
            self._at = cursor
            delta = self._delta
            return (
                b""
                if delta is None
                else b"event: content_block_delta\nid: %b\n%b%b}}\n\n"
                % (
                    str(cursor).encode(),
                    delta,
                    to_json(event.text),
                )
            )
        if self._is_behind:
            if isinstance(event, Reset):
                self.is_void = True
                return b""
            self._catch_up()
        frames = list(self._frames(event))
        at, self._at = self._at, cursor
        return self._encoded(frames, at, cursor)

    def begin(self) -> bytes:
        if self._after != EventPlace():
            return b""
        message = {**self._shell(), "content": [], "stop_reason": None, "stop_sequence": None, "usage": _usage(())}
        return self._encoded([_frame("message_start", message=message)], START, None)

    def waiting(self) -> bytes:
        if self._is_behind:
            self._catch_up()
        frames = list(self._finish("pause_turn"))
        return self._encoded(frames, self._at, None)

    def message(self) -> Json:
        """Returns the complete message of a part that has ended."""
        content = [Raw(block) for step in self._projection.part(self._part) if (block := self._block(step))]
        if self._is_structured:
            content += [Raw(to_json({"type": TEXT, "text": text})) for text in self._output()]
        return {**self._shell(), "content": content, **self._stop(), "usage": _usage(self._usages)}

    # --- steps -------------------------------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        """Processes the marks up to the client's position, without sending them again."""
        self._is_behind = False
        skip, self._skip = self._skip, 0
        for mark in self._view().marks[: self._after.cursor.place]:
            for _ in self._frames(mark):
                pass
        self._skip = skip

    def _frames(self, event: Event | Notice) -> Iterator[bytes]:
        waits = self._projection.waits
        step = self._projection.take(event)
        self._delta = None
        if self._projection.waits > waits == self._part and not self.ended:
            yield from self._finish("pause_turn")
        if self._projection.waits != self._part or self.ended:
            return
        match step:
            case Begin():
                yield from self._begin(step)
            case Close() | ProviderResult():
                yield from self._close(step)
            case RoundStop(usage=usage):
                self._usages.append(usage)
            case Retract(index=index) if self._is_stream and index <= self._newest:
                if self._is_resumed:
                    self.is_void = True
                else:
                    self.failure = _RETRACTED
                    yield _error(*_RETRACTED)
            case TurnEnd():
                yield from self._end(step)
            case TurnStart() | RoundStart() | CallResult() | ActionRequired() | Retract() | Notice() | None:
                pass
            case _:
                assert_never(step)

    def _begin(self, begin: Begin) -> Iterator[bytes]:
        start = begin.start
        if start.type == TOOL_USE and begin.runner == "client":
            shell: Json = {"type": TOOL_USE, "id": start.tool_use_id, "name": start.name, "input": {}}
        elif start.type == THINKING:
            shell = {"type": THINKING, "thinking": "", "signature": ""}
        elif start.type == TEXT and not self._is_structured:
            shell = {"type": TEXT, "text": ""}
        else:
            return
        yield self._started(shell, start.index)
        self._is_open = True
        self._delta = b'data: {"type":"content_block_delta","index":%d,%b' % (self._index, _DELTAS[start.type])

    def _close(self, step: Close | ProviderResult) -> Iterator[bytes]:
        block = self._block(step)
        if self._is_open:
            self._is_open = False
            members = members_of(block.decode()) if block else {}
            if bytes(members.get("signature", b'""')) != b'""':
                yield self._delta_frame({"type": "signature_delta", "signature": members["signature"]})
            for citation in _items(members.get("citations", NULL)):
                yield self._delta_frame({"type": "citations_delta", "citation": citation})
        elif block is not None:  # the block was not streamed: it arrived complete
            yield self._started(Raw(block), step.block.index)
        else:
            return
        yield _frame("content_block_stop", index=self._index)

    def _end(self, end: TurnEnd) -> Iterator[bytes]:
        if self._is_structured and end.error is not None and end.error.type in _STOP_REASONS:
            yield from self._finish(end.error.type)
        elif end.error is not None or end.status == "cancelled":
            self.failure = _CANCELLED if end.error is None else failure_of(end.error)
            yield _error(*self.failure, end.error.wait if end.error else {})
        else:
            yield from self._finish(end.stop_reason if end.stop_reason in _STOP_REASONS else "end_turn")

    def _finish(self, reason: str | None) -> Iterator[bytes]:
        calls = calls_of_client(self._projection.part(self._part))
        self._stop_reason = "tool_use" if calls and reason in {"pause_turn", "end_turn"} else reason
        for text in self._output():
            yield self._started({"type": TEXT, "text": ""}, self._newest)
            yield self._delta_frame({"type": "text_delta", "text": text})
            yield _frame("content_block_stop", index=self._index)
        yield _frame("message_delta", delta=self._stop(), usage=_usage(self._usages))
        yield _frame("message_stop")

    def _stop(self) -> Json:
        """Returns the stop reason of the message, with the details that the provider reported."""
        details: Json = {"stop_sequence": None}
        rounds = self._view().turn.rounds
        if self._stop_reason in _WITH_DETAILS and rounds and rounds[-1].data is not None:
            reported = parsed(rounds[-1].data)
            details |= {name: reported[name] for name in ("stop_sequence", "stop_details") if name in reported}
        return {"stop_reason": self._stop_reason, **details}

    # --- blocks ------------------------------------------------------------------------------------------------------

    def _block(self, step: Closed) -> bytes | None:
        """Returns the block in the form of Anthropic's API, or None if the client does not receive the block."""
        block = step.block
        match step:
            case CallResult() | Close(runner="server"):
                return None
            case Close() if kind_of(block.type).family in {"note", "steer"}:
                return None
            case Close() if block.type == TEXT and self._is_structured:
                return None
            case Close(runner="client") if block.interrupted:
                return None
            case _:
                return _rendered(block)

    def _output(self) -> Sequence[str]:
        text = output_of(self._view().turn) if self._is_structured else None
        return [] if text is None else [text]

    def _shell(self) -> Json:
        return {"id": self._id, "type": "message", "role": "assistant", "model": self._model}

    # --- frames ------------------------------------------------------------------------------------------------------

    def _started(self, block: Json | Raw, index: int) -> bytes:
        self._index, self._newest = self._index + 1, index
        return _frame("content_block_start", index=self._index, content_block=block)

    def _delta_frame(self, delta: Json) -> bytes:
        return _frame("content_block_delta", index=self._index, delta=delta)

    def _encoded(self, frames: Sequence[bytes], at: Cursor, then: Cursor | None) -> bytes:
        """Returns the frames with their ids, without the frames that the client already has. The id of an event's last
        frame is the cursor after the event.
        """
        skip, self._skip = self._skip, 0
        ids = [f"{at}.{number}" for number in range(1, len(frames) + 1)]
        if then is not None:
            ids[-1:] = [str(then)] * bool(frames)
        return b"".join(
            b"id: %b\n%b" % (id.encode(), frame) for id, frame in list(zip(ids, frames, strict=True))[skip:]
        )


def _frame(type: str, **members: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (type.encode(), to_json({"type": type, **members}))


def _error(type: str, message: str, wait: Mapping[str, float] | None = None) -> bytes:
    return b"event: error\ndata: %b\n\n" % to_json(error_json(type, message, wait=wait))


def _rendered(block: Block) -> bytes | None:
    if provider_of(block) is not None:  # a model of another API wrote this block
        if block.type not in PORTABLE | THOUGHTS:
            return None
        block = replace(block, data=None)
    elif block.data is None and block.type not in PORTABLE | THOUGHTS:
        return None
    rendered = render_block(block)
    if block.type == THINKING and b'"signature":' not in rendered:
        rendered = rendered[:-1] + b',"signature":""}'
    return rendered


def _items(value: Raw) -> Sequence[Raw]:
    """Returns the items of a JSON array, or no items for null."""
    return msgspec.json.decode(value, type=list[Raw] | None) or ()


def _usage(usages: Sequence[Mapping[str, Any]]) -> Json:
    """Returns the summed usage of several model calls."""
    tokens = [billed_tokens(usage) for usage in usages]
    return {
        "input_tokens": sum(each.input for each in tokens),
        "output_tokens": sum(each.output for each in tokens),
        "cache_creation_input_tokens": sum(each.cache_write for each in tokens),
        "cache_read_input_tokens": sum(each.cache_read for each in tokens),
    }
