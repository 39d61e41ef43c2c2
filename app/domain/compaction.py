"""When a conversation is too long for its model: what is summarised, and what of the path is left to be sent."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from app.domain.blocks import SUMMARY, THINKING, Block
from app.domain.rounds import Round
from app.domain.turns import Turn

COMPACTED = "compacted"  # the stop reason of a round that made a summary

_CHARACTERS = 4  # of a token, roughly
_IMAGE = 1600  # tokens
_KEPT = 0.25  # of the window: the newest turns, word for word
_FIGURES = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class Summary:
    """The newest one on a path: made in round `round` of the turn at `place`, of all turns to `through`."""

    place: int
    round: int
    through: UUID
    text: str


def summary_on(path: Sequence[Turn]) -> Summary | None:
    for place in range(len(path) - 1, -1, -1):
        turn = path[place]
        made = {round.number for round in turn.rounds if round.sealed and round.stop_reason == COMPACTED}
        for block in reversed(turn.blocks):
            if block.type == SUMMARY and block.round in made and block.data:
                return Summary(place, block.round, UUID(json.loads(block.data)["through"]), block.text)
    return None


def kept_of(path: Sequence[Turn]) -> Sequence[Turn]:
    """The turns behind what the newest summary tells."""
    summary = summary_on(path)
    if summary is None:
        return path
    last = next((place for place, turn in enumerate(path) if turn.id == summary.through), -1)
    return path[last + 1 :]


def cut_of(path: Sequence[Turn], *, forced: bool = False) -> UUID | None:
    """Through which turn the path to the running one should be summarised, before the model is called again. None where
    it fits, or where nothing is left to be summarised. `forced`: the provider has said that it does not fit.
    """
    running = path[-1]
    assert running.request is not None
    window = running.request.limits.context_window
    if not forced and (window is None or size_of(path) <= window * running.request.limits.compact_at):
        return None
    kept = kept_of(path)
    budget = window * _KEPT if window is not None else size_of(kept) / 2
    end = len(kept) - 2  # the running turn and what it answers stay
    while end > 0 and sum(map(_size_of_turn, kept[end:])) + _size_of_turn(kept[end - 1]) <= budget:
        end -= 1
    while end > 0 and kept[end - 1].role == "user":
        end -= 1
    return kept[end - 1].id if end > 0 else None


def halfway_to(path: Sequence[Turn], through: UUID) -> UUID | None:
    """A cut that leaves less to be summarised at once; None where it cannot be less."""
    answers = [turn.id for turn in kept_of(path) if turn.role == "assistant"]
    place = answers.index(through)
    return answers[place // 2] if place else None


def size_of(path: Sequence[Turn]) -> int:
    """Tokens of the next request, about: what the last one had, and what was added since."""
    summary = summary_on(path)
    told = _size(summary.text) if summary else 0
    newest = _newest_figures(path)
    if newest is None:
        return told + sum(map(_size_of_turn, kept_of(path)))
    place, round = newest
    figures = sum(round.usage.get(name) or 0 for name in _FIGURES)
    since = [block for block in path[place].blocks if block.round > round.number or _is_answer(block, round)]
    return figures + sum(map(_size_of_block, since)) + sum(map(_size_of_turn, path[place + 1 :]))


def _newest_figures(path: Sequence[Turn]) -> tuple[int, Round] | None:
    """The newest round that tells how long its request was, unless the path was summarised since."""
    for place in range(len(path) - 1, -1, -1):
        for round in reversed(path[place].rounds):
            if round.sealed:
                told = round.stop_reason != COMPACTED and round.usage.get("input_tokens")
                return (place, round) if told else None
    return None


def _is_answer(block: Block, round: Round) -> bool:
    return block.round == round.number and block.type in {"tool_result", "user_text"}


def _size_of_turn(turn: Turn) -> int:
    return sum(map(_size_of_block, turn.blocks))


def _size_of_block(block: Block) -> int:
    if block.type == SUMMARY:
        return 0
    if block.type == "image":
        return _IMAGE
    return _size(block.text) + (len(block.data) // _CHARACTERS if block.data and block.type != THINKING else 0)


def _size(text: str) -> int:
    return len(text) // _CHARACTERS + 1
