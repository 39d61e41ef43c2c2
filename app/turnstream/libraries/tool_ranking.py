"""Ranks tools by the words of a query. Pure.

Libraries that rank texts need numpy, and rank documents that have one text each, but a tool has several texts.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from turnstream.domain.turns import ToolSpec

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_a-zA-Z]+")
_ENDINGS = ("ations", "ation", "ings", "ing", "ies", "ied", "ers", "er", "ed", "es", "s", "e", "y")
_LEAST_STEM = 3
_WITHOUT_MEANING = (
    "a an and any are as at be by can do does for from how i if in into is it me my of on one or our please so some"
    " that the their them then this to up us use user want we what when where which who with would you your tool"
)
_NO_MEANING = frozenset(_WITHOUT_MEANING.split())
# Groups of words that have the same meaning in queries and in names of tools.
_ALIKE = (
    "add create insert make new open register start",
    "adjust change edit modify rename rewrite set update",
    "cancel delete discard drop erase remove unassign",
    "fetch get load read retrieve show view",
    "all browse enumerate list overview",
    "find look query search",
    "post publish send submit",
    "execute run start trigger launch",
    "finish close complete done end resolve",
    "allocate assign give responsible",
    "attach add upload",
    "copy clone duplicate fork",
    "undo restore recover revert bring",
    "move put relocate transfer",
    "merge land combine",
    "allow grant permission access share",
    "limit restrict restriction permission",
    "join link connect relate",
    "follow subscribe subscription watch watcher notification",
    "mute unsubscribe subscription",
    "favorite favourite bookmark star",
    "approve accept review",
    "answer reply respond",
    "comment remark feedback annotate",
    "picture image photo",
    "mail email message inbox",
    "meeting appointment event",
    "agenda schedule calendar upcoming",
    "repo repository",
    "pr pull",
    "ci action workflow build pipeline",
    "bug defect issue ticket task",
    "todo task reminder",
    "vulnerable vulnerability security advisory dependabot",
    "password secret credential leak",
    "release version published",
    "history commit log change",
    "tag label category",
    "person people member user contact teammate colleague collaborator assignee",
    "team group organization org circle",
    "folder directory",
    "file document",
    "page article doc wiki",
    "board kanban deck",
    "column stack lane",
    "row entry record",
    "recipe cooking dish",
    "note memo",
    "trash trashed bin deleted",
    "archive shelve",
    "hours time worklog spent",
    "status state progress",
    "order reorder reprioritize sort priority",
    "customer client",
    "bill invoice",
    "staff employee worker",
    "purchase buy order",
    "cost price",
    "talk chat conversation room",
    "phone number call",
)
_FIELDS = (2.5, 1.0, 0.15)  # weights of the name, the description and the parameters
_SATURATION, _BY_LENGTH = 1.2, 0.5
_OF_A_LIKE_WORD = 0.7
_INDEXES = 8  # tool sets whose words are cached


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _LEAST_STEM:
            return word[: -len(ending)]
    return word


def _words(text: str) -> Iterator[str]:
    return (_stem(word.lower()) for word in _WORD.findall(text))


def _groups() -> dict[str, frozenset[str]]:
    groups: dict[str, frozenset[str]] = {}
    for line in _ALIKE:
        stems = frozenset(map(_stem, line.split()))
        groups |= {stem: groups.get(stem, frozenset()) | stems for stem in stems}
    return groups


_GROUPS = _groups()


def _parameters(schema: Any) -> Iterator[str]:
    """Yields the names and descriptions of parameters, but not of the members within a parameter."""
    members = schema.get("properties") if isinstance(schema, dict) else None
    for name, member in members.items() if isinstance(members, dict) else ():
        yield name
        if isinstance(member, dict) and isinstance(member.get("description"), str):
            yield member["description"]


class _Field:
    """One field of all tools: the words of the field in each tool, and the rarity of each word."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._words = [Counter(_words(text)) for text in texts]
        having = Counter(word for words in self._words for word in words)
        number = len(self._words)
        self._rarity = {word: math.log(1 + (number - count + 0.5) / (count + 0.5)) for word, count in having.items()}
        self._mean = sum(words.total() for words in self._words) / max(1, number) or 1

    def score(self, place: int, word: str) -> float:
        words = self._words[place]
        count = words.get(word, 0)
        if not count:
            return 0.0
        length = 1 - _BY_LENGTH + _BY_LENGTH * words.total() / self._mean
        return self._rarity[word] * count * (1 + _SATURATION) / (count + _SATURATION * length)


@lru_cache(_INDEXES)
def _fields_of(tools: tuple[tuple[str, str, str], ...]) -> tuple[_Field, ...]:
    """Returns the fields of tools, which are given as name, description and schema. This takes 50 ms for hundreds of
    tools.
    """
    parameters = (" ".join(_parameters(json.loads(schema))) for _, _, schema in tools)
    return _Field(name for name, _, _ in tools), _Field(text for _, text, _ in tools), _Field(parameters)


def ranked(specs: Sequence[ToolSpec], query: str, most: int) -> list[ToolSpec]:
    """Returns the best tools for a query, best first. A tool that contains no word of the query is omitted. A tool
    whose name is the query comes first.
    """
    fields = _fields_of(tuple((spec.name, spec.description, spec.input_schema) for spec in specs))
    given = {_stem(word.lower()) for word in _WORD.findall(query) if word.lower() not in _NO_MEANING}
    # For each word of the query, the weights of the word itself and of similar words.
    terms = [dict.fromkeys(_GROUPS.get(word, ()), _OF_A_LIKE_WORD) | {word: 1.0} for word in given]
    scores = []
    for place, spec in enumerate(specs):
        found = [
            max(
                alike * sum(weight * field.score(place, word) for weight, field in zip(_FIELDS, fields, strict=True))
                for word, alike in term.items()
            )
            for term in terms
        ]
        # A tool that contains several words of the query ranks higher than a tool that contains one rare word.
        score = sum(found) * math.sqrt(sum(map(bool, found)) / max(1, len(found)))
        if spec.name == query.strip():
            score = math.inf
        if score > 0:
            scores.append((-score, place))
    return [specs[place] for _, place in sorted(scores)[:most]]
