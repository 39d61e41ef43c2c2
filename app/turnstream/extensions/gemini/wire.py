"""Parses the chunks of a Gemini stream into parts. Pure: no client, no I/O.

Each chunk has pieces of the reply, and the usage so far. No event marks the end: a finish reason ends the reply.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from turnstream.domain.kinds import SERVER_RESULT, SERVER_TOOL_USE, TEXT, THINKING, TOOL_USE
from turnstream.libraries.providers.raw_members import NULL, decode_text
from turnstream.libraries.providers.transport.wire import Wire
from turnstream.llm.provider import (
    BlockClosed,
    BlockData,
    BlockOpened,
    BlockText,
    MessageDelta,
    MessageEnded,
    MessageStarted,
    Part,
    Unknown,
    generated_call_id,
)
from turnstream.llm.raw_json import members_of, to_json

PROVIDER = "gemini"
SIGNATURE = "thoughtSignature"
STOP_REASONS = {
    "STOP": "end_turn",
    "MAX_TOKENS": "max_tokens",
    "BLOCKLIST": "refusal",
    "IMAGE_PROHIBITED_CONTENT": "refusal",
    "IMAGE_RECITATION": "refusal",
    "IMAGE_SAFETY": "refusal",
    "LANGUAGE": "refusal",
    "MODEL_ARMOR": "refusal",
    "PROHIBITED_CONTENT": "refusal",
    "RECITATION": "refusal",
    "SAFETY": "refusal",
    "SPII": "refusal",
}
# Finish reasons of failed replies, which a repeated request may avoid.
FAILED = frozenset({"MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "TOO_MANY_TOOL_CALLS", "UNEXPECTED_TOOL_CALL"})
_UNSIGNED = "MISSING_THOUGHT_SIGNATURE"


class _Text(Struct, gc=False, forbid_unknown_fields=True):
    """A piece of text, by far the most frequent type of part."""

    text: str
    thought: bool = False
    thoughtSignature: str | None = None  # noqa: N815


class _LaxText(Struct):
    """A piece of text with members that the parser does not read."""

    text: str
    thought: bool = False
    thoughtSignature: str | None = None  # noqa: N815


class _Call(Struct):
    name: str
    id: str | None = None
    args: Raw = NULL


class _Identified(Struct):
    """The common members of calls and results of the provider's tools."""

    id: str | None = None
    toolType: str | None = None  # noqa: N815
    args: Raw = NULL


class _Content(Struct, gc=False):
    parts: list[Raw] | None = None


class _Candidate(Struct, gc=False):
    content: _Content | None = None
    finishReason: str | None = None  # noqa: N815
    finishMessage: str | None = None  # noqa: N815
    index: int = 0
    groundingMetadata: Raw = NULL  # noqa: N815
    citationMetadata: Raw = NULL  # noqa: N815
    urlContextMetadata: Raw = NULL  # noqa: N815


class _Chunk(Struct, gc=False):
    candidates: list[_Candidate] | None = None
    usageMetadata: dict[str, Any] | None = None  # noqa: N815
    promptFeedback: Raw = NULL  # noqa: N815
    responseId: str | None = None  # noqa: N815
    error: Raw = NULL


_chunk = msgspec.json.Decoder(_Chunk)
_text = msgspec.json.Decoder(_Text)
_lax_text = msgspec.json.Decoder(_LaxText)
_call = msgspec.json.Decoder(_Call)
_identified = msgspec.json.Decoder(_Identified)


