"""The built-in patterns: keys of services, payment cards, phone numbers and e-mail addresses."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from string import ascii_letters, digits
from typing import Final, Literal

from turnstream.kit.offload import offload
from turnstream.libraries.guards.guard import EndTurn, Mask, Pass, Passage, Ruling, TextSpan

PatternKind = Literal["keys", "cards", "phones", "emails"]
Found = Callable[[str], Iterator[tuple[int, int]]]

# Characters. A match that may still grow is held back up to this length, and a longer match is not found.
_LONGEST: Final = 8_000
# Characters of earlier text that precede a passage. A pattern examines only the last of them; if a match begins in
# them, the whole text is checked.
CONTEXT: Final = 64

_KEY = re.compile(
    r"""(?<![A-Za-z0-9_-])(?:
        sk-[A-Za-z0-9_-]{16,250}                    # OpenAI, Anthropic, and others that followed them
        | (?:AKIA|ASIA)[0-9A-Z]{16}                 # AWS
        | gh[pousr]_[A-Za-z0-9]{36,250}             # GitHub
        | github_pat_[A-Za-z0-9_]{22,250}
        | glpat-[A-Za-z0-9_-]{20,100}               # GitLab
        | AIza[A-Za-z0-9_-]{35}                     # Google
        | xox[abeoprs]-[A-Za-z0-9-]{10,250}         # Slack
        | [rs]k_(?:live|test)_[A-Za-z0-9]{16,250}   # Stripe
        | npm_[A-Za-z0-9]{36}
        | hf_[A-Za-z0-9]{30,60}                     # Hugging Face
        | eyJ[A-Za-z0-9_-]{8,3000}\.eyJ[A-Za-z0-9_-]{8,3000}\.[A-Za-z0-9_-]{8,1500}  # a JSON web token
    )(?![A-Za-z0-9_-])
    | -----BEGIN\ (?:[A-Z0-9]+\ ){0,3}PRIVATE\ KEY-----
      [\s\S]{0,7000}?-----END\ (?:[A-Z0-9]+\ ){0,3}PRIVATE\ KEY-----""",
    re.VERBOSE,
)
_DIGITS = re.compile(r"(?<![\w.])[0-9](?:[ -]?[0-9]){12,39}(?!\w)")
_PHONE = re.compile(
    r"(?<![\w.+])(?:\+[1-9][0-9]{0,2}(?:[ .-]?(?:\([0-9]{1,5}\)|[0-9]{1,5})){2,6}"
    r"|(?:\([0-9]{3}\)|[0-9]{3})[ .-][0-9]{3}[ .-][0-9]{4})(?!\w)"
)
_EMAIL = re.compile(
    r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9_%+-](?:[A-Za-z0-9._%+-]{0,62}[A-Za-z0-9_%+-])?@"
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,62}[A-Za-z0-9])?\.){1,8}[A-Za-z]{2,24}(?![A-Za-z0-9-])"
)
_BEGIN, _END = "-----BEGIN ", re.compile(r"-----END [A-Z0-9 ]{0,60}PRIVATE KEY-----")
_BEGIN_OF_KEY = re.compile(r"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY-----")
_LONGEST_BEGIN = 60
# The characters that a match may contain: a match at the end of a text may continue until another character follows.
_LETTERS, _DIGIT = ascii_letters + digits, digits
_CHARACTERS: Mapping["PatternKind", str] = {
    "keys": f"{_LETTERS}_.-",
    "cards": f"{_DIGIT} -",
    "phones": f"{_DIGIT} ().+-",
    "emails": f"{_LETTERS}._%+-@",
}


def _matches(pattern: re.Pattern[str]) -> Found:
    return lambda text: (found.span() for found in pattern.finditer(text))


def _cards(text: str) -> Iterator[tuple[int, int]]:
    """Yields the spans of card numbers in a row of digit groups, which may also contain other numbers."""
    for row in _DIGITS.finditer(text):
        groups = [group.span() for group in re.finditer(r"[0-9]+", row[0])]
        place = 0
        while place < len(groups):
            for last in range(len(groups) - 1, place - 1, -1):
                start, end = groups[place][0], groups[last][1]
                number = re.sub(r"[ -]", "", row[0][start:end])
                if 13 <= len(number) <= 19 and _is_luhn(number):
                    yield row.start() + start, row.start() + end
                    place = last
                    break
            place += 1


def _is_luhn(number: str) -> bool:
    """Whether the check digit of a card number is correct. A number that repeats a single digit is no card number."""
    values = [int(digit) for digit in reversed(number)]
    doubled = [value * 2 - 9 * (value > 4) for value in values[1::2]]
    return len(set(number)) > 1 and (sum(values[::2]) + sum(doubled)) % 10 == 0


_FINDERS: Mapping["PatternKind", Found] = {
    "keys": _matches(_KEY),
    "cards": _cards,
    "phones": _matches(_PHONE),
    "emails": _matches(_EMAIL),
}
KINDS: Final = tuple(_FINDERS)


def spans_of(text: str, kinds: Iterable[PatternKind]) -> list[TextSpan]:
    """Returns the matches of these kinds, each with the name of its kind as the replacement."""
    return [TextSpan(*span, f"[{kind.removesuffix('s')}]") for kind in kinds for span in _FINDERS[kind](text)]


def undecided_of(text: str, kinds: Iterable[PatternKind]) -> int:
    """Returns the number of characters at the end of the text that may belong to a longer match."""
    return min(_LONGEST, max((_open_end(text, kind) for kind in kinds), default=0))


def _open_end(text: str, kind: PatternKind) -> int:
    place = text.rfind(_BEGIN) if kind == "keys" else -1
    if place >= 0 and not _END.search(text, place):
        left = len(text) - place
        if left < _LONGEST_BEGIN or _BEGIN_OF_KEY.match(text, place):
            return left
    end = text[len(text.rstrip(_CHARACTERS[kind])) :].lstrip(" ")
    return len(end) if kind in {"keys", "emails"} or end.strip(" -.") else 0


class Patterns:
    """Checks texts for matches of `kinds`. Masks the matches; if there is a `reason`, a match ends the turn instead."""

    def __init__(self, kinds: Sequence[PatternKind], reason: str | None = None) -> None:
        self._kinds = kinds
        self._reason = reason

    async def __call__(self, passage: Passage) -> Ruling:
        return await offload(len(passage.text), self._ruling, passage)

    def _ruling(self, passage: Passage) -> Ruling:
        spans = spans_of(passage.text, self._kinds)
        undecided = 0 if passage.final else undecided_of(passage.text, self._kinds)
        if self._reason is not None:
            found = [span for span in spans if span.end > passage.start]
            is_shown = any(span.start < passage.start for span in found)
            return EndTurn(self._reason, is_shown) if found else Pass(undecided)
        return Mask(spans, undecided) if spans else Pass(undecided)
