"""Parses the events of the Anthropic stream into parts. Pure: no client, no I/O.

Events, blocks and deltas of unknown types are kept unchanged. The hot path decodes only the text of deltas; opaque data
keeps the provider's bytes.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Raw, Struct

from turnstream.domain.kinds import CALLS
from turnstream.libraries.providers.raw_members import NULL, decode_text, other_members_json
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
)
from turnstream.llm.raw_json import members_of

# Members of a message that are parsed here or no longer needed.
_KNOWN = frozenset({"id", "type", "role", "model", "content", "stop_reason", "usage", "delta", "message"})


class _Delta(Struct, gc=False):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None


class _Event(Struct, gc=False):
    type: str = ""
    index: int = 0
    delta: _Delta | None = None


class _Block(Struct):
    type: str
    id: str | None = None
    tool_use_id: str | None = None
    name: str | None = None
    text: str | None = None
    thinking: str | None = None
    input: Raw = NULL
    content: Raw = NULL


class _RareDelta(Struct):
    type: str
    signature: str | None = None
    citation: Raw = NULL
    content: str | None = None
    encrypted_content: str | None = None


class _Message(Struct):
    stop_reason: str | None = None
    usage: dict[str, Any] | None = None
    content: list[Raw] | None = None


_event = msgspec.json.Decoder(_Event)
_block = msgspec.json.Decoder(_Block)
_rare_delta = msgspec.json.Decoder(_RareDelta)
_message = msgspec.json.Decoder(_Message)


class AnthropicWire(Wire):
    """Parses one answer. `failure` is the decoded event that reports a failure."""

    def _read_event(self, data: bytes, parts: list[Part]) -> None:
        event = _event.decode(data)
        delta = event.delta
        text: str | None = None
        if delta is not None and event.type == "content_block_delta":
            match delta.type:
                case "text_delta":
                    text = delta.text
                case "input_json_delta":
                    text = delta.partial_json
                case "thinking_delta":
                    text = delta.thinking
                case _:
                    pass
        if text is not None:
            parts.append(BlockText(event.index, text))
        else:
            parts += self._read_rare(event, members_of(data.decode()))

    def _read_unexpected(self, value: Any, data: bytes, parts: list[Part]) -> None:
        if isinstance(value, dict) and "error" in value:
            self.failure = value
        else:
            parts.append(Unknown(decode_text(data)))

    def _read_rare(self, event: _Event, members: dict[str, Raw]) -> Iterable[Part]:
        match event.type:
            case "ping":
                return ()
            case "content_block_start":
                return (_opened(event.index, members.get("content_block", NULL)),)
            case "content_block_delta":
                return _block_data(event.index, members.get("delta", NULL))
            case "content_block_stop":
                return (BlockClosed(event.index),)
            case "message_start":
                return _message_parts(members.get("message", NULL), self.request_id)
            case "message_delta":
                delta = members.get("delta", Raw(b"{}"))
                usage = msgspec.json.decode(members.get("usage", NULL), type=dict[str, Any] | None)
                data = other_members_json({**members, **members_of(delta)}, _KNOWN)
                return (MessageDelta(_message.decode(delta).stop_reason, usage or {}, data),)
            case "message":
                self.ended = True
                return (*_message_parts(Raw(msgspec.json.encode(members)), self.request_id), MessageEnded())
            case "message_stop":
                self.ended = True
                return (MessageEnded(),)
            case _ if "error" in members:
                self.failure = {name: msgspec.json.decode(value) for name, value in members.items()}
                return ()
            case _:
                return (Unknown(decode_text(msgspec.json.encode(members))),)


def _opened(key: int, raw: Raw) -> BlockOpened:
    block = _block.decode(raw)
    text = ""
    data: str | None = decode_text(raw)
    if block.type in CALLS:
        if bytes(block.input) != b"null" and members_of(block.input):  # the input came at once; else deltas follow
            text = decode_text(block.input)
    elif block.type == "text":
        text = block.text or ""
        members = members_of(raw)
        no_citations = bytes(members.get("citations", NULL)) in {b"null", b"[]"}
        if no_citations and members.keys() <= {"type", "text", "citations"}:
            data = None  # the block has only its text
    elif block.type == "thinking":
        text = block.thinking or ""
    elif block.type == "compaction":
        text = msgspec.json.decode(block.content, type=str | None) or ""
    return BlockOpened(key, block.type, data, text, block.id or block.tool_use_id, block.name)


def _block_data(key: int, raw: Raw) -> Iterator[Part]:
    delta = _rare_delta.decode(raw)
    match delta.type:
        case "signature_delta" if delta.signature is not None:
            yield BlockData(key, "signature", delta.signature)
        case "citations_delta" if delta.citation is not NULL:
            yield BlockData(key, "citations", delta.citation, append=True)
        case "compaction_delta":
            if delta.content:
                yield BlockText(key, delta.content)
            if delta.encrypted_content is not None:
                yield BlockData(key, "encrypted_content", delta.encrypted_content)
        case _:
            yield Unknown(decode_text(raw))


def _message_parts(raw: Raw, request_id: str | None) -> list[Part]:
    message = _message.decode(raw)
    parts: list[Part] = [MessageStarted(message.usage or {}, request_id, other_members_json(members_of(raw), _KNOWN))]
    for place, block in enumerate(message.content or ()):
        key = -1 - place  # a key that no event of this message has
        parts += (_opened(key, block), BlockClosed(key))
    if message.stop_reason is not None:
        parts.append(MessageDelta(message.stop_reason, {}))
    return parts