class GeminiWire(Wire):
    """Parses one reply. `model` is stored beside the signatures of its parts, which other models do not accept. `seed`
    makes ids for calls that arrive without an id.
    """

    def __init__(self, request_id: str | None = None, model: str = "", seed: bytes = b"") -> None:
        super().__init__(request_id)
        self._model = model
        self._seed = seed
        self._started = False
        self._finish_reason: str | None = None
        self._figures: dict[str, Any] = {}
        self._key = -1
        self._open: str | None = None  # the type of the open text or thought
        self._sealed = False  # the signature of the open block is complete, so the next piece begins another block
        self._pieces: list[str] = []  # text of the open block
        self._ids: set[str] = set()
        self._called = False
        self._server_call: str | None = None
        self._sources: dict[str, Raw] = {}

    @property
    def finished(self) -> bool:
        return self._finish_reason is not None

    def end(self) -> list[Part]:
        parts = super().end()
        if self.finished and not self.over:
            self._end(parts)
        return parts

    def feed_whole(self, body: bytes) -> list[Part]:
        """Reads a reply that a server without event streams sends as one value: a chunk, or a list of chunks."""
        return super().feed_whole(body) + self.end()

    def _read_event(self, data: bytes, parts: list[Part]) -> None:
        chunk = _chunk.decode(data)
        if chunk.error is not NULL:
            self.failure = msgspec.json.decode(data)
            return
        if not self._started:
            if chunk.candidates is None and chunk.usageMetadata is None and chunk.promptFeedback is NULL:
                parts.append(Unknown(decode_text(data)))
                return
            self._started = True
            self.request_id = self.request_id or chunk.responseId
            parts.append(MessageStarted({}, self.request_id))
        for candidate in chunk.candidates or ():
            if not candidate.index:
                self._read_candidate(candidate, parts)
        if chunk.promptFeedback is not NULL and "blockReason" in members_of(chunk.promptFeedback):
            self._finish_reason = "PROHIBITED_CONTENT"
            parts.append(Unknown(to_json({"promptFeedback": Raw(decode_text(chunk.promptFeedback).encode())})))
        if (figures := usage_of(chunk.usageMetadata or {})) and figures != self._figures:
            self._figures = figures
            parts.append(MessageDelta(None, figures))

    def _read_unexpected(self, value: Any, data: bytes, parts: list[Part]) -> None:
        """Reads a list of chunks, which the API sends without `alt=sse`. Keeps JSON of any other shape."""
        if isinstance(value, list):
            for each in msgspec.json.decode(data, type=list[Raw]):
                if not self.over:
                    self._read(bytes(each), parts)
        else:
            parts.append(Unknown(decode_text(data)))

    def _read_done(self, parts: list[Part]) -> None:
        """Ends the reply at `[DONE]`, which some gateways send."""
        if self.finished:
            self._end(parts)

    def _read_candidate(self, candidate: _Candidate, parts: list[Part]) -> None:
        for raw in (candidate.content and candidate.content.parts) or ():
            try:
                text = _text.decode(raw)
            except msgspec.ValidationError:
                self._read_other(raw, members_of(raw), parts)
            else:
                self._read_text(text, raw, parts)
        for member in ("groundingMetadata", "citationMetadata", "urlContextMetadata"):
            if (found := getattr(candidate, member)) is not NULL and members_of(found):
                self._sources[member] = found
        self._finish_reason = candidate.finishReason or self._finish_reason
        reason, message = candidate.finishReason, candidate.finishMessage
        if reason in FAILED:
            self.failure = {"code": reason, "message": message or f"The model's answer broke off ({reason})."}
        elif reason == _UNSIGNED:
            self.failure = {"code": "INVALID_ARGUMENT", "message": message or "A thought signature is missing."}

    def _read_text(self, piece: _Text | _LaxText, raw: Raw, parts: list[Part]) -> None:
        type = THINKING if piece.thought else TEXT
        if not piece.text:
            if piece.thoughtSignature is None:
                return
            if type != self._open or self._sealed:  # the signature belongs to no text
                self._end_open(parts)
                self._add_whole("gemini_signature", raw, parts)
                return
        elif type != self._open or self._sealed:
            self._begin(type, parts)
        start = len("".join(self._pieces)) if piece.thoughtSignature else 0
        if piece.text:
            self._pieces.append(piece.text)
            parts.append(BlockText(self._key, piece.text))
        if piece.thoughtSignature is not None:
            self._sealed = True
            if type == TEXT:
                parts += (BlockData(self._key, "provider", PROVIDER), BlockData(self._key, "model", self._model))
            parts.append(BlockData(self._key, SIGNATURE, piece.thoughtSignature))
            parts.append(BlockData(self._key, "signed_from", start))

    def _read_other(self, raw: Raw, members: dict[str, Raw], parts: list[Part]) -> None:
        if "text" in members:
            self._read_text(_lax_text.decode(raw), raw, parts)
            return
        self._end_open(parts)
        if "functionCall" in members:
            self._read_call(members, parts)
            return
        kind = next((name for name in members if name not in {"thought", SIGNATURE, "partMetadata"}), None)
        match kind:
            case "executableCode":
                code = _identified.decode(members[kind])
                self._add_server_call("code_execution", code.id, members[kind], raw, parts)
            case "codeExecutionResult":
                self._add_result("code_execution", _identified.decode(members[kind]).id, raw, parts)
            case "toolCall":
                tool = _identified.decode(members[kind])
                self._add_server_call((tool.toolType or "tool").lower(), tool.id, tool.args, raw, parts)
            case "toolResponse":
                tool = _identified.decode(members[kind])
                self._add_result((tool.toolType or "tool").lower(), tool.id, raw, parts)
            case None if SIGNATURE not in members:
                pass
            case _:
                self._add_whole(f"gemini_{kind or 'signature'}", raw, parts)

    def _read_call(self, members: dict[str, Raw], parts: list[Part]) -> None:
        try:
            call = _call.decode(members["functionCall"])
        except msgspec.ValidationError:  # a call in pieces, which the API sends only on request
            parts.append(Unknown(to_json(members)))
            return
        self._called = True
        id = self._unique(call.id)
        own: dict[str, Any] = {"type": TOOL_USE, "id": id, "name": call.name, "input": {}, "provider": PROVIDER}
        own |= {"model": self._model} | ({"call_id": call.id} if call.id else {})
        if SIGNATURE in members:
            own[SIGNATURE] = members[SIGNATURE]
        arguments = "{}" if bytes(call.args) == b"null" else decode_text(call.args)
        key = self._take_key()
        parts += (
            BlockOpened(key, TOOL_USE, decode_text(to_json(own).encode()), arguments, id, call.name),
            BlockClosed(key),
        )

    def _add_server_call(self, name: str, id: str | None, input: Raw, raw: Raw, parts: list[Part]) -> None:
        self._server_call = id = self._unique(id)
        own = {"type": SERVER_TOOL_USE, "id": id, "name": name, "input": {}, **self._marks(raw)}
        key, text = self._take_key(), "{}" if bytes(input) == b"null" else decode_text(input)
        parts += (BlockOpened(key, SERVER_TOOL_USE, to_json(own), text, id, name), BlockClosed(key))

    def _add_result(self, name: str, id: str | None, raw: Raw, parts: list[Part]) -> None:
        self._add_whole(f"{name}{SERVER_RESULT}", raw, parts, id or self._server_call)

    def _add_whole(self, type: str, raw: Raw, parts: list[Part], tool_use_id: str | None = None) -> None:
        """Adds a complete block for a part that is not text."""
        named = {"tool_use_id": tool_use_id} if tool_use_id else {}
        key = self._take_key()
        shell = to_json({"type": type, **named, **self._marks(raw)})
        parts += (BlockOpened(key, type, shell, "", tool_use_id), BlockClosed(key))

    def _marks(self, raw: Raw) -> dict[str, Any]:
        return {"provider": PROVIDER, "model": self._model, "item": Raw(decode_text(raw).encode())}

    def _begin(self, type: str, parts: list[Part]) -> None:
        self._end_open(parts)
        self._open, self._pieces = type, []
        self._take_key()
        if type == THINKING:
            own = {"type": THINKING, "thinking": "", "signature": PROVIDER, "provider": PROVIDER, "model": self._model}
            parts.append(BlockOpened(self._key, THINKING, to_json(own)))
        else:
            parts.append(BlockOpened(self._key, TEXT))

    def _end_open(self, parts: list[Part]) -> None:
        if self._open is not None:
            parts.append(BlockClosed(self._key))
        self._open, self._sealed = None, False

    def _end(self, parts: list[Part]) -> None:
        reason = self._finish_reason or ""
        stop_reason = STOP_REASONS.get(reason, reason)
        if stop_reason == "end_turn" and self._called:
            stop_reason = "tool_use"
        if self._sources:
            self._add_sources(parts)
        self._end_open(parts)
        parts += (MessageDelta(stop_reason, {}), MessageEnded())
        self.ended = True

    def _add_sources(self, parts: list[Part]) -> None:
        """Adds the sources, which arrive at the end, to the open text of the reply, or to a new empty text."""
        if self._open != TEXT:
            self._begin(TEXT, parts)
        text = "".join(self._pieces)
        parts.append(BlockData(self._key, "provider", PROVIDER))
        for member, raw in self._sources.items():
            parts.append(BlockData(self._key, member, Raw(decode_text(raw).encode())))
            found = annotations_of(member, msgspec.json.decode(raw), text)
            parts += [BlockData(self._key, "annotations", annotation, append=True) for annotation in found]

    def _unique(self, id: str | None) -> str:
        """Returns the id if it is unique in the reply, else a generated id."""
        if not id or id in self._ids:
            id = generated_call_id(self._seed, len(self._ids))
        self._ids.add(id)
        return id

    def _take_key(self) -> int:
        self._key += 1
        return self._key


