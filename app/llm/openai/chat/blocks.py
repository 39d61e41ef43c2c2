"""Blocks out of deltas that name none: Chat Completions only ever says what is added to which member. Pure.

A change of member ends a text or a thought. A call that seems whole is closed when something else begins; one that does
not stays open, because its rest may still come between the others.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from app.domain.kinds import TEXT, THINKING, TOOL_USE
from app.llm.conversation.translation import UNNAMED, generated_call_id
from app.llm.provider import BlockClosed, BlockData, BlockOpened, BlockText, Part
from app.llm.raw_json import is_object, to_json

# What a thought is signed with, so that it may go back: the member it came in. No other provider takes it.
SIGNED = "openai:"
PROVIDER = "openai"


class Fragment(msgspec.Struct, gc=False):
    """A piece of a call, as far as the server said it."""

    index: int | None = None
    id: str | None = None
    name: str | None = None
    arguments: str | None = None


class PendingCall:
    __slots__ = ("arguments", "id", "index", "key", "name", "said_id", "state")

    def __init__(self, key: int, index: int | None, said_id: str | None, id: str) -> None:
        self.key = key
        self.index = index
        self.said_id = said_id
        self.id = id
        self.name: str | None = None
        self.arguments: list[str] = []
        self.state = "unnamed"  # then "open", then "closed"

    @property
    def is_whole(self) -> bool:
        return is_object("".join(self.arguments))


class Blocks:
    """One message. `seed` makes the ids of calls that come without one; it is different for every request."""

    def __init__(self, seed: bytes) -> None:
        self.calls: list[PendingCall] = []
        self._seed = seed
        self._next_key = 0
        self._saying: str | None = None
        self._key = -1
        self._details: list[dict[str, Any]] = []

    def say(self, member: str, text: str, parts: list[Part]) -> None:
        """More of a text or a thought; `member` is where the server said it."""
        if member != self._saying:
            self._begin(member, parts)
        parts.append(BlockText(self._key, text))

    def annotate(self, annotations: Sequence[Raw], parts: list[Part]) -> None:
        """Sources of the text that is being said, or of an empty one."""
        if self._saying != "content":
            self._begin("content", parts)
        parts.append(BlockData(self._key, "provider", PROVIDER))
        parts += [BlockData(self._key, "annotations", annotation, append=True) for annotation in annotations]

    def explain(self, details: Sequence[dict[str, Any]], parts: list[Part]) -> None:
        """What the server wants back with its thought, in pieces that belong together by index and type."""
        if self._saying is None or not _is_thought(self._saying):
            self._begin("reasoning_details", parts)
        for detail in details:
            self._add_detail(detail)

    def call(self, fragment: Fragment, parts: list[Part]) -> None:
        call = self._known(fragment) or self._new(fragment, parts)
        if call is None:
            return
        if call.state == "unnamed" and fragment.name:
            self._open(call, fragment.name, parts)
        if fragment.arguments:
            call.arguments.append(fragment.arguments)
            if call.state != "unnamed":
                parts.append(BlockText(call.key, fragment.arguments))

    def end(self, truncated: bool, parts: list[Part]) -> None:
        """Nothing more comes. A call that was cut stays open, for whoever reads to see that it was."""
        self._end_saying(parts)
        for call in self.calls:
            if call.state == "unnamed":
                self._open(call, UNNAMED, parts)
            if call.state == "open" and (call.is_whole or not truncated):
                parts.append(BlockClosed(call.key))
                call.state = "closed"

    # --- texts and thoughts --------------------------------------------------------------------------------------

    def _begin(self, member: str, parts: list[Part]) -> None:
        self._end_saying(parts)
        self._end_whole_calls(parts)
        self._saying, self._key = member, self._take_key()
        if _is_thought(member):
            data = {"type": THINKING, "thinking": "", "signature": SIGNED + member, "provider": PROVIDER}
            parts.append(BlockOpened(self._key, THINKING, to_json(data)))
        else:
            parts.append(BlockOpened(self._key, TEXT))

    def _end_saying(self, parts: list[Part]) -> None:
        if self._saying is None:
            return
        if kept := _worth_keeping(self._details):
            parts.append(BlockData(self._key, "reasoning_details", kept))
        parts.append(BlockClosed(self._key))
        self._saying, self._details = None, []

    def _add_detail(self, detail: dict[str, Any]) -> None:
        place = detail.get("index"), detail.get("type")
        known = next((one for one in self._details if (one.get("index"), one.get("type")) == place), None)
        if known is None:
            self._details.append(dict(detail))
            return
        for name, value in detail.items():
            if name in {"text", "summary"} and isinstance(value, str):
                known[name] = (known.get(name) or "") + value
            elif value is not None:
                known[name] = value

    # --- calls ---------------------------------------------------------------------------------------------------

    def _known(self, fragment: Fragment) -> PendingCall | None:
        """The call that `fragment` goes on with. Indexes are left out, or the same for all, and ids are repeated."""
        last = self.calls[-1] if self.calls else None
        if fragment.index is None:
            found = self._by_id(fragment.id) if fragment.id else None if fragment.name else last
        elif last is not None and last.index == fragment.index:
            found = last
        else:
            found = next((call for call in reversed(self.calls) if call.index == fragment.index), None)
        if found and fragment.name and found.state != "unnamed" and _is_another(found, fragment):
            return None
        return found

    def _by_id(self, id: str) -> PendingCall | None:
        return next((call for call in self.calls if call.said_id == id), None)

    def _new(self, fragment: Fragment, parts: list[Part]) -> PendingCall | None:
        if not (fragment.id or fragment.name or fragment.arguments):
            return None
        self._end_saying(parts)
        self._end_whole_calls(parts)
        taken = {call.id for call in self.calls}
        id = fragment.id if fragment.id and fragment.id not in taken else generated_call_id(self._seed, len(self.calls))
        call = PendingCall(self._take_key(), fragment.index, fragment.id, id)
        self.calls.append(call)
        return call

    def _open(self, call: PendingCall, name: str, parts: list[Part]) -> None:
        call.name, call.state = name, "open"
        parts.append(BlockOpened(call.key, TOOL_USE, None, "".join(call.arguments), call.id, name))

    def _end_whole_calls(self, parts: list[Part]) -> None:
        for call in self.calls:
            if call.state == "open" and call.is_whole:
                parts.append(BlockClosed(call.key))
                call.state = "closed"

    def _take_key(self) -> int:
        self._next_key += 1
        return self._next_key - 1


def _is_thought(member: str) -> bool:
    return member not in {"content", "refusal"}


def _is_another(call: PendingCall, fragment: Fragment) -> bool:
    """True for a named piece with an id of its own, or without one after a call that is whole."""
    if fragment.id and call.said_id:
        return fragment.id != call.said_id
    return call.is_whole


def _worth_keeping(details: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Plain words need no details: the block has them."""
    return details if any(detail.get("signature") or detail.get("data") for detail in details) else ()
