"""What of an answer may be sent back at all. Pure, and the same whenever it is asked."""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Literal

from app.domain.blocks import Block
from app.domain.history import COMPACTED
from app.domain.kinds import (
    NOT_SENT_IN_PLACE,
    SERVER_CALLS,
    SERVER_RESULT,
    TEXT,
    THINKING,
    THOUGHTS,
)
from app.domain.rounds import Round
from app.domain.steps import PAUSED
from app.domain.turns import Turn
from app.llm.provider import Message

GOES_ON = PAUSED | {"tool_use"}

_WHOLE = GOES_ON | {"end_turn", "stop_sequence"}

Said = tuple[Literal["user", "assistant"], Block]


def sendable_blocks(turn: Turn, rounds: Sequence[Round], waiting: int | None) -> list[Block]:
    """Those of the rounds, in their order. Server calls of the round `waiting` may still be answered."""
    sendable: list[Block] = []
    for round in rounds:
        if round.stop_reason == COMPACTED:
            continue
        mine = [block for block in turn.blocks if block.round == round.number and is_sendable(block)]
        mine.sort(key=lambda block: block.index)
        sendable += _drop_after_calls(list(_drop_repeated_calls(mine)), round)
    return _drop_unpaired(sendable, waiting)


def is_sendable(block: Block) -> bool:
    if block.type == TEXT:
        return block.text != "" and not (block.interrupted and is_blank(block))
    if block.type == THINKING:
        return not block.interrupted and _is_signed(block)
    return block.type not in NOT_SENT_IN_PLACE and not block.interrupted


def is_blank(block: Block) -> bool:
    return block.type == TEXT and not block.text.strip()


def _is_signed(block: Block) -> bool:
    return bool(block.data and json.loads(block.data).get("signature"))


def _drop_repeated_calls(blocks: Iterable[Block]) -> Iterator[Block]:
    seen: set[str | None] = set()
    for block in blocks:
        if block.is_call and block.tool_use_id in seen:
            continue
        if block.is_call:
            seen.add(block.tool_use_id)
        yield block


def _drop_after_calls(blocks: list[Block], round: Round) -> list[Block]:
    """The provider takes a call that text follows for one without a result, so the text is left out."""
    end = max((place for place, block in enumerate(blocks, 1) if block.is_call), default=len(blocks))
    whole = round.stop_reason in _WHOLE
    return blocks[:end] + [block for block in blocks[end:] if whole and _is_server_block(block)]


def _is_server_block(block: Block) -> bool:
    return block.type in SERVER_CALLS or _is_server_result(block)


def _is_server_result(block: Block) -> bool:
    return block.type.endswith(SERVER_RESULT)


def _drop_unpaired(blocks: Sequence[Block], waiting: int | None) -> list[Block]:
    at_work: dict[str | None, int] = {}
    paired: set[int] = set()
    for place, block in enumerate(blocks):
        if block.type in SERVER_CALLS:
            at_work[block.tool_use_id] = place
        elif _is_server_result(block) and block.tool_use_id in at_work:
            paired |= {at_work.pop(block.tool_use_id), place}
    paired |= {place for place in at_work.values() if blocks[place].round == waiting}
    return [block for place, block in enumerate(blocks) if place in paired or not _is_server_block(block)]


def drop_blank_reply(blocks: Sequence[Block]) -> Sequence[Block]:
    """Blanks between other blocks go back as they came, but the provider takes no message of nothing else."""
    if any(block.type not in THOUGHTS and not is_blank(block) for block in blocks):
        return blocks
    return [block for block in blocks if not is_blank(block)]


def server_is_at_work(mine: Sequence[Block]) -> bool:
    answered = {block.tool_use_id for block in mine if _is_server_result(block)}
    return any(block.type in SERVER_CALLS and block.tool_use_id not in answered for block in mine)


def drop_last_thoughts(said: Sequence[Said]) -> list[Said]:
    """A message may not end in thinking, unless it is the last one, which the model goes on with."""
    kept: list[Said] = []
    follows = "assistant"
    for role, block in reversed(said):
        if (role, follows) == ("assistant", "user") and block.type in THOUGHTS:
            continue
        kept.append((role, block))
        follows = role
    return kept[::-1]


def grouped(said: Iterable[Said]) -> tuple[Message, ...]:
    return tuple(Message(role, tuple(block for _, block in pairs)) for role, pairs in groupby(said, lambda one: one[0]))
