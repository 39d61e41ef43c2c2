"""The seam between a cut text and the reply that continues it. A model often repeats text when it continues: the last
words, or the whole text. The reply is passed on without the repetition, so that both texts read as one.
"""

import re
from collections.abc import Sequence

from turnstream.domain.kinds import TEXT
from turnstream.llm.provider import BlockClosed, BlockData, BlockOpened, BlockText, MessageDelta, MessageEnded, Part

REACH = 1_000  # characters before the cut: a repetition starts there, or where the text starts

_IDEOGRAPHS = "\u2e80"  # scripts without spaces between words begin here
_SURE = 12  # characters: texts of this length are not equal by chance


class Seam:
    """Delays the first text block of a reply until it is clear whether the block repeats the end of the cut text
    `stands`, which is not blank. A repetition may start in `earlier`, the text of the answer before `stands`.

    The delayed text has at most twice the length of both texts, plus REACH characters. White space is ignored. A reply
    is passed on whole if it begins with the text and then differs, or repeats the text several times. When `decided` is
    true, parts may bypass the seam.
    """

    def __init__(self, stands: str, earlier: str = "") -> None:
        # A model may also repeat words from before its tool calls.
        self._stands = f"{earlier}\n{stands}" if earlier else stands
        self._dense = _without_space(self._stands)
        self._words = {*_word_starts(self._stands), len(_without_space(earlier))}
        # A repetition may also start inside a word.
        self._starts = sorted({*self._words, *range(max(len(self._dense) - REACH, 0), len(self._dense))})
        self._open = self._starts  # the starts from which a repetition is still possible
        self._opened: BlockOpened | None = None  # the delayed block; `_data` are the data parts after it
        self._data: list[BlockData] = []
        self._held = ""
        self._dense_held = ""
        self.decided = False

    def feed(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Returns the parts to pass on."""
        passed: list[Part] = []
        for part in parts:
            passed += (part,) if self.decided else self._take(part)
        return passed

    def _take(self, part: Part) -> Sequence[Part]:
        opened = self._opened
        match part:
            case BlockOpened(type=type) if type == TEXT and opened is None:
                self._opened = part
                return self._hold(part.text)
            case BlockText() | BlockData() | BlockClosed() if opened is None or part.key != opened.key:
                return (part,)
            case BlockText(text=text):
                return self._hold(text)
            case BlockData():
                self._data.append(part)
                return ()
            case BlockClosed():  # a block without new text is dropped
                passed = self._decide()
                return (*passed, part) if self._held else ()
            case BlockOpened() | MessageEnded() | MessageDelta(stop_reason=str()) if opened is not None:
                return (*self._decide(), part)
            case _:
                return (part,)

    def _decide(self) -> Sequence[Part]:
        """Returns the delayed text without the repetition."""
        assert self._opened is not None
        self.decided = True
        if repeated := self._repeated():
            trailing = self._stands[len(self._stands.rstrip()) :]
            self._held = self._held[repeated:].removeprefix(trailing)
        return (self._opened._replace(text=self._held), *self._data)

    def _hold(self, text: str) -> Sequence[Part]:
        self._held += text
        self._dense_held += _without_space(text)
        self._open = [start for start in self._open if self._may_repeat(start)]
        if self._open and len(self._held) <= 2 * len(self._stands) + REACH:
            return ()
        return self._decide()

    def _may_repeat(self, start: int) -> bool:
        """Whether the delayed text may still repeat the text from `start` to its end, once or twice."""
        length = len(self._dense) - start
        once, again = self._dense_held[:length], self._dense_held[length:]
        return self._dense.startswith(once, start) and self._dense.startswith(again, start)

    def _repeated(self) -> int:
        """Returns the length of the longest prefix of the delayed text that repeats the end of the cut text. 0 if that
        text is periodic, like equal table lines: a continuation would look the same, and no word may be lost.
        """
        for start in self._starts:
            if end := self._end_of_repetition(start):
                return 0 if self._repeats_itself(start) else end
        return 0

    def _repeats_itself(self, start: int) -> bool:
        """Whether the text from `start` also occurs earlier, comes twice in the reply, or consists of equal parts."""
        tail = self._dense[start:]
        return len(tail) >= _SURE and (
            self._dense.find(tail) < start
            or self._dense_held.startswith(tail, len(tail))
            or (tail + tail).find(tail, 1) < len(tail)
        )

    def _end_of_repetition(self, start: int) -> int:
        """Returns how much of the delayed text repeats the text from `start`; 0 for none, or a repetition by chance."""
        repeated = self._dense[start:]
        if not self._dense_held.startswith(repeated):
            return 0
        end = _place_after(self._held, len(repeated))
        is_whole, behind = self._held[0].isspace() or self._stands[-1].isspace(), self._held[end : end + 1].strip()
        if is_whole and "" < behind < _IDEOGRAPHS:  # 1.1 is a prefix of 1.1.2, but 1.1.2 does not repeat it
            return 0
        words = re.findall(r"\w+", self._held[:end])
        if start not in self._words:
            return end if len(words) > 2 else 0
        if len(words) > 1 or len(repeated) >= _SURE:
            return end
        if self._held[0].isspace():  # the reply continues after a whole word, and a text may have a word twice
            return 0
        in_mid_word = self._held[end - 1 : end + 1].isalnum() and len(self._held) > end
        letters = sum(map(str.isalpha, repeated))
        return end if letters > in_mid_word or len(repeated) > 2 else 0


def _without_space(text: str) -> str:
    return "".join(text.split())


def _word_starts(text: str) -> list[int]:
    """Offsets of word starts, not counting white space: 0, and the starts in the last REACH characters of `text`."""
    starts, count, before = [0], 0, " "
    first = len(text) - REACH
    for place, character in enumerate(text):
        if not character.isspace():
            is_start = not (before.isalnum() and character.isalnum()) or character >= _IDEOGRAPHS
            if is_start and place >= first and count:
                starts.append(count)
            count += 1
        before = character
    return starts


def _place_after(text: str, count: int) -> int:
    """Returns the offset in `text` after `count` characters that are not white space."""
    places = (place for place, character in enumerate(text, 1) if not character.isspace())
    return next(place for number, place in enumerate(places, 1) if number == count)
