"""A result that is too long is cut for the model, told so, and kept whole. Files that no model can see are named."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from app.domain.blocks import READ_RESULT
from app.domain.kinds import FILES
from app.domain.results import content_of, layout_of, words_of
from app.kit.media import PLAIN, media_type_of
from app.kit.text import storable
from app.tools.policy import Policy
from app.tools.tool import File, Outcome, Part

# Of one result, which is in a request with others.
MOST_FILES = 20
MOST_LARGE_FILES = 4  # of the largest that may be


@dataclass(frozen=True, slots=True)
class Sizes:
    """In characters: `shown` to the model, and `kept` of what is longer. A file has up to `file` bytes."""

    shown: int
    kept: int
    file: int = 5_000_000

    def of(self, policy: Policy) -> "Sizes":
        return self if policy.max_result_chars is None else replace(self, shown=policy.max_result_chars)


def fit(outcome: Outcome, sizes: Sizes, tool_use_id: str, tools: Iterable[str]) -> Outcome:
    """`tools` are what the model may call: where `read_result` is one of them it is told how to read on. What has to be
    cut has all its words before its files.
    """
    more = tuple(_fitting(outcome.more, sizes.file))
    text = words_of([part for part in (outcome.text, *more) if isinstance(part, str) and part.strip()])
    of = len(text)
    if of <= sizes.shown:
        return replace(outcome, more=more)
    said = f"The result was cut here: {of - sizes.shown:,} of its {of:,} characters are missing."
    note = {"shown": sizes.shown, "of": of}
    if of > sizes.kept:
        said += f" Only the first {sizes.kept:,} were kept."
        note["kept"] = sizes.kept
    if READ_RESULT in tools:
        said += f' To read on, call {READ_RESULT} with tool_use_id "{tool_use_id}" and offset {sizes.shown}.'
    cut = f"{text[: sizes.shown]}\n\n[{said}]"
    kept = [part for part in content_of(outcome.layout) if part["type"] in FILES] if outcome.layout else []
    return replace(
        outcome,
        text=cut,
        layout=layout_of([cut, *kept]),
        more=tuple(part for part in more if isinstance(part, File)),
        whole=text[: sizes.kept] if outcome.whole is None else outcome.whole,
        notes={**outcome.notes, "cut": note},
    )


def _fitting(parts: Sequence[Part], most: int) -> Iterator[Part]:
    """What is no file for a model is said in words; a text is one."""
    files = size = 0
    for part in parts:
        if isinstance(part, str):
            yield part
        elif (media_type := media_type_of(part.content)) == PLAIN:
            yield storable(part.content.decode())
        elif media_type is None:
            yield f"[{storable(part.called)}, {_size(part)}: neither an image nor a PDF that can be shown]"
        elif len(part.content) > most:
            yield f"[{media_type}, {_size(part)}: too large to be shown]"
        elif files == MOST_FILES or size + len(part.content) > MOST_LARGE_FILES * most:
            yield f"[{media_type}, {_size(part)}: left out, since there are too many]"
        else:
            files, size = files + 1, size + len(part.content)
            yield part


def _size(file: File) -> str:
    return f"{len(file.content):,} bytes"
