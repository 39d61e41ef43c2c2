"""Filters blocks of a turn for replay to a provider, and converts them. Pure and repeatable."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Literal

from turnstream.domain.assembly import ASSEMBLED
from turnstream.domain.blocks import READ_RESULT, Block, caller_of
from turnstream.domain.history import COMPACTED, Shortening, omitted_characters, shortening_of
from turnstream.domain.kinds import (
    NOT_SENT_IN_PLACE,
    PROVIDER_SUMMARY,
    SERVER_CALLS,
    SERVER_RESULT,
    TEXT,
    THINKING,
    THOUGHTS,
)
from turnstream.domain.results import count_files
from turnstream.domain.rounds import Round
from turnstream.domain.steps import PAUSED
from turnstream.domain.turns import ToolSpec, Turn
from turnstream.llm.provider import Message

GOES_ON = PAUSED | {"tool_use"}

_WHOLE = GOES_ON | {"end_turn", "stop_sequence"}

RoleBlock = tuple[Literal["user", "assistant"], Block]


def with_shortenings(path: Sequence[Turn], shortenings: Sequence[Shortening], model: str | None) -> list[Turn]:
    """Returns the path with shortened results, and without the `compaction` blocks from other models than `model`,
    because `model` cannot read them.
    """
    request = path[-1].request
    tools = request.tools if request else ()
    if not shortenings and not any(block.type == PROVIDER_SUMMARY for turn in path for block in turn.blocks):
        return [*path]
    sent: list[Turn] = []
    for place, turn in enumerate(path):
        if turn.role != "assistant":
            sent.append(turn)
            continue
        mine = {round.number for round in turn.rounds if model_of(turn, round) == model}
        blocks = [block for block in turn.blocks if block.type != PROVIDER_SUMMARY or block.round in mine]
        for number, block in enumerate(blocks):
            if cut := shortening_of((place, block.round), block, shortenings):
                blocks[number] = replace(block, text=shortened_text(block, cut.head, tools), data=None)
        sent.append(turn if blocks == list(turn.blocks) else replace(turn, blocks=tuple(blocks)))
    return sent


def model_of(turn: Turn, round: Round) -> str | None:
    return round.model or (turn.request.model if turn.request else None)


def shortened_text(result: Block, head: int, tools: Sequence[ToolSpec]) -> str:
    """Returns the first `head` characters of a result, and a note on how the model can read the rest with tools."""
    cut, files = omitted_characters(result, head), count_files(result)
    left_out = [f"{cut:,} of {len(result.text):,} characters"] if cut else []
    left_out += [f"{files} files" if files > 1 else "a file"] if files else []
    note = f"Left out here: {' and '.join(left_out)}, since the conversation has become long."
    by_name = {tool.name: tool for tool in tools}
    tool = by_name.get(result.name or "")
    if cut and READ_RESULT in by_name:
        note += f' To read them, call {READ_RESULT} with tool_use_id "{result.tool_use_id}" and offset {head}.'
    elif tool is not None and tool.read_only:
        note += f" If you need them, call {tool.name} again."
    kept = result.text[:head] if cut else result.text
    return f"{kept}\n\n[{note}]" if kept else f"[{note}]"


def sendable_blocks(
    turn: Turn, rounds: Sequence[Round], going_on: Sequence[Round], programs_go_on: bool
) -> list[Block]:
    """Returns the sendable blocks of the rounds, in order. `going_on` are the last rounds if the provider still works
    on them: their server calls may lack a result. If such a call is a program that has called our tools, it is kept
    only with `programs_go_on`.
    """
    sendable: list[Block] = []
    for round in rounds:
        if round.stop_reason in {COMPACTED, ASSEMBLED}:
            continue
        mine = [block for block in turn.blocks if block.round == round.number and is_sendable(block)]
        sendable += _drop_after_calls(_drop_repeated_calls(sorted(mine, key=lambda block: block.index)), round)
    return _drop_unpaired(sendable, going_on, programs_go_on)


def is_sendable(block: Block) -> bool:
    if block.type == TEXT:
        return block.text != "" and not (block.interrupted and is_blank(block))
    if block.type == THINKING:
        # Providers refuse a thought without its signature.
        return not block.interrupted and bool(block.data and json.loads(block.data).get("signature"))
    return block.type not in NOT_SENT_IN_PLACE and not block.interrupted


def is_blank(block: Block) -> bool:
    return block.type == TEXT and not block.text.strip()


def _drop_repeated_calls(blocks: Iterable[Block]) -> list[Block]:
    seen: set[str | None] = set()
    kept: list[Block] = []
    for block in blocks:
        if block.is_call:
            if block.tool_use_id in seen:
                continue
            seen.add(block.tool_use_id)
        kept.append(block)
    return kept


def _drop_after_calls(blocks: list[Block], round: Round) -> list[Block]:
    """Drops text after the last call, because with such a text the provider would miss the result of the call. Calls
    that a program made count only if there are no others, because they may be omitted with the program.
    """
    calls = [(place, caller_of(block)) for place, block in enumerate(blocks, 1) if block.is_call]
    direct = [place for place, caller in calls if caller is None]
    end = max(direct or [place for place, _ in calls], default=len(blocks))
    whole = round.stop_reason in _WHOLE
    return blocks[:end] + [block for block in blocks[end:] if block.is_call or (whole and _is_server_block(block))]


def _is_server_block(block: Block) -> bool:
    return block.type in SERVER_CALLS or _is_server_result(block)


def _is_server_result(block: Block) -> bool:
    return block.type.endswith(SERVER_RESULT)


def _drop_unpaired(blocks: Sequence[Block], going_on: Sequence[Round], programs_go_on: bool) -> list[Block]:
    """Drops server calls without a result, results without a call, and calls that a dropped program made. A result may
    come in a later round: a program continues as long as each later message has calls from it.
    """
    open_calls: dict[str | None, int] = {}
    paired: set[int] = set()
    for place, block in enumerate(blocks):
        if block.type in SERVER_CALLS:
            open_calls[block.tool_use_id] = place
        elif _is_server_result(block) and block.tool_use_id in open_calls:
            paired |= {open_calls.pop(block.tool_use_id), place}
    messages = _messages_of(blocks, going_on)
    called = {(messages.get(block.round), caller_of(block)) for block in blocks}
    callers = {caller_of(block) for block in blocks if block.is_call}
    for id, place in open_calls.items():
        if id in callers and not programs_go_on:
            continue
        mine = messages.get(blocks[place].round)
        if mine is not None and all((later, id) in called for later in messages.values() if later > mine):
            paired.add(place)
    kept: list[Block] = []
    programs: set[str | None] = {None}
    for place, block in enumerate(blocks):
        id = block.tool_use_id if _is_server_result(block) else caller_of(block)
        if id in programs and (place in paired or not _is_server_block(block)):
            kept.append(block)
            if block.type in SERVER_CALLS:
                programs.add(block.tool_use_id)
    return kept


def _messages_of(blocks: Sequence[Block], going_on: Sequence[Round]) -> dict[int, int]:
    """Returns the message number of each round that has blocks. Results of calls separate messages."""
    messages: dict[int, int] = {}
    current = 0
    for number in sorted(round.number for round in going_on):
        if mine := [block for block in blocks if block.round == number]:
            messages[number] = current
            current += any(block.is_call for block in mine)
    return messages


def drop_blank_reply(blocks: Sequence[Block]) -> Sequence[Block]:
    """Drops blank texts from a reply that has only such texts and thoughts, because providers refuse a blank message.
    In other replies, blank texts are kept byte for byte.
    """
    if any(block.type not in THOUGHTS and not is_blank(block) for block in blocks):
        return blocks
    return [block for block in blocks if not is_blank(block)]


def server_is_at_work(blocks: Sequence[Block]) -> bool:
    """True if a server call has no result."""
    answered = {block.tool_use_id for block in blocks if _is_server_result(block)}
    return any(block.type in SERVER_CALLS and block.tool_use_id not in answered for block in blocks)


def drop_last_thoughts(entries: Sequence[RoleBlock]) -> list[RoleBlock]:
    """Drops thoughts at a message's end. Only the last message, which the model continues, may end with thoughts."""
    kept: list[RoleBlock] = []
    next_role = "assistant"
    for role, block in reversed(entries):
        if (role, next_role) == ("assistant", "user") and block.type in THOUGHTS:
            continue
        kept.append((role, block))
        next_role = role
    return kept[::-1]


def group_by_role(entries: Iterable[RoleBlock]) -> tuple[Message, ...]:
    grouped = groupby(entries, lambda entry: entry[0])
    return tuple(Message(role, tuple(block for _, block in pairs)) for role, pairs in grouped)
