"""Ranks tools by the words of a query. Pure.

The measure is BM25 over three fields of different weight. Libraries for it need numpy, and rank one text per document.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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
# Verbs that names of tools use for one thing.
_ALIKE = (
    "add create insert make new open register",
    "change edit modify rename set update",
    "cancel delete drop erase remove",
    "fetch get load read retrieve show view",
    "browse enumerate list",
    "find look query search",
    "post publish send",
    "execute run start trigger",
    "finish close complete end resolve",
    "assign allocate give",
    "attach upload",
    "copy clone duplicate",
    "picture image photo",
    "mail email message",
    "meeting appointment event",
    "repo repository",
    "ticket issue",
    "person people member user contact",
    "folder directory",
    "bill invoice",
    "client customer",
    "staff employee worker",
    "purchase buy order",
    "cost price",
)
_NAME, _DESCRIPTION, _PARAMETERS = 3.0, 1.0, 0.4
_SATURATION, _BY_LENGTH = 1.2, 0.4
_OF_A_LIKE_WORD = 0.6


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _LEAST_STEM:
            return word[: -len(ending)]
    return word


def _words(text: str) -> Iterator[str]:
    return (_stem(word.lower()) for word in _WORD.findall(text))


_GROUPS = {word: frozenset(map(_stem, line.split())) for line in _ALIKE for word in map(_stem, line.split())}


def _terms(query: str) -> dict[str, float]:
    """The words of a query with their weights, and words that are alike with a lower one."""
    own = [_stem(word.lower()) for word in _WORD.findall(query) if word.lower() not in _NO_MEANING]
    terms = {word: _OF_A_LIKE_WORD for given in own for word in _GROUPS.get(given, ())}
    return terms | dict.fromkeys(own, 1.0)


def _parameters(schema: Any) -> Iterator[str]:
    """The names and descriptions of parameters, without those of members of their values."""
    members = schema.get("properties") if isinstance(schema, dict) else None
    for name, member in members.items() if isinstance(members, dict) else ():
        yield name
        if isinstance(member, dict) and isinstance(member.get("description"), str):
            yield member["description"]


def _weights(spec: ToolSpec) -> Counter[str]:
    weights: Counter[str] = Counter()
    fields: Iterable[tuple[float, Iterable[str]]] = (
        (_NAME, [spec.name]),
        (_DESCRIPTION, [spec.description]),
        (_PARAMETERS, _parameters(json.loads(spec.input_schema))),
    )
    for weight, texts in fields:
        for text in texts:
            for word in _words(text):
                weights[word] += weight  # type: ignore[assignment]  # a Counter of floats
    return weights


def ranked(specs: Sequence[ToolSpec], query: str, most: int) -> list[ToolSpec]:
    """The best tools for a query, the best one first; none that has no word of it. A tool whose name is the query is
    the first.
    """
    terms = _terms(query)
    weights = [_weights(spec) for spec in specs]
    mean = sum(each.total() for each in weights) / max(1, len(weights))
    having = Counter(word for each in weights for word in each if word in terms)
    rare = {word: math.log(1 + (len(specs) - count + 0.5) / (count + 0.5)) for word, count in having.items()}
    scores = []
    for place, (spec, each) in enumerate(zip(specs, weights, strict=True)):
        length = 1 - _BY_LENGTH + _BY_LENGTH * each.total() / mean
        score = sum(
            terms[word] * rare[word] * each[word] * (1 + _SATURATION) / (each[word] + _SATURATION * length)
            for word in rare
            if word in each
        )
        if spec.name == query.strip():
            score = math.inf
        if score > 0:
            scores.append((-score, place))
    return [specs[place] for _, place in sorted(scores)[:most]]
