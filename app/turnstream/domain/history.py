"""The history that model requests contain: summaries replace older turns, and older tool results are shortened.

Summaries and shortenings are blocks of the turn that ran when they were made. A branch that began before such a block
does not contain the block, so the requests of that branch have their own history.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from turnstream.domain.blocks import READ_RESULT, Block, caller_of
from turnstream.domain.kinds import SHORTENED, SUMMARY, TOOL_RESULT, TOOL_USE
from turnstream.domain.results import count_files, result_as_text
from turnstream.domain.turns import WITHDRAWN, EarlierResults, Turn, TurnRequest

_NOTE = 100  # approximate length in characters of the note that replaces the omitted part
COMPACTED = "compacted"  # the stop reason of a round that made a summary
EARLIER_HEAD = 500  # characters that requests contain of a long earlier result, if `earlier_results` is `short`

_CALL_AND_RESULT = frozenset({TOOL_USE, TOOL_RESULT})

# The index of a turn on its path, and the number of a round of that turn.
Position = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Summary:
    """The newest summary on a path, for all turns up to `through`; round `round` of the turn at `place` wrote it."""

    place: int
    round: int
    through: UUID
    text: str


@dataclass(frozen=True, slots=True)
class Shortening:
    """A shortening of tool results. Requests contain only the first `head` characters, and no files, of each large
    result from position `first` to position `last`. `made` is the position of the shortening itself. From `results`
    results, it omits `left_out` more characters and `files` more files than before.
    """

    made: Position
    first: Position
    last: Position
    head: int
    results: int
    left_out: int
    files: int = 0

    def shortens(self, position: Position, block: Block) -> bool:
        return self.first <= position <= self.last and can_be_shortened(block, self.head)

    def invalidates(self, position: Position) -> bool:
        """Returns True if thoughts at `position` are invalid, because a result before them is now shortened."""
        return self.first < position <= self.made


def without_withdrawn(path: Sequence[Turn]) -> Sequence[Turn]:
    """Returns the path without answers that were cancelled before they began, and without the messages to them."""
    gone = {id for turn in path if turn.stop_reason == WITHDRAWN for id in (turn.id, turn.parent_id)}
    return [turn for turn in path if turn.id not in gone] if gone else path


def earlier_results_of(request: TurnRequest | None) -> EarlierResults:
    """Returns the form that tool results of earlier turns have in the requests of a turn."""
    return "whole" if request is None else request.limits.earlier_results


def with_earlier_results(path: Sequence[Turn]) -> Sequence[Turn]:
    """Returns the path in the form that the requests of its last turn contain: tool results of earlier turns are whole,
    truncated, or omitted together with their calls. An unchanged turn stays the same object.
    """
    request, mode = path[-1].request, earlier_results_of(path[-1].request)
    if request is None or mode == "whole":
        return path
    can_read_on = any(tool.name == READ_RESULT for tool in request.tools)
    sent: list[Turn] = []
    for turn in path[:-1]:
        blocks = turn.blocks
        if mode == "short":
            blocks = tuple(_beginning_of(block, can_read_on) for block in blocks)
        else:
            # Calls that the provider's code execution made must keep their results.
            kept = {b.key for b in blocks if b.type == TOOL_USE and caller_of(b)}
            blocks = tuple(b for b in blocks if b.type not in _CALL_AND_RESULT or b.key in kept)
        sent.append(turn if blocks == turn.blocks else replace(turn, blocks=blocks))
    return [*sent, path[-1]]


def _beginning_of(block: Block, can_read_on: bool) -> Block:
    if block.type != TOOL_RESULT or not can_be_shortened(block, EARLIER_HEAD):
        return block
    block = result_as_text(block, "[{type} left out]")
    left_out = omitted_characters(block, EARLIER_HEAD)
    if not left_out:
        return block
    note = f"{left_out:,} characters left out: results of earlier answers are sent shortened."
    if can_read_on:
        note += f' To read on, call {READ_RESULT} with tool_use_id "{block.tool_use_id}" and offset {EARLIER_HEAD}.'
    return replace(block, text=f"{block.text[:EARLIER_HEAD]}\n\n[{note}]")


def shortening_of(position: Position, block: Block, shortenings: Sequence[Shortening]) -> Shortening | None:
    """Returns the shortening that leaves the fewest characters of the block; None if no shortening applies."""
    mine = (shortening for shortening in shortenings if shortening.shortens(position, block))
    return min(mine, key=lambda shortening: shortening.head, default=None)


def can_be_shortened(result: Block, head: int) -> bool:
    return result.type == TOOL_RESULT and (omitted_characters(result, head) > 0 or count_files(result) > 0)


def omitted_characters(result: Block, head: int) -> int:
    """Returns how many characters a shortening to `head` omits; 0 if the text is hardly longer than `head`."""
    return len(result.text) - head if len(result.text) > 2 * max(head, _NOTE) else 0


def summary_on(path: Sequence[Turn]) -> Summary | None:
    for place in range(len(path) - 1, -1, -1):
        turn = path[place]
        if not any(block.type == SUMMARY for block in turn.blocks):
            continue
        made = {round.number for round in turn.rounds if round.sealed and round.stop_reason == COMPACTED}
        for block in reversed(turn.blocks):
            if block.type == SUMMARY and block.round in made and block.data:
                return Summary(place, block.round, UUID(json.loads(block.data)["through"]), block.text)
    return None


def turns_after_summary(path: Sequence[Turn]) -> Sequence[Turn]:
    """Returns the turns that follow the last turn in the newest summary, or the whole path without a summary."""
    summary = summary_on(path)
    if summary is None:
        return path
    last = next((place for place, turn in enumerate(path) if turn.id == summary.through), -1)
    return path[last + 1 :]


def shortenings_on(path: Sequence[Turn]) -> tuple[Shortening, ...]:
    """Returns the shortenings on a path, oldest first."""
    found: list[Shortening] = []
    place_of: dict[str, int] = {}
    for place, turn in enumerate(path):
        for block in turn.blocks:
            if block.type == SHORTENED and block.data:
                place_of = place_of or {str(turn.id): place for place, turn in enumerate(path)}
                data = json.loads(block.data)
                first, last = ((place_of.get(data[end]["turn"], -1), data[end]["round"]) for end in ("first", "last"))
                if first[0] >= 0 and last[0] >= 0:  # both turns are on this path
                    counts = data["head"], data["results"], data["left_out"], data.get("files", 0)
                    found.append(Shortening((place, block.round), first, last, *counts))
    return tuple(found)


def shortening_block(shortening: Shortening, path: Sequence[Turn]) -> Block:
    """Returns a new block of the last turn of `path`, which stores a shortening and shows it to readers."""
    running = path[-1]
    data = {
        "type": SHORTENED,
        "first": _named(shortening.first, path),
        "last": _named(shortening.last, path),
        "head": shortening.head,
        "results": shortening.results,
        "left_out": shortening.left_out,
        "files": shortening.files,
    }
    less = [f"{shortening.left_out:,} of their characters"] if shortening.left_out else []
    less += [f"{shortening.files:,} of their files"] if shortening.files else []
    shortened = f"{shortening.results} earlier tool results are sent shortened"
    words = f"From here on {shortened}, without {' and '.join(less)}."
    return Block(len(running.blocks), shortening.made[1], running.attempt, SHORTENED, words, json.dumps(data))


def _named(position: Position, path: Sequence[Turn]) -> Mapping[str, Any]:
    return {"turn": str(path[position[0]].id), "round": position[1]}
