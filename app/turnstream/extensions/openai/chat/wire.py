"""Parses chat completion streams: converts chunks to parts. Pure: no client, no I/O.

The streams come from OpenAI or a compatible server, so any member may be missing, null, late or of another type. On the
hot path only the content of a delta is decoded; other members stay raw JSON until they are needed.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from turnstream.extensions.openai.chat.blocks import Blocks, Fragment
from turnstream.extensions.openai.usage import usage_of
from turnstream.libraries.providers.raw_members import NULL, decode_text, other_members_json
from turnstream.libraries.providers.transport.wire import Wire
from turnstream.llm.provider import MessageDelta, MessageEnded, MessageStarted, Part, Unknown
from turnstream.llm.raw_json import members_of, to_json

STOP_REASONS: Mapping[str, str] = {
    "content_filter": "refusal",
    "eos": "end_turn",
    "function_call": "tool_use",
    "length": "max_tokens",
    "max_tokens": "max_tokens",
    "model_length": "model_context_window_exceeded",
    "stop": "end_turn",
    "stop_sequence": "stop_sequence",
    "tool_calls": "tool_use",
}
# Finish reasons that report a failure of the server; a retry may succeed.
FAILED = frozenset({"abort", "aborted", "error", "insufficient_system_resource", "network_error"})

_TRUNCATED = frozenset({"max_tokens", "model_context_window_exceeded"})
# Members of a chunk that this module reads, or that are not worth storing.
_KNOWN = frozenset(
    {
        "choices",
        "citations",
        "created",
        "error",
        "id",
        "model",
        "object",
        "obfuscation",
        "p",
        "search_results",
        "type",
        "usage",
    }
)


class _Function(Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _ToolCall(Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Piece(Struct, gc=False):
    type: str = ""
    text: str | None = None
    thinking: "str | list[_Piece] | None" = None


class _Delta(Struct, gc=False):
    content: str | list[_Piece] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_text: str | None = None
    reasoning_details: list[dict[str, Any]] | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None
    function_call: _Function | None = None
    annotations: list[Raw] | None = None
    executed_tools: list[Raw] | None = None


class _Choice(Struct, gc=False):
    index: int | None = None
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None
    error: Raw = NULL


class _Chunk(Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: Raw = NULL
    error: Raw = NULL
    id: str | None = None
    citations: Raw = NULL
    search_results: Raw = NULL


_chunk = msgspec.json.Decoder(_Chunk)
_lax_chunk = msgspec.json.Decoder(_Chunk, strict=False)


class ChatWire(Wire):
    """Parses one stream. It is `finished` as soon as the finish reason is known, because some servers send no later
    event. `failure` is the decoded failure that the server reported. Missing ids of calls are generated from `seed`.
    """

    def __init__(self, request_id: str | None = None, seed: bytes = b"") -> None:
        super().__init__(request_id)
        self._blocks = Blocks(seed)
        self._started = False
        self._refused = False
        self._finish_reason: str | None = None
        self._figures: dict[str, Any] = {}
        self._sources = NULL, NULL  # Perplexity repeats the sources in every chunk

    @property
    def finished(self) -> bool:
        return self._finish_reason is not None

    def end(self) -> list[Part]:
        parts = super().end()
        if self.finished and not self.over:
            self._end(parts)
        return parts

    def _read_event(self, data: bytes, parts: list[Part]) -> None:
        self._read_chunk(_chunk.decode(data), data, parts)

    def _read_unexpected(self, value: Any, data: bytes, parts: list[Part]) -> None:
        """Parses a chunk leniently if its members have unexpected types. Any other value is a failure or an unknown
        event.
        """
        try:
            chunk = _lax_chunk.decode(data)
        except msgspec.ValidationError:
            self._read_other(value, data, parts)
        else:
            self._read_chunk(chunk, data, parts)

    def _read_other(self, value: Any, data: bytes, parts: list[Part]) -> None:
        """Parses data that is not a chunk: one of several forms of failure, or an unknown form."""
        members = value if isinstance(value, dict) else {}
        if members.get("error") or "error" in {members.get("object"), members.get("type")}:
            self.failure = value
        elif members.get("type") != "ping":
            parts.append(Unknown(decode_text(data)))

    def _read_chunk(self, chunk: _Chunk, data: bytes, parts: list[Part]) -> None:
        """Parses one chunk. Only the first choice is used, because requests ask for one."""
        choices, failed = chunk.choices, _is_failure(chunk.error)
        if choices is None and (failed or chunk.usage is NULL):
            self._read_other(msgspec.json.decode(data), data, parts)
            return
        if not self._started:
            self._started = True
            self.request_id = self.request_id or chunk.id or None
            parts.append(MessageStarted({}, self.request_id, other_members_json(members_of(data), _KNOWN)))
        broken = None  # a gateway may put the failure into the choice
        for choice in choices or ():
            if choice.index:
                continue
            if _is_failure(choice.error):
                broken = msgspec.json.decode(choice.error)
            if delta := choice.delta or choice.message:
                self._read_delta(delta, parts)
            self._finish_reason = choice.finish_reason or self._finish_reason
        if chunk.citations is not NULL or chunk.search_results is not NULL:
            self._sources = chunk.citations, chunk.search_results
        if chunk.usage is not NULL:
            figures = usage_of(msgspec.json.decode(chunk.usage))
            if figures and figures != self._figures:  # some servers repeat the usage in every chunk
                self._figures = figures
                others = other_members_json(members_of(data), _KNOWN) if self.finished else None
                parts.append(MessageDelta(None, figures, others))
        if failed:
            self.failure = msgspec.json.decode(data)
        elif broken is not None:
            self.failure = {"error": broken}
        elif self._finish_reason in FAILED:
            message = f"The provider broke off its answer ({self._finish_reason})."
            self.failure = {"code": self._finish_reason, "message": message}

    def _read_delta(self, delta: _Delta, parts: list[Part]) -> None:
        blocks, content = self._blocks, delta.content
        if delta.reasoning_content:
            blocks.append_text("reasoning_content", delta.reasoning_content, parts)
        elif delta.reasoning:
            blocks.append_text("reasoning", delta.reasoning, parts)
        elif delta.reasoning_text:
            blocks.append_text("reasoning_text", delta.reasoning_text, parts)
        elif delta.reasoning_details:
            for thought in (detail.get(name) for detail in delta.reasoning_details for name in ("text", "summary")):
                if isinstance(thought, str) and thought:
                    blocks.append_text("reasoning_details", thought, parts)
        if delta.reasoning_details:
            blocks.append_details(delta.reasoning_details, parts)
        if content.__class__ is str:
            if content:
                blocks.append_text("content", content, parts)
        elif content:
            for member, text in _pieces(content):
                blocks.append_text(member, text, parts)
        if delta.refusal:
            self._refused = True
            blocks.append_text("refusal", delta.refusal, parts)
        if delta.annotations:
            blocks.append_annotations(delta.annotations, parts)
        for executed in delta.executed_tools or ():
            blocks.append_executed(executed, parts)
        for call in delta.tool_calls or ():
            blocks.append_call(_fragment(call), parts)
        if delta.function_call is not None:
            blocks.append_call(_fragment(_ToolCall(0, None, delta.function_call)), parts)

    def _read_done(self, parts: list[Part]) -> None:
        """Ends the message. If a call is incomplete and the finish reason is missing, the message was truncated and
        stays open.
        """
        if not self._started:
            return
        if self.finished or all(call.is_whole or not call.arguments for call in self._blocks.calls):
            self._end(parts)

    def _end(self, parts: list[Part]) -> None:
        finish_reason = self._finish_reason or "stop"
        stop_reason = STOP_REASONS.get(finish_reason, finish_reason)
        if stop_reason in {"end_turn", "tool_use"}:
            # Some servers send `stop` although there are calls, or `tool_calls` although there are none.
            stop_reason = "tool_use" if self._blocks.calls else "refusal" if self._refused else "end_turn"
        if sources := _annotations(*self._sources):
            self._blocks.annotate(sources, parts)
        self._blocks.end(stop_reason in _TRUNCATED, parts)
        parts += (MessageDelta(stop_reason, {}), MessageEnded())
        self.ended = True


def _is_failure(error: Raw) -> bool:
    return error is not NULL and bool(msgspec.json.decode(error))


def _annotations(citations: Raw, results: Raw) -> list[Raw]:
    """Returns the sources of a text, in the order of the numbers by which the text cites them."""
    urls, known = msgspec.json.decode(citations), msgspec.json.decode(results)
    known = [each for each in known if isinstance(each, dict)] if isinstance(known, list) else []
    titles = {each.get("url"): each.get("title") for each in known}
    listed = urls if isinstance(urls, list) and urls else [each.get("url") for each in known]
    return [
        Raw(to_json({"type": "url_citation", "url_citation": {"url": url, "title": titles.get(url) or url}}).encode())
        for url in listed
        if isinstance(url, str)
    ]


def _pieces(content: str | list[_Piece]) -> Iterator[tuple[str, str]]:
    for piece in content:
        assert isinstance(piece, _Piece)
        if isinstance(piece.thinking, list):
            yield from (("thinking", inner.text) for inner in piece.thinking if inner.text)
        elif piece.thinking:
            yield "thinking", piece.thinking
        if piece.text:
            yield "content", piece.text


def _fragment(call: _ToolCall) -> Fragment:
    function = call.function or _Function()
    arguments = function.arguments
    if isinstance(arguments, dict):
        arguments = to_json(arguments)
    return Fragment(call.index, call.id, function.name, arguments)
