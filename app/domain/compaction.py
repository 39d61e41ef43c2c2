"""When a conversation is too long for its model, and what is done about it: older tool results are sent shortened, and
where that is not enough, the turns before are summarised.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from uuid import UUID

from app.domain.blocks import Block
from app.domain.history import (
    Position,
    Shortening,
    can_be_shortened,
    omitted_characters,
    shortening_block,
    shortenings_on,
    turns_after_summary,
)
from app.domain.kinds import TOOL_RESULT
from app.domain.results import count_files
from app.domain.sizes import FILE_TOKENS, estimate_size, size_of_block, size_of_turn, tokens_of
from app.domain.turns import Turn, TurnRequest

CONTEXT_EDITING = "context_editing"  # the provider leaves out older tool results
COMPACTION = "compaction"  # the provider summarises
EDITS = (CONTEXT_EDITING, COMPACTION)  # what a provider may do by itself

_KEPT = 0.25  # of the window: the newest turns, and the newest results, word for word
_ENOUGH = 0.75  # of what is too long: shorter than that, it is some time before it is too long again
_WORTHWHILE = 0.1  # of the window: for less the provider's cache is not given up
_HEAD = 500  # characters of a result that is sent shortened


def may_need_compaction(path: Sequence[Turn]) -> bool:
    """Whether the path may be too long, and may not be, by what is known of its size."""
    mark = _mark(path[-1])
    return mark is not None and estimate_size(path).is_uncertain_about(mark)


def compaction_needed(path: Sequence[Turn], *, tokens: int | None = None, forced: bool = False) -> Block | UUID | None:
    """What must be done before the model is called again for the turn at the end of `path`: the block that says which
    results are shortened, or the turn through which it is summarised. None where it fits, or nothing can be done.

    `tokens` is the size of the request, where somebody has counted; `forced`: the provider has refused it as too long.
    """
    mark = _mark(path[-1])
    size = estimate_size(path).tokens if tokens is None else tokens
    if not forced and (mark is None or size <= mark):
        return None
    room = _room(path[-1], size, forced=forced)
    shorter = _shortening(path, room) if forced or CONTEXT_EDITING not in _edits(path[-1]) else None
    if shorter is not None and (forced or mark is None or size - _saved(shorter) <= mark * _ENOUGH):
        return shortening_block(shorter, path)
    through = last_turn_to_summarise(path, room)
    return shortening_block(shorter, path) if through is None and shorter is not None else through


def _mark(running: Turn) -> float | None:
    """The size above which a request is too long; None where nobody knows, or the provider sees to it by itself."""
    window = _request(running).limits.context_window
    if window is None or COMPACTION in _edits(running):
        return None
    return window * _request(running).limits.compact_at


def _room(running: Turn, size: int, *, forced: bool) -> int:
    """The window as far as it is known: what was refused as too long is longer than it, whatever it is said to be."""
    window = _request(running).limits.context_window
    return size if window is None else min(window, size) if forced else window


def _edits(running: Turn) -> Sequence[str]:
    return _request(running).limits.provider_edits


def _request(running: Turn) -> TurnRequest:
    assert running.request is not None
    return running.request


# --- results ----------------------------------------------------------------------------------------------------------


def _shortening(path: Sequence[Turn], window: int) -> Shortening | None:
    """Of the results but the newest; None where it is not worthwhile."""
    longer = dict(_longer(path, window * _KEPT))
    if not longer:
        return None
    results = [block for blocks in longer.values() for block in blocks]
    left_out, files = sum(omitted_characters(block, _HEAD) for block in results), sum(map(count_files, results))
    made = (len(path) - 1, max((round.number for round in path[-1].rounds if round.sealed), default=0))
    shortening = Shortening(made, min(longer), max(longer), _HEAD, len(results), left_out, files)
    return shortening if _saved(shortening) >= window * _WORTHWHILE else None


def _longer(path: Sequence[Turn], room: float) -> Iterator[tuple[Position, Sequence[Block]]]:
    """The large results that are sent whole and may be shortened, by round: those before the newest that fit into
    `room`. The newest round with results stays in any case, since the model may not have seen them.
    """
    known = shortenings_on(path)
    newest_first = reversed(list(_rounds_with_results(path)))
    for number, (position, blocks) in enumerate(newest_first):
        room -= sum(map(size_of_block, blocks))
        if number == 0 or room >= 0:
            continue
        room = -1
        found = [b for b in blocks if can_be_shortened(b, _HEAD) and not any(s.shortens(position, b) for s in known)]
        if found:
            yield position, found


def _rounds_with_results(path: Sequence[Turn]) -> Iterator[tuple[Position, list[Block]]]:
    kept = turns_after_summary(path)
    for place, turn in enumerate(kept, len(path) - len(kept)):
        results = sorted((b for b in turn.blocks if b.type == TOOL_RESULT), key=lambda block: block.round)
        for round, blocks in groupby(results, key=lambda block: block.round):
            yield (place, round), list(blocks)


def _saved(shortening: Shortening) -> int:
    return tokens_of(shortening.left_out) + shortening.files * FILE_TOKENS


# --- turns ------------------------------------------------------------------------------------------------------------


def last_turn_to_summarise(path: Sequence[Turn], window: int) -> UUID | None:
    """Through which turn the path to the running one would be summarised; None where nothing is left to be."""
    kept = turns_after_summary(path)
    end = len(kept) - 2  # the running turn and what it answers stay
    room = window * _KEPT - sum(map(size_of_turn, kept[max(0, end) :]))
    while end > 0 and (room := room - size_of_turn(kept[end - 1])) >= 0:
        end -= 1
    while end > 0 and kept[end - 1].role == "user":
        end -= 1
    return kept[end - 1].id if end > 0 else None


def earlier_cut(path: Sequence[Turn], through: UUID) -> UUID | None:
    """A cut that leaves less to be summarised at once; None where it cannot be less."""
    answers = [turn.id for turn in turns_after_summary(path) if turn.role == "assistant"]
    place = answers.index(through)
    return answers[place // 2] if place else None
