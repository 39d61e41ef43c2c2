"""Limits the size of a result. The model gets the beginning of a long text, and the rows keep more of the text. Files
that no model can read become text. Data for clients has a limit.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pydantic_core import from_json

from turnstream.domain.blocks import READ_RESULT
from turnstream.domain.kinds import FILES
from turnstream.domain.media import media_type_of
from turnstream.domain.results import content_of, joined_texts, layout_of
from turnstream.kit.text import storable
from turnstream.tools.policy import Policy
from turnstream.tools.serialize import serialize
from turnstream.tools.tool import File, Outcome, OutcomePart

# Limits for each result, because a request holds many results, and a provider limits the whole request.
MOST_FILES = 20
MOST_LARGE_FILES = 4  # all files together have at most this many times the largest size of a file
MOST_DATA = 100_000  # characters of JSON for clients


@dataclass(frozen=True, slots=True)
class Sizes:
    """The model gets up to `shown` characters, and the rows keep up to `kept`. A file has up to `file` bytes."""

    shown: int
    kept: int
    file: int = 5_000_000

    def of(self, policy: Policy) -> "Sizes":
        return self if policy.max_result_chars is None else replace(self, shown=policy.max_result_chars)


def fit(outcome: Outcome, sizes: Sizes, tool_use_id: str, tools: Iterable[str]) -> Outcome:
    """Truncates an outcome to its limits. In a truncated outcome, all text comes before the files.

    `tools` are the names that the model may call. If they include `read_result`, the text explains how to read on.
    """
    outcome = outcome if outcome.data is None else _fit_data(outcome)
    more = tuple(_fit_files(outcome.more, sizes.file))
    text = joined_texts([part for part in (outcome.text, *more) if isinstance(part, str) and part.strip()])
    length = len(text)
    if length <= sizes.shown:
        return replace(outcome, more=more)
    hint = f"The result was cut here: {length - sizes.shown:,} of its {length:,} characters are missing."
    note = {"shown": sizes.shown, "of": length}
    if length > sizes.kept:
        hint += f" Only the first {sizes.kept:,} were kept."
        note["kept"] = sizes.kept
    if READ_RESULT in tools:
        hint += f' To read on, call {READ_RESULT} with tool_use_id "{tool_use_id}" and offset {sizes.shown}.'
    cut = f"{text[: sizes.shown]}\n\n[{hint}]"
    files = [part for part in content_of(outcome.layout) if part["type"] in FILES] if outcome.layout else []
    return replace(
        outcome,
        text=cut,
        layout=layout_of([cut, *files]),
        more=tuple(part for part in more if isinstance(part, File)),
        whole=text[: sizes.kept] if outcome.whole is None else outcome.whole,
        notes={**outcome.notes, "cut": note},
    )


def _fit_data(outcome: Outcome) -> Outcome:
    """Converts the data for clients to plain JSON values. Omits data that is too long or is not JSON."""
    try:
        data = serialize(outcome.data, "json")
        if len(data) <= MOST_DATA:
            return replace(outcome, data=from_json(storable(data)))
        why = f"{len(data):,} characters, of {MOST_DATA:,} that there may be"
    except ValueError as error:  # pydantic cannot serialize a value
        why = str(error)
    return replace(outcome, data=None, notes={**outcome.notes, "data_left_out": why})


def _fit_files(parts: Sequence[OutcomePart], max_bytes: int) -> Iterator[OutcomePart]:
    """Replaces a text file by its text, and every other file that a model cannot read by a description."""
    files = total = 0
    for part in parts:
        if isinstance(part, str):
            yield part
            continue
        media_type, size = media_type_of(part.content), f"{len(part.content):,} bytes"
        if media_type is None:
            yield f"[{storable(part.called)}, {size}: neither an image nor a PDF that can be shown]"
        elif media_type.is_text:
            yield storable(part.content.decode())
        elif len(part.content) > max_bytes:
            yield f"[{media_type.name}, {size}: too large to be shown]"
        elif files == MOST_FILES or total + len(part.content) > MOST_LARGE_FILES * max_bytes:
            yield f"[{media_type.name}, {size}: left out, since there are too many]"
        else:
            files, total = files + 1, total + len(part.content)
            yield part
