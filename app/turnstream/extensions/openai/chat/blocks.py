"""Builds blocks from the deltas of Chat Completions. A delta names the member that it extends, but no block. Pure.

A text or a thought is closed when a delta extends another member. Calls with complete arguments are closed then, too;
an incomplete call stays open, because its rest may arrive between other deltas.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from msgspec import Raw

from turnstream.domain.kinds import SERVER_RESULT, SERVER_TOOL_USE, TEXT, THINKING, TOOL_USE
from turnstream.llm.provider import UNNAMED, BlockClosed, BlockData, BlockOpened, BlockText, Part, generated_call_id
from turnstream.llm.raw_json import is_object, to_json

# The signature of a thought is this prefix and the thought's member; no other provider accepts it.
SIGNATURE_PREFIX = "openai:"
PROVIDER = "openai"


class Fragment(msgspec.Struct, gc=False):
    """A piece of a call. A server may omit any of its members."""

    index: int | None = None
    id: str | None = None
    name: str | None = None
    arguments: str | None = None


class _Executed(msgspec.Struct):
    """A call of a tool that Groq's compound models run themselves. A call without an output is still running."""

    index: int | None = None
    type: str = UNNAMED
    arguments: str | None = None
    output: Any = None


_executed = msgspec.json.Decoder(_Executed)


@dataclass(slots=True)
class PendingCall:
    key: int
    index: int | None
    sent_id: str | None
    id: str
    arguments: list[str] = field(default_factory=list)
    state: Literal["unnamed", "open", "closed"] = "unnamed"

    @property
    def is_whole(self) -> bool:
        return is_object("".join(self.arguments))


