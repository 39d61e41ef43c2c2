"""Compaction of a conversation that is too long for its model.

First, requests contain only a part of older tool results. If that is not enough, a summary replaces earlier turns. If
there are no earlier turns, requests omit older results of the running turn. The size of a request is estimated in
tokens, from the usage of the last request and the length of the content after that request.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from uuid import UUID

from turnstream.domain.assembly import WRITTEN_HERE
from turnstream.domain.blocks import Block
from turnstream.domain.history import (
    COMPACTED,
    Position,
    Shortening,
    can_be_shortened,
    earlier_results_of,
    omitted_characters,
    shortening_block,
    shortening_of,
    shortenings_on,
    summary_on,
    turns_after_summary,
    with_earlier_results,
)
from turnstream.domain.kinds import ADDED_TO_REQUEST, TOOL_RESULT, kind_of
from turnstream.domain.results import count_files
from turnstream.domain.rounds import Round
from turnstream.domain.turns import Turn, TurnRequest

CONTEXT_EDITING = "context_editing"  # the provider omits older tool results
COMPACTION = "compaction"  # the provider summarises
EDITS = (CONTEXT_EDITING, COMPACTION)  # edits that a provider may make by itself
FILE_TOKENS = 1600  # the estimate for an image, and for a document, whose number of pages is unknown

_CHARACTERS_PER_TOKEN = 4
_FIGURES = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")

# Shares of the context window.
_KEPT = 0.25  # for the newest turns and the newest results, which are sent in full
_WORTHWHILE = 0.1  # the least saving that justifies a shortening, which invalidates the provider's cache

_LOW_WATER = 0.75  # share of the limit: if a shortening does not get below it, a summary replaces turns
_HEAD = 500  # characters of a shortened result in a request; zero if the request is still too long


def may_need_compaction(path: Sequence[Turn]) -> bool:
    """Returns True if the estimate is too uncertain to decide. The provider should then count the tokens."""
    limit = _limit(path[-1])
    return limit is not None and estimate_size(path).is_uncertain_about(limit)


def compaction_needed(path: Sequence[Turn], *, tokens: int | None = None, forced: bool = False) -> Block | UUID | None:
    """Returns the work before the next model call of the turn at the end of `path`: a block that records which results
    are shortened, or the id of the last turn to summarise. None if the path fits, or cannot become shorter.

    `tokens` is the counted size of the request, if known. `forced`: the provider has refused the request as too long.
    """
    limit = _limit(path[-1])
    size = estimate_size(path).tokens if tokens is None else tokens
    if not forced and (limit is None or size <= limit):
        return None
    window = _request(path[-1]).limits.context_window or size
    path = with_earlier_results(path)
    if forced:  # the provider refuses this size, so the window is smaller
        window = min(window, size)
    ours = forced or CONTEXT_EDITING not in _edits(path[-1])
    old = list(_old_rounds(path, window * _KEPT)) if ours else []
    shortening = _shortening(path, old, _HEAD, window)
    if shortening is not None and (forced or limit is None or size - _saved(shortening) <= limit * _LOW_WATER):
        return shortening_block(shortening, path)
    through = last_turn_to_summarise(path, window)
    if through is not None:
        return through
    # Only results of the running turn can still be shortened.
    shortening = shortening or _shortening(path, old, 0, window)
    if shortening is None and ours and (forced or (tokens or 0) > window):
        shortening = _shortening_of_newest(path, window)
    return None if shortening is None else shortening_block(shortening, path)


def _limit(running: Turn) -> float | None:
    """Returns the maximum size of a request; None if unknown, or if the provider compacts by itself."""
    window = _request(running).limits.context_window
    if window is None or COMPACTION in _edits(running):
        return None
    return window * _request(running).limits.compact_at


def _edits(running: Turn) -> Sequence[str]:
    return _request(running).limits.provider_edits


def _request(running: Turn) -> TurnRequest:
    assert running.request is not None
    return running.request


# --- shortening of tool results --------------------------------------------------------------------------------------


# The results of one round.
_Results = tuple[Position, Sequence[Block]]


def _shortening(path: Sequence[Turn], rounds: Sequence[_Results], head: int, window: int) -> Shortening | None:
    """Returns a shortening of the results in `rounds` that exceed `head` characters; None if the saving is small."""
    known = shortenings_on(path)
    positions: list[Position] = []
    left_out = files = 0
    for position, blocks in rounds:
        for block in blocks:
            before = shortening_of(position, block, known)
            if not can_be_shortened(block, head) or (before is not None and before.head <= head):
                continue
            positions.append(position)
            left_out += omitted_characters(block, head)
            if before is None:
                files += count_files(block)
            else:
                left_out -= omitted_characters(block, before.head)
    if not positions:
        return None
    made = (len(path) - 1, max((round.number for round in path[-1].rounds if round.sealed), default=0))
    shortening = Shortening(made, min(positions), max(positions), head, len(positions), left_out, files)
    return shortening if _saved(shortening) >= window * _WORTHWHILE else None


def _old_rounds(path: Sequence[Turn], room: float) -> Iterator[_Results]:
    """Yields the rounds with results, except the newest rounds, which fit into `room`. The newest round is always
    excepted, because the model may not have seen its results.
    """
    newest_first = reversed(list(_rounds_with_results(path)))
    for number, (position, blocks) in enumerate(newest_first):
        room -= sum(map(size_of_block, blocks))
        if number == 0 or room >= 0:
            continue
        room = -1  # full: every older round is yielded, even a small round that would fit
        yield position, blocks


def _shortening_of_newest(path: Sequence[Turn], window: int) -> Shortening | None:
    """Returns a shortening of unseen results that fit into no request. Together they get a share of the window."""
    rounds = list(_rounds_with_results(path))[-1:]
    results = sum(len(blocks) for _, blocks in rounds) or 1
    return _shortening(path, rounds, int(window * _KEPT * _CHARACTERS_PER_TOKEN / results), window)


def _rounds_with_results(path: Sequence[Turn]) -> Iterator[tuple[Position, list[Block]]]:
    kept = turns_after_summary(path)
    for place, turn in enumerate(kept, len(path) - len(kept)):
        results = sorted((b for b in turn.blocks if b.type == TOOL_RESULT), key=lambda block: block.round)
        for round, blocks in groupby(results, key=lambda block: block.round):
            yield (place, round), list(blocks)


def _saved(shortening: Shortening) -> int:
    return tokens_of(shortening.left_out) + shortening.files * FILE_TOKENS


# --- summaries of turns ----------------------------------------------------------------------------------------------


def last_turn_to_summarise(path: Sequence[Turn], window: int) -> UUID | None:
    """Returns the last turn to summarise, if any, so that the later turns fill at most a share of the window."""
    kept = turns_after_summary(path)
    end = len(kept) - 2  # the running turn and the user turn that it answers are never summarised
    room = window * _KEPT - sum(map(size_of_turn, kept[max(0, end) :]))
    while end > 0 and (room := room - size_of_turn(kept[end - 1])) >= 0:
        end -= 1
    while end > 0 and kept[end - 1].role == "user":
        end -= 1
    return kept[end - 1].id if end > 0 else None


def earlier_cut(path: Sequence[Turn], through: UUID) -> UUID | None:
    """Returns an answer halfway to `through`, for a summary of fewer turns; None if `through` is the first answer."""
    answers = [turn.id for turn in turns_after_summary(path) if turn.role == "assistant"]
    place = answers.index(through)
    return answers[place // 2] if place else None


# --- the size of a request -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SizeEstimate:
    """The size of a request in tokens. `guessed` of these tokens are estimated from the length of texts."""

    tokens: int
    guessed: int

    def is_uncertain_about(self, tokens: float) -> bool:
        """Returns True if the size may be above or below `tokens`, as the guess may be wrong by a factor of two."""
        return self.tokens - self.guessed / 2 <= tokens < self.tokens + self.guessed


def estimate_size(path: Sequence[Turn]) -> SizeEstimate:
    """Returns the estimated size of the next request for the turn at the end of `path`."""
    newest = _newest_figures(path)
    if newest is None:
        return _guess(path)
    place, round = newest
    figures = sum(round.usage.get(name) or 0 for name in _FIGURES)
    since = [
        block
        for block in path[place].blocks
        if block.round > round.number or (block.round == round.number and block.type in ADDED_TO_REQUEST)
    ]
    added = sum(map(size_of_block, since)) + sum(map(size_of_turn, path[place + 1 :]))
    if {"whole"} != {earlier_results_of(path[place].request), earlier_results_of(path[-1].request)}:
        # The request of that round contains other parts of earlier results than the next request.
        then, now = with_earlier_results(path[: place + 1]), with_earlier_results(path)[: place + 1]
        added += sum(map(size_of_turn, now)) - sum(map(size_of_turn, then))
    saved = sum(_saved(shortening) for shortening in shortenings_on(path) if shortening.made >= (place, round.number))
    return SizeEstimate(max(0, figures + added - saved), added + saved)


def _newest_figures(path: Sequence[Turn]) -> tuple[int, Round] | None:
    """Returns the newest sealed round and its turn's index, if its usage is comparable with the next request."""
    for place in range(len(path) - 1, -1, -1):
        for round in reversed(path[place].rounds):
            if round.sealed and round.stop_reason not in WRITTEN_HERE:  # skips rounds without a model call
                usable = round.stop_reason != COMPACTED and round.usage.get("input_tokens")
                return (place, round) if usable and _same_edits(path[place], path[-1]) else None
    return None


