"""How long the next request is, about: in tokens, from what the last one had by its usage and what was added since."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.blocks import Block
from app.domain.history import COMPACTED, Position, Shortening, shortenings_on, summary_on, turns_after_summary
from app.domain.kinds import ADDED_TO_REQUEST, kind_of
from app.domain.results import count_files
from app.domain.rounds import Round
from app.domain.turns import Turn

_CHARACTERS = 4  # of a token, roughly
FILE_TOKENS = 1600  # tokens of an image; of a document too, whose pages are not known here
_FIGURES = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class SizeEstimate:
    """`guessed` tokens of it were guessed by the length of texts."""

    tokens: int
    guessed: int

    def is_uncertain_about(self, tokens: float) -> bool:
        """True where a count could say that it is as much, or that it is not: a guess is off by half, or doubles."""
        return self.tokens - self.guessed / 2 <= tokens < self.tokens + self.guessed


def estimate_size(path: Sequence[Turn]) -> SizeEstimate:
    newest = _newest_figures(path)
    if newest is None:
        return _guess(path)
    place, round = newest
    figures = sum(round.usage.get(name) or 0 for name in _FIGURES)
    since = [block for block in path[place].blocks if block.round > round.number or _is_added(block, round)]
    added = sum(map(size_of_block, since)) + sum(map(size_of_turn, path[place + 1 :]))
    since_then = [shortening for shortening in shortenings_on(path) if shortening.made >= (place, round.number)]
    less = sum(tokens_of(shortening.left_out) + shortening.files * FILE_TOKENS for shortening in since_then)
    return SizeEstimate(max(0, figures + added - less), added + less)


def _newest_figures(path: Sequence[Turn]) -> tuple[int, Round] | None:
    """The newest round that tells how long its request was, unless the path is sent in another way since."""
    for place in range(len(path) - 1, -1, -1):
        for round in reversed(path[place].rounds):
            if round.sealed:
                told = round.stop_reason != COMPACTED and round.usage.get("input_tokens")
                return (place, round) if told and _same_edits(path[place], path[-1]) else None
    return None


def _same_edits(then: Turn, now: Turn) -> bool:
    """What the provider has cut out of its request by itself is in the next one, where it is not to do so any more."""
    if then.request is None or now.request is None:
        return then.request is now.request
    return then.request.limits.provider_edits == now.request.limits.provider_edits


def _is_added(block: Block, round: Round) -> bool:
    return block.round == round.number and block.type in ADDED_TO_REQUEST


def _guess(path: Sequence[Turn]) -> SizeEstimate:
    summary, kept, shortenings = summary_on(path), turns_after_summary(path), shortenings_on(path)
    tokens = _size(summary.text) if summary else 0
    for place, turn in enumerate(kept, len(path) - len(kept)):
        tokens += sum(size_of_block(block, _head(block, (place, block.round), shortenings)) for block in turn.blocks)
    tokens += _size_of_frame(path[-1])
    return SizeEstimate(tokens, tokens)


def _head(block: Block, position: Position, shortenings: Sequence[Shortening]) -> int | None:
    return next((s.head for s in shortenings if s.shortens(position, block)), None)


def _size_of_frame(running: Turn) -> int:
    request = running.request
    assert request is not None
    tools = sum(len(tool.name) + len(tool.description) + len(tool.input_schema) for tool in request.tools)
    return tokens_of(len(request.system or "") + tools + sum(map(len, request.provider_tools)))


def tokens_of(characters: int) -> int:
    return characters // _CHARACTERS


def size_of_turn(turn: Turn) -> int:
    return sum(map(size_of_block, turn.blocks))


def size_of_block(block: Block, head: int | None = None) -> int:
    """With `head` only so many of its characters are sent."""
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


def _size(text: str) -> int:
    return tokens_of(len(text)) + 1
