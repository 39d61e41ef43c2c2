"""Defines guards, which check texts before the texts are shown, stored or sent. Also defines the window of text that
waits for a check.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from turnstream.domain.guards import Place
from turnstream.domain.plans import Plans
from turnstream.domain.turns import Turn

if TYPE_CHECKING:
    from turnstream.engine.text_checks import TextChecks

OnFailure = Literal["closed", "open"]

MASK: Final = "[masked]"

_MOST_HELD = 100_000  # characters of an unfinished span; a longer span is masked up to this length


@dataclass(frozen=True, slots=True)
class Passage:
    """A text to check. The text before `start` has already passed and is only context. `final`: no more text follows.
    `tool` is the tool that returned a result. `turn` is the turn as read from its rows. `turn` is None for a message
    and its history, because the message's turn does not exist yet, and for the report of a job.
    """

    place: Place
    text: str
    owner: str
    start: int = 0
    final: bool = True
    turn: Turn | None = None
    tool: str | None = None


class TextSpan(NamedTuple):
    """The characters from `start` to `end` of a passage, and their replacement."""

    start: int
    end: int
    instead: str = MASK


@dataclass(frozen=True, slots=True)
class Pass:
    """The text passes. The last `undecided` characters are checked again with the following text; None means the
    overlap of the guard.
    """

    undecided: int | None = None


@dataclass(frozen=True, slots=True)
class Mask:
    """The spans are replaced."""

    spans: Sequence[TextSpan]
    undecided: int | None = None


@dataclass(frozen=True, slots=True)
class Replace:
    """The part of the passage that has not passed yet is replaced by `text`."""

    text: str


@dataclass(frozen=True, slots=True)
class TakeBack:
    """The whole block is replaced by `text`, including the part that readers have already received. The rest of the
    block is dropped.
    """

    text: str = ""


@dataclass(frozen=True, slots=True)
class EndTurn:
    """The turn ends with this reason, which the user reads. If `take_back` is true, the part of the block that was
    shown is removed first.
    """

    reason: str
    take_back: bool = False


Ruling = Pass | Mask | Replace | TakeBack | EndTurn


@dataclass(frozen=True, slots=True)
class Guard:
    """Checks texts of the kinds in `on`. A streamed text is checked after each `window` characters, together with the
    `overlap` characters before them, and at its end; without a window, only at its end. A check that takes longer than
    `timeout` seconds fails: then a `closed` guard passes no text, and an `open` guard passes all text. `plans` are the
    plans whose owners are checked; without plans, all owners are checked. An interrupted reply continues only if
    `continues` is true: the check then needs the overlap, but no earlier text. Otherwise the reply is voided and starts
    again.
    """

    name: str
    check: Callable[[Passage], Awaitable[Ruling]]
    on: frozenset[Place]
    window: int | None = None
    overlap: int = 200
    timeout: float = 10.0
    on_failure: OnFailure = "closed"
    plans: frozenset[str] = frozenset()
    continues: bool = False

    def applies(self, place: Place, plan: str) -> bool:
        return place in self.on and (not self.plans or plan in self.plans)

    @staticmethod
    def joined(guards: "Sequence[Guard]", plans: Plans) -> "TextChecks":
        """Returns the checks of a server that has these guards."""
        from turnstream.libraries.guards.server_checks import GuardChecks  # noqa: PLC0415, commands that load a guard check nothing

        return GuardChecks(guards, plans)


def merged(spans: Iterable[TextSpan], length: int) -> list[TextSpan]:
    """Returns the spans within a text of this length, in order and without overlap. If two spans overlap, the
    replacement of the first span is used for both.
    """
    found: list[TextSpan] = []
    for span in sorted(spans):
        start, end = max(span.start, 0), min(span.end, length)
        if start >= end:
            continue
        if found and start < found[-1].end:
            found[-1] = found[-1]._replace(end=max(end, found[-1].end))
        else:
            found.append(TextSpan(start, end, span.instead))
    return found


def masked(text: str, spans: Iterable[TextSpan]) -> str:
    """Returns the text with the spans replaced."""
    pieces, place = list[str](), 0
    for start, end, instead in merged(spans, len(text)):
        pieces += text[place:start], instead
        place = end
    return "".join((*pieces, text[place:]))


class Window:
    """The text of one block at one guard: the part that has passed, and the part that waits for a check. If the block
    continues an earlier text, `before` is that text.
    """

    def __init__(self, guard: Guard, before: str = "") -> None:
        self._guard = guard
        self._before = before
        self._context = before[-guard.overlap :] if guard.overlap else ""
        self._passed: list[str] = []
        self._held: list[str] = []
        self._unchecked = 0
        self._closed = False

    def add(self, text: str) -> None:
        if text and not self._closed:
            self._held.append(text)
            self._unchecked += len(text)

    def is_due(self, *, final: bool) -> bool:
        if final:
            return bool(self._held)
        return self._guard.window is not None and self._unchecked >= max(self._guard.window, 1)

    def passage(self) -> tuple[str, int]:
        """Returns the text to check, and the index from which on its text has not passed yet."""
        return self._context + self._joined(), len(self._context)

    def whole(self) -> tuple[str, int]:
        """Returns the whole block, behind the overlap before it, and the index at which the block begins."""
        before = self._before[-self._guard.overlap :] if self._guard.overlap else ""
        return "".join((before, *self._passed, *self._held)), len(before)

    def apply(self, ruling: Pass | Mask | Replace, *, final: bool) -> str | None:
        """Returns the text that passes. Returns None if a span begins in text that has already passed: then the whole
        block must be checked.
        """
        text, start = self.passage()
        spans = merged(ruling.spans, len(text)) if isinstance(ruling, Mask) else []
        if any(span.start < start < span.end for span in spans):
            return None
        return self._release(ruling, spans, text, start, final=final)

    def apply_whole(self, ruling: Pass | Mask | Replace, *, final: bool) -> str:
        """Returns the text of the block that passes, from the beginning of the block, after a check of the `whole`
        block.
        """
        text, start = self.whole()
        spans = merged(ruling.spans, len(text)) if isinstance(ruling, Mask) else []
        self._passed = []
        return self._release(ruling, spans, text, start, final=final)

    def close(self) -> None:
        """Drops the held text, and all text that is added later."""
        self._held, self._unchecked, self._closed = [], 0, True

    def _release(
        self, ruling: Pass | Mask | Replace, spans: Sequence[TextSpan], text: str, start: int, *, final: bool
    ) -> str:
        until = len(text)
        if not final and not isinstance(ruling, Replace):
            undecided = self._guard.overlap if ruling.undecided is None else ruling.undecided
            until = max(start, until - undecided)
            # A span that reaches into the undecided text may continue in the next text.
            for span in spans:
                if span.start < until < span.end:
                    until = span.end if len(text) - span.start > _MOST_HELD else max(start, span.start)
        self._passed.append(text[start:until])
        self._context = text[max(0, until - self._guard.overlap) : until]
        self._held, self._unchecked = [text[until:]] if until < len(text) else [], 0
        if isinstance(ruling, Replace):
            return ruling.text
        shown = [span._replace(start=max(span.start, start)) for span in spans if span.end > start]
        return masked(text[:until], shown)[start:]

    def _joined(self) -> str:
        if len(self._held) > 1:
            self._held = ["".join(self._held)]
        return self._held[0] if self._held else ""
