"""Makes the copies of turns for forks. A copy is complete, or cut after a block."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from turnstream.domain.blocks import Block
from turnstream.domain.errors import Conflict, RequestRefused
from turnstream.domain.kinds import AFTER_SEAL, SUMMARY, TOOL_RESULT
from turnstream.domain.steps import unanswered_calls
from turnstream.domain.turns import Turn

FORKED = "forked"  # the stop reason of a cut turn, and of a round that was cut in the middle
LEFT_OUT = "This call has no result here: the conversation was forked before it."


@dataclass(frozen=True, slots=True)
class CutTurn:
    """The content of a turn's copy: the first `kept` blocks of the original, followed by added results. `cut_round` is
    the number of the round that was cut in the middle, if any.
    """

    turn: Turn
    kept: int
    cut_round: int | None = None


def cut_after(turn: Turn, index: int | None) -> CutTurn:
    """Returns the content for a copy of the turn: the blocks up to `index` (-1: no block), or all blocks if `index` is
    None. A call whose result is left out gets a substitute result, because models require one. Raises RequestRefused if
    the block does not exist, and Conflict if the turn is open and this part of it may still change.
    """
    if index is not None and index >= len(turn.blocks):
        known = f"from 0 to {len(turn.blocks) - 1}" if turn.blocks else "and this turn has none yet"
        raise RequestRefused(f"`block` must be the index of one of the turn's blocks, {known}.", field="block")
    rounds = tuple(round for round in turn.rounds if round.sealed and not round.voided)
    if not turn.ended:
        sealed = {round.number for round in rounds}
        if index is None or turn.blocks[index].round not in sealed:
            raise Conflict(
                f"Turn {turn.id} has not ended; name a `block` of a complete round, or wait for the turn's end.",
                field="block",
            )
    elif index is None or index == len(turn.blocks) - 1:
        return CutTurn(replace(turn, rounds=rounds), len(turn.blocks))
    kept, left_out = turn.blocks[: index + 1], turn.blocks[index + 1 :]
    if turn.role == "user":
        return CutTurn(replace(turn, blocks=kept), len(kept))
    last = kept[-1].round if kept else 0
    rounds = tuple(round for round in rounds if round.number <= last)
    cut_round = last if any(block.round == last and block.type not in AFTER_SEAL for block in left_out) else None
    rounds = tuple(replace(round, stop_reason=FORKED) if round.number == cut_round else round for round in rounds)
    results = tuple(
        Block(
            len(kept) + place,
            call.round,
            turn.attempt,
            TOOL_RESULT,
            LEFT_OUT,
            tool_use_id=call.tool_use_id,
            name=call.name,
            is_error=True,
        )
        for place, call in enumerate(unanswered_calls(kept))
    )
    blocks = (*kept, *results)
    cut = replace(
        turn, status="complete", stop_reason=FORKED, error=None, rounds=rounds, blocks=blocks, asks=(), steers=()
    )
    return CutTurn(cut, len(kept), cut_round)


def with_new_ids(block: Block, ids: Mapping[UUID, UUID]) -> Block:
    """Replaces the ids of copied turns in a summary or a shortening. `ids` maps the id of each original to the id of
    its copy.
    """
    if block.data is None:
        return block
    data = json.loads(block.data)
    if block.type == SUMMARY:
        data["through"] = _new_id(data["through"], ids)
    else:
        for end in ("first", "last"):
            data[end]["turn"] = _new_id(data[end]["turn"], ids)
    return replace(block, data=json.dumps(data))


def _new_id(id: str, ids: Mapping[UUID, UUID]) -> str:
    return str(ids.get(UUID(id), id))