def usage_of(usage: dict[str, Any]) -> dict[str, Any]:
    """Translates the provider's usage to a turn's. `input_tokens` excludes tokens read from a cache. The prompts of the
    provider's tools count as input, and thoughts as output.
    """
    prompt, cached = _count(usage, "promptTokenCount"), _count(usage, "cachedContentTokenCount")
    output, thoughts = _count(usage, "candidatesTokenCount"), _count(usage, "thoughtsTokenCount")
    figures: dict[str, Any] = {}
    if prompt is not None:
        figures["input_tokens"] = max(0, prompt - (cached or 0)) + (_count(usage, "toolUsePromptTokenCount") or 0)
    if cached is not None:
        figures["cache_read_input_tokens"] = cached
    if output is not None or thoughts is not None:
        figures["output_tokens"] = (output or 0) + (thoughts or 0)
    if thoughts is not None:
        figures["output_tokens_details"] = {"thinking_tokens": thoughts}
    return figures


def _count(usage: dict[str, Any], name: str) -> int | None:
    found = usage.get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def annotations_of(member: str, found: Any, text: str) -> Sequence[dict[str, Any]]:
    """Returns the sources of a text as annotations, each with the range of the text that it supports, if the range is
    known.
    """
    if member == "citationMetadata":
        listed = found.get("citationSources") or found.get("citations")
        return [_annotation(each, {}) for each in _objects(listed) if isinstance(each.get("uri"), str)]
    sources = [next(iter(_objects(list(chunk.values()))), {}) for chunk in _objects(found.get("groundingChunks"))]
    annotations: list[dict[str, Any]] = []
    supported: set[int] = set()
    end = 0
    for support in _objects(found.get("groundingSupports")):
        segment = support.get("segment")
        words = segment.get("text") if isinstance(segment, dict) else None
        start = text.find(words, end) if isinstance(words, str) and words else -1
        place = {"start_index": start, "end_index": start + len(words)} if words and start >= 0 else {}
        end = max(end, start)
        for number in support.get("groundingChunkIndices") or ():
            if isinstance(number, int) and 0 <= number < len(sources) and isinstance(sources[number].get("uri"), str):
                supported.add(number)
                annotations.append(_annotation(sources[number], place))
    rest = [source for number, source in enumerate(sources) if number not in supported]
    return [*annotations, *(_annotation(source, {}) for source in rest if isinstance(source.get("uri"), str))]


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _annotation(source: dict[str, Any], place: dict[str, int]) -> dict[str, Any]:
    return {"type": "url_citation", "url": source["uri"], "title": source.get("title") or source["uri"], **place}
