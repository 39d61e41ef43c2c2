"""The rows of one turn, and the checks of these rows after a crash."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any
from uuid import UUID

from tests.faults.reader import Reader, told
from tests.support.legal.anthropic import message_problems
from tests.support.model_requests import rendered
from turnstream.api.codec import block_json
from turnstream.domain.blocks import Block, CallState
from turnstream.domain.identity import LOCAL_OWNER
from turnstream.domain.kinds import TOOL_RESULT
from turnstream.domain.log import end_cursor
from turnstream.domain.rounds import Round, add_usage
from turnstream.domain.steps import INTERRUPTED, open_round_number
from turnstream.domain.turns import RecoveryPolicy, Turn
from turnstream.engine.tool_gate import OUTCOME_UNKNOWN
from turnstream.llm.conversation.messages import build_messages
from turnstream.storage.chats.turns import Turns
from turnstream.storage.database import Database, Statement
from turnstream.storage.runs.snapshots import MirrorPosition, Snapshots
from turnstream.stream.live import LiveView

Key = tuple[int, str]
_GET_CALLS = Statement("SELECT round, tool_use_id, state FROM tool_calls WHERE turn_id = :turn")


@dataclass(frozen=True)
class Rows:
    turn: Turn
    path: list[Turn]
    open_block: Block | None
    calls: Mapping[Key, CallState]

    @classmethod
    async def of(cls, database: Database, turn: Turn) -> "Rows":
        path = await Turns(database).path(LOCAL_OWNER, turn.chat_id, turn.id)
        calls = await database.rows(_GET_CALLS, turn=turn.id)
        states = {(row["round"], row["tool_use_id"]): row["state"] for row in calls}
        found = await Snapshots(database).take({turn.id: MirrorPosition(path[-1])})
        return cls(path[-1], path, found[turn.id].open_block, states)

    @property
    def results(self) -> dict[Key, Block]:
        return {(b.round, b.tool_use_id or ""): b for b in self.turn.blocks if b.type == TOOL_RESULT}

    def key(self, call: Key) -> str:
        return f"{self.turn.id}:{call[0]}:{call[1]}"


def problems_of(rows: Rows, reader: Reader, effects: Mapping[str, int]) -> Iterator[str]:
    """Yields the problems of a turn that has ended after faults. `effects` counts effects by idempotency key."""
    turn = rows.turn
    if (turn.status, turn.stop_reason) != ("complete", "end_turn"):
        yield f"it ended as {turn.status} ({turn.stop_reason}, {turn.error})"
    nothing: Mapping[str, Any] = {}
    if turn.usage != reduce(add_usage, (round.usage for round in turn.rounds), nothing):
        yield f"its usage is {turn.usage}, its rounds' {[dict(round.usage) for round in turn.rounds]}"
    yield from message_problems(rendered(build_messages([*rows.path, _user_turn()])))
    yield from _problems_of_calls(rows, effects)
    yield from _problems_of_reader(turn, reader)


def _user_turn() -> Turn:
    """Returns the next message of the user."""
    return Turn(UUID(int=1), UUID(int=0), None, "user", "complete", blocks=(Block(0, 0, 0, "text", "And?"),))


def _problems_of_calls(rows: Rows, effects: Mapping[str, int]) -> Iterator[str]:
    calls = [(block.round, block.tool_use_id or "", block.name) for block in rows.turn.blocks if block.is_call]
    known = {rows.key((number, id)) for number, id, _ in calls}
    if others := [key for key in effects if key.startswith(f"{rows.turn.id}:") and key not in known]:
        yield f"effects under keys of no call: {others}"  # the call was repeated under another key
    if sorted(rows.results) != sorted((number, id) for number, id, _ in calls):
        yield f"calls {calls} have the results {list(rows.results)}"
    for number, id, name in calls:
        key, result = (number, id), rows.results[number, id]
        happened, state = effects.get(rows.key(key), 0), rows.calls.get(key)
        match name:
            case "look":
                right = state == "settled" and not result.is_error
            case "note" if state == "unknown":
                right = happened <= 1 and result.is_error and result.text == OUTCOME_UNKNOWN
            case "note":
                right = happened == 1 and state == "settled" and not result.is_error
            case _:
                right = happened >= 1 and state == "settled" and not result.is_error
        if not right:
            yield f"{name} {key} is {state}, took effect {happened} times, and its result is {result.text!r}"


def _problems_of_reader(turn: Turn, reader: Reader) -> Iterator[str]:
    state = reader.state
    if state.blocks != (stored := [told(block_json(block)) for block in turn.blocks]):
        yield f"the reader has {state.blocks}, the rows {stored}"
    if (state.end, state.stop_reason, state.usage) != (f"turn_{turn.status}", turn.stop_reason, told(dict(turn.usage))):
        yield f"the reader saw the end {state.end} ({state.stop_reason}, {state.usage})"
    stops = {number: (round.get("stop_reason"), round.get("usage")) for number, round in state.rounds.items()}
    sealed = {round.number: (round.stop_reason, told(dict(round.usage))) for round in turn.rounds if round.sealed}
    if stops != sealed:
        yield f"the reader saw the rounds {stops}, the rows have {sealed}"
    if reader.cursor != (last := end_cursor(LiveView(turn))):
        yield f"the reader's last cursor is {reader.cursor}, the turn's {last}"


def lost(before: Rows, after: Rows, policy: RecoveryPolicy) -> Iterator[str]:
    """Yields the content that the rows had at the death of the server, that must survive, and that is missing now."""
    for block in _blocks_to_keep(before, policy):
        if after.turn.blocks[block.index : block.index + 1] != (block,):
            yield f"{block} is gone: {after.turn.blocks[block.index : block.index + 1]}"
    for key, state in before.calls.items():
        if state != "started" and (after.calls.get(key), after.results[key]) != (state, before.results[key]):
            yield f"the {state} outcome of {key} is {after.calls.get(key)}"
        if state == "started" and after.calls[key] == "started":
            yield f"{key} was never settled"
    rounds = {(round.number, round.attempt): round for round in after.turn.rounds}
    for round in before.turn.rounds:
        yield from _problems_of_round(round, rounds.get((round.number, round.attempt)))


def _blocks_to_keep(rows: Rows, policy: RecoveryPolicy) -> Iterator[Block]:
    turn, number = rows.turn, open_round_number(rows.turn)
    yield from (block for block in turn.blocks if block.round < number)
    if fate_of_open_round(rows, policy) == INTERRUPTED:
        yield from (block for block in turn.blocks if block.round == number)
        if rows.open_block is not None:
            yield replace(rows.open_block, interrupted=True)


def fate_of_open_round(rows: Rows, policy: RecoveryPolicy) -> str | None:
    """Implements the rule of docs/states.md a second time."""
    turn, number = rows.turn, open_round_number(rows.turn)
    if not any(round.number == number and not round.voided for round in turn.rounds):
        return None
    mine = [block for block in (*turn.blocks, rows.open_block) if block is not None and block.round == number]
    has_text = any(block.type == "text" and block.text.strip() for block in mine)
    if any(block.is_call for block in mine) or (policy == "continue" and has_text):
        return INTERRUPTED
    return "voided"


def _problems_of_round(was: Round, now: Round | None) -> Iterator[str]:
    if now is None:
        yield f"round {was} is gone"
    elif was.sealed and now != was:
        yield f"the sealed {was} became {now}"
    elif any(now.usage.get(kind) != count for kind, count in was.usage.items()):
        yield f"of the usage of {was} only {now.usage} is left"


def seen_too_early(rows: Rows, reader: Reader) -> Iterator[str]:
    """Yields the closed blocks that a reader had at the death of the server, that no row has, and that no new attempt
    has voided.
    """
    closed = [block for block in reader.state.blocks if not block.get("open")]
    held = [told(block_json(block)) for block in rows.turn.blocks]
    if closed != held[: len(closed)] and reader.cursor.attempt == rows.turn.attempt:
        yield f"the reader had {closed}, the rows {held}"