class Blocks:
    """The blocks of one message. Missing ids of calls are generated from `seed`, which differs in every request."""

    def __init__(self, seed: bytes) -> None:
        self.calls: list[PendingCall] = []
        self._seed = seed
        self._next_key = 0
        self._member: str | None = None  # the source member of the open text or thought
        self._key = -1
        self._details: list[dict[str, Any]] = []
        self._executed: dict[int, str] = {}  # ids of calls by number

    def append_text(self, member: str, text: str, parts: list[Part]) -> None:
        """Appends `text` to a text or to a thought, depending on the delta's member."""
        if member != self._member:
            self._begin(member, parts)
        parts.append(BlockText(self._key, text))

    def append_annotations(self, annotations: Sequence[Raw], parts: list[Part]) -> None:
        """Adds sources to the open text, or to a new empty text."""
        if self._member != "content":
            self._begin("content", parts)
        parts.append(BlockData(self._key, "provider", PROVIDER))
        parts += [BlockData(self._key, "annotations", annotation, append=True) for annotation in annotations]

    def annotate(self, annotations: Sequence[Raw], parts: list[Part]) -> None:
        """Adds sources to the last text of the answer, if the answer ends with a text."""
        if self._member == "content":
            self.append_annotations(annotations, parts)

    def append_executed(self, raw: Raw, parts: list[Part]) -> None:
        """Adds the call of a server's tool at the first event of the call, and the result at the event that has the
        output.
        """
        tool = _executed.decode(raw)
        number = len(self._executed) if tool.index is None else tool.index
        id = self._executed.get(number)
        if id is None:
            self._end_text(parts)
            id = self._executed[number] = generated_call_id(self._seed + b"executed", number)
            called = {"type": SERVER_TOOL_USE, "id": id, "name": tool.type, "input": {}, "provider": PROVIDER}
            key = self._take_key()
            parts.append(BlockOpened(key, SERVER_TOOL_USE, to_json(called), tool.arguments or "{}", id, tool.type))
            parts.append(BlockClosed(key))
        if tool.output is not None:
            self._end_text(parts)
            type, key = f"{tool.type}{SERVER_RESULT}", self._take_key()
            shell = {"type": type, "tool_use_id": id, "provider": PROVIDER, "item": raw}
            parts += (BlockOpened(key, type, to_json(shell), "", id), BlockClosed(key))

    def append_details(self, details: Sequence[dict[str, Any]], parts: list[Part]) -> None:
        """Adds details that must be sent back to the server with its thought. Details with the same index and type are
        joined.
        """
        if self._member is None or not _is_thought(self._member):
            self._begin("reasoning_details", parts)
        for detail in details:
            key = detail.get("index"), detail.get("type")
            known = next((one for one in self._details if (one.get("index"), one.get("type")) == key), None)
            if known is None:
                self._details.append(dict(detail))
                continue
            for name, value in detail.items():
                if name in {"text", "summary"} and isinstance(value, str):
                    known[name] = (known.get(name) or "") + value
                elif value is not None:
                    known[name] = value

    def append_call(self, fragment: Fragment, parts: list[Part]) -> None:
        call = self._find(fragment) or self._new(fragment, parts)
        if call is None:
            return
        if call.state == "unnamed" and fragment.name:
            self._open(call, fragment.name, parts)
        if fragment.arguments:
            call.arguments.append(fragment.arguments)
            if call.state != "unnamed":
                parts.append(BlockText(call.key, fragment.arguments))

    def end(self, truncated: bool, parts: list[Part]) -> None:
        """Closes every block at the end of the message, except an incomplete call of a truncated message: such a call
        becomes interrupted.
        """
        self._end_text(parts)
        for call in self.calls:
            if call.state == "unnamed":
                self._open(call, UNNAMED, parts)
            if call.state == "open" and (call.is_whole or not truncated):
                parts.append(BlockClosed(call.key))
                call.state = "closed"

    def _begin(self, member: str, parts: list[Part]) -> None:
        self._end_text(parts)
        self._close_whole_calls(parts)
        self._member, self._key = member, self._take_key()
        if _is_thought(member):
            signature = SIGNATURE_PREFIX + member
            data = {"type": THINKING, "thinking": "", "signature": signature, "provider": PROVIDER}
            parts.append(BlockOpened(self._key, THINKING, to_json(data)))
        else:
            parts.append(BlockOpened(self._key, TEXT))

    def _end_text(self, parts: list[Part]) -> None:
        if self._member is None:
            return
        # Details of plain text are not stored, because the block has the text.
        if any(detail.get("signature") or detail.get("data") for detail in self._details):
            parts.append(BlockData(self._key, "reasoning_details", self._details))
        parts.append(BlockClosed(self._key))
        self._member, self._details = None, []

    def _find(self, fragment: Fragment) -> PendingCall | None:
        """Returns the call to which `fragment` belongs. Servers omit indexes, use one index for all calls, or repeat
        ids.
        """
        last = self.calls[-1] if self.calls else None
        if fragment.index is None:
            if fragment.id:
                found = next((call for call in reversed(self.calls) if call.sent_id == fragment.id), None)
            else:
                found = None if fragment.name else last
        elif last is not None and last.index == fragment.index:
            found = last
        else:
            found = next((call for call in reversed(self.calls) if call.index == fragment.index), None)
        if found and fragment.name and found.state != "unnamed":
            # A named fragment with another id begins a new call. After a complete call, a named fragment also begins a
            # new call if the call or the fragment has no id, or if the fragment repeats the id with new arguments.
            if fragment.id and found.sent_id:
                more = found.is_whole and (fragment.arguments or "").strip()
                return None if more or fragment.id != found.sent_id else found
            return None if found.is_whole else found
        return found

    def _new(self, fragment: Fragment, parts: list[Part]) -> PendingCall | None:
        if not (fragment.id or fragment.name or fragment.arguments):
            return None
        self._end_text(parts)
        self._close_whole_calls(parts)
        taken = {call.id for call in self.calls}
        id = fragment.id if fragment.id and fragment.id not in taken else generated_call_id(self._seed, len(self.calls))
        call = PendingCall(self._take_key(), fragment.index, fragment.id, id)
        self.calls.append(call)
        return call

    def _open(self, call: PendingCall, name: str, parts: list[Part]) -> None:
        call.state = "open"
        parts.append(BlockOpened(call.key, TOOL_USE, None, "".join(call.arguments), call.id, name))

    def _close_whole_calls(self, parts: list[Part]) -> None:
        for call in self.calls:
            if call.state == "open" and call.is_whole:
                parts.append(BlockClosed(call.key))
                call.state = "closed"

    def _take_key(self) -> int:
        self._next_key += 1
        return self._next_key - 1


def _is_thought(member: str) -> bool:
    return member not in {"content", "refusal"}
