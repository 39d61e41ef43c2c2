"""The gate of one reply holds the text of guarded blocks until the guards have passed it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from turnstream.domain.errors import PermanentError
from turnstream.domain.guards import Place
from turnstream.domain.kinds import STREAMED_MEMBERS, kind_of
from turnstream.domain.turns import Turn
from turnstream.engine.text_checks import TurnBlocked
from turnstream.kit.text import storable
from turnstream.libraries.guards.checks import CheckFailed, blocked, rule
from turnstream.libraries.guards.guard import EndTurn, Guard, Passage, TakeBack, Window
from turnstream.llm.provider import (
    BlockClosed,
    BlockData,
    BlockOpened,
    BlockText,
    MessageDelta,
    MessageEnded,
    MessageStarted,
    Part,
)
from turnstream.llm.raw_json import members_of, to_json


@dataclass(slots=True, eq=False)
class _Layer:
    """One guard of a block. `passed` is the text that the guard has released."""

    guard: Guard
    window: Window
    passed: list[str] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Guarded:
    """A block that is being received. Each layer receives the text that the layer before it released; `fresh` is the
    text that no layer has received yet.
    """

    opened: BlockOpened
    place: Place
    layers: list[_Layer]
    fresh: list[str] = field(default_factory=list)
    is_changed: bool = False


class ReplyGate:
    """Passes the texts of one reply, which continues the text `before`, through the `guards`. `turn` returns the turn
    as it is stored.

    If text that was already returned must be replaced, `begins_again` is true after `check`, and `check` returns the
    whole reply from its beginning. If `ended` is set, this error ends the turn. The guarded texts may have at most
    `most` characters.
    """

    def __init__(
        self, guards: Sequence[Guard], owner: str, turn: Callable[[], Turn], most: int, before: str = ""
    ) -> None:
        self._guards = guards
        self._owner = owner
        self._turn = turn
        self._most = most
        self._before = before
        self._by_key: dict[int, _Guarded] = {}
        self._passed: list[Part] = []
        self._first = 0  # the index of the first part that `check` adds
        self._received = 0
        self.begins_again = False
        self.ended: TurnBlocked | None = None

    async def check(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Returns the parts that may be shown now, from these parts and from the held text."""
        self.begins_again = False
        self._first = len(self._passed)
        touched: dict[int, _Guarded] = {}
        for part in parts:
            match part:
                case BlockText(key, text) if key in self._by_key:
                    self._receive(self._by_key[key], text)
                    touched[key] = self._by_key[key]
                    continue
                case BlockOpened(key=key):
                    await self._finish(key)
                    if guarded := self._open(part):
                        touched[key] = guarded
                        self._passed.append(guarded.opened)
                        continue
                case BlockClosed(key):
                    await self._finish(key)
                case MessageStarted() | MessageEnded() | MessageDelta(stop_reason=str()):
                    for key in [*self._by_key]:
                        await self._finish(key, keep=isinstance(part, MessageDelta))
                case _:
                    pass
            if self.ended:
                break
            self._passed.append(part)
        for key, guarded in touched.items():
            if self._by_key.get(key) is guarded and not self.ended:
                await self._advance(guarded, final=False)
        return self._passed[0 if self.begins_again else self._first :]

    def _open(self, part: BlockOpened) -> _Guarded | None:
        place = kind_of(part.type).guarded
        guards = [guard for guard in self._guards if place in guard.on]
        if place is None or not guards:
            return None
        opened, data = part._replace(text=""), part.data
        if part.text and data is not None:
            members = members_of(data)
            member = STREAMED_MEMBERS[part.type]
            opened = opened._replace(data=to_json({**members, member: ""}) if member in members else data)
        before, self._before = (self._before, "") if place == "text" else ("", self._before)
        guarded = _Guarded(opened, place, [_Layer(guard, Window(guard, before)) for guard in guards])
        self._by_key[part.key] = guarded
        self._receive(guarded, part.text)
        return guarded

    def _receive(self, guarded: _Guarded, text: str) -> None:
        self._received += len(text)
        if self._received > self._most:
            raise PermanentError("reply_too_long", f"The answer of the model has more than {self._most} characters.")
        if text:
            guarded.fresh.append(storable(text))

    async def _finish(self, key: int, *, keep: bool = False) -> None:
        """Checks and releases the rest of a block. With `keep`, more text of the block may follow."""
        guarded = self._by_key.get(key) if keep else self._by_key.pop(key, None)
        if guarded is None or self.ended:
            return
        await self._advance(guarded, final=True)
        if guarded.is_changed and guarded.place == "thinking":
            # Providers accept a thought only with the signature of its unchanged text. A thought without a signature is
            # not sent to them.
            self._passed.append(BlockData(key, "signature", ""))

    async def _advance(self, guarded: _Guarded, *, final: bool) -> None:
        text, guarded.fresh = "".join(guarded.fresh), []
        taken_back = False
        for place, layer in enumerate(guarded.layers):
            layer.window.add(text)
            text = ""
            if not layer.window.is_due(final=final):
                continue
            text, again = await self._apply(guarded, layer, final=final)
            if again:
                taken_back = True
                for later in guarded.layers[place + 1 :]:
                    later.window, later.passed = Window(later.guard), []
            if self.ended:
                break
        if taken_back:
            self._take_back(guarded)
        if text:
            self._passed.append(BlockText(guarded.opened.key, text))

    async def _apply(self, guarded: _Guarded, layer: _Layer, *, final: bool) -> tuple[str, bool]:
        """Returns the text that the layer releases, and whether this text replaces the block from its beginning."""
        guard, window = layer.guard, layer.window
        text, start = window.passage()
        for whole in (False, True):
            try:
                ruling = await rule(guard, self._passage(guarded, text, start, final=final))
            except CheckFailed as failure:
                self.ended = TurnBlocked(failure.error)
                window.close()
                return "", False
            match ruling:
                case EndTurn():
                    self.ended = blocked(guard, guarded.place, ruling)
                    window.close()
                    return self._replaced(guarded, layer, "") if ruling.take_back else ("", False)
                case TakeBack(instead):
                    window.close()
                    return self._replaced(guarded, layer, storable(instead))
                case _ if whole:
                    return self._replaced(guarded, layer, storable(window.apply_whole(ruling, final=final)))
                case _:
                    released = window.apply(ruling, final=final)
                    if released is not None:
                        released = storable(released)
                        guarded.is_changed = guarded.is_changed or released not in text
                        layer.passed.append(released)
                        return released, False
                    text, start = window.whole()
        raise AssertionError("the second check is of the whole block")

    def _replaced(self, guarded: _Guarded, layer: _Layer, text: str) -> tuple[str, bool]:
        """Returns the text that replaces all text released by the layer, and True. If the new text begins with the
        released text, returns the part to append, and False.
        """
        before, layer.passed = "".join(layer.passed), [text]
        guarded.is_changed = True
        return (text[len(before) :], False) if text.startswith(before) else (text, True)

    def _passage(self, guarded: _Guarded, text: str, start: int, *, final: bool) -> Passage:
        return Passage(guarded.place, text, self._owner, start, final, self._turn())

    def _take_back(self, guarded: _Guarded) -> None:
        """Removes the released text of a block from the passed parts."""
        key, passed = guarded.opened.key, self._passed
        opened = len(passed) - 1 - passed[::-1].index(guarded.opened)
        is_text = [isinstance(part, BlockText) and part.key == key for part in passed[opened:]]
        if any(is_text[: max(0, self._first - opened)]):
            self.begins_again = True
        passed[opened:] = [part for part, is_his in zip(passed[opened:], is_text, strict=True) if not is_his]