def _same_edits(then: Turn, now: Turn) -> bool:
    """Returns False if the requests ask the provider for different edits, so that their sizes are not comparable."""
    if then.request is None or now.request is None:
        return then.request is now.request
    requests = (then.request, now.request)
    before, after = ((one.limits.provider_edits, one.params.get("context_management")) for one in requests)
    return before == after


def _guess(path: Sequence[Turn]) -> SizeEstimate:
    """Returns an estimate from the length of all texts, with the system prompt and the tools."""
    path = with_earlier_results(path)
    summary, kept, shortenings = summary_on(path), turns_after_summary(path), shortenings_on(path)
    tokens = _size(summary.text) if summary else 0
    for place, turn in enumerate(kept, len(path) - len(kept)):
        for block in turn.blocks:
            cut = shortening_of((place, block.round), block, shortenings)
            tokens += size_of_block(block, None if cut is None else cut.head)
    request = _request(path[-1])
    tools = sum(len(tool.name) + len(tool.description) + len(tool.input_schema) for tool in request.defined_tools)
    tokens += tokens_of(len(request.system or "") + tools + sum(map(len, request.provider_tools)))
    return SizeEstimate(tokens, tokens)


def tokens_of(characters: int) -> int:
    return characters // _CHARACTERS_PER_TOKEN


def size_of_turn(turn: Turn) -> int:
    return sum(map(size_of_block, turn.blocks))


def size_of_block(block: Block, head: int | None = None) -> int:
    """Returns the size in tokens. With `head`, the request contains only that many characters of the block."""
    size = kind_of(block.type).size
    if size == "none":
        return 0
    if size == "one_file":
        return FILE_TOKENS
    if head is not None:
        return _size(block.text[:head])
    tokens = _size(block.text)
    if size == "text_and_files":
        tokens += count_files(block) * FILE_TOKENS
    elif size == "text_and_data":
        tokens += tokens_of(len(block.data or ""))
    return tokens


def size_of_reply(blocks: Sequence[Block], round: int) -> int:
    """Returns the estimated output of the model in a round, in tokens: its text, thoughts and inputs of calls."""
    return sum(_size(block.text) for block in blocks if block.round == round and block.text)


def _size(text: str) -> int:
    return tokens_of(len(text)) + 1
