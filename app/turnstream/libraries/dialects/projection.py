"""Translates the log of a turn into steps for dialects: blocks begin, grow by deltas and close; calls get results or
wait for a person; blocks are retracted; the turn ends.

A projection folds the events of one reader in order. A step contains data from earlier events: the runner of a call,
the call of a result, the blocks that a reset voids, the number of waits so far. The steps depend on the log alone: at
the end, the closed blocks are the same wherever the deltas were split, wherever the reader started, and whatever was
retracted.

A delta is not a step; it belongs to the block `open`. So the projection creates no object for a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from turnstream.api.codec import parsed
from turnstream.domain.asks import QUESTIONS, AskKind
from turnstream.domain.blocks import Block, CallKey
from turnstream.domain.events import (
    ActionRequired,
    BlockDelta,
    BlockStart,
    BlockStop,
    Event,
    Notice,
    Reset,
    RoundStart,
    RoundStop,
    TurnEnd,
    TurnStart,
)
from turnstream.domain.kinds import CALLS, SERVER_CALLS, TEXT, THINKING, TOOL_RESULT, TOOL_USE
from turnstream.domain.turns import Turn

Runner = Literal["client", "server", "provider"]

_OWN_DATA = CALLS | {TEXT, THINKING}  # types of blocks whose `data` is their own content, not a result


@dataclass(frozen=True, slots=True)
class Begin:
    """A block begins. `runner` is the runner of a call. `again`: the same block was open before and was retracted."""

    start: BlockStart
    runner: Runner | None = None
    again: bool = False


@dataclass(frozen=True, slots=True)
class Close:
    """A block that is not a result is complete. Blocks of some types have no beginning and no deltas."""

    block: Block
    runner: Runner | None = None


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a tool call. `call` is None if the reader did not receive the call."""

    block: Block
    call: Block | None
    runner: Runner


@dataclass(frozen=True, slots=True)
class ProviderResult:
    """The result of a call that the provider ran. `output` is a JSON value."""

    block: Block
    call: Block
    output: Any


Closed = Close | CallResult | ProviderResult


@dataclass(frozen=True, slots=True)
class Retract:
    """Voids the block `open` and the closed blocks from `index` on. `kept` are the remaining blocks of the present
    round.
    """

    attempt: int
    index: int
    open: BlockStart | None
    kept: Sequence[Closed]


Step = TurnStart | RoundStart | Begin | Closed | RoundStop | ActionRequired | Retract | TurnEnd | Notice


class Projection:
    """Translates the events of one reader into steps. `open` is the block that receives deltas; `closed` contains the
    complete blocks. `waits` counts the waits for the client that have ended.
    """

    def __init__(self, turn: Turn | None = None) -> None:
        self.open: Begin | None = None
        self.closed: list[Closed] = []
        self.calls: dict[CallKey, Block] = {}
        self.asked: dict[CallKey, AskKind] = {}
        self._clients = client_tools(turn)
        self._provider_calls: dict[str, Block] = {}
        self._waits: dict[int, int] = {}  # for each round, the index in `closed` of the first result that ended a wait
        self._round_begins = 0  # the index in `closed` where the present round begins
        self._retracted: BlockStart | None = None

    @property
    def waits(self) -> int:
        return len(self._waits)

    def part(self, number: int) -> Sequence[Closed]:
        """Returns the blocks after `number` waits, up to the next wait."""
        places = [0, *self._waits.values(), len(self.closed)]
        return self.closed[places[number] : places[number + 1]] if number <= self.waits else []

    @property
    def round(self) -> Sequence[Closed]:
        """The blocks of the present round, and the blocks that closed after its end."""
        return self.closed[self._round_begins :]

    def take(self, event: Event | Notice) -> Step | None:
        match event:
            case BlockStart():
                was_open, self._retracted = self._retracted, None
                again = was_open is not None and (was_open.index, was_open.attempt) == (event.index, event.attempt)
                self.open = Begin(event, self._runner(event.type, event.name), again)
                return self.open
            case BlockStop(block=block):
                self.open = None
                return self.close(block)
            case Reset():
                return self._retract(event)
            case BlockDelta():
                return None
            case RoundStart():
                self._round_begins = len(self.closed)
            case ActionRequired(round=round, actions=actions):
                # A question does not make the turn wait, because its tool is running. A sign-in is not in the log.
                self.asked |= {(round, each.tool_use_id): each.kind for each in actions if each.kind not in QUESTIONS}
            case _:
                pass
        return event

    def close(self, block: Block) -> Closed:
        """Adds a complete block, and returns its step."""
        step = self._closing(block)
        self._note(step)
        return step

    def _closing(self, block: Block) -> Closed:
        if block.type == TOOL_RESULT:
            runner: Runner = "client" if block.name in self._clients else "server"
            return CallResult(block, self.calls.get(block.key), runner)
        if self._provider_calls and block.data is not None and block.type not in _OWN_DATA:
            members = parsed(block.data)
            id = members.get("tool_use_id") if isinstance(members, dict) else None  # the provider may send any JSON
            if isinstance(id, str) and (call := self._provider_calls.get(id)):
                return ProviderResult(block, call, members.get("content"))
        return Close(block, self._runner(block.type, block.name))

    def _note(self, step: Closed) -> None:
        self.closed.append(step)
        block = step.block
        key = block.key
        if isinstance(step, Close) and step.runner is not None:
            self.calls[key] = block
            if step.runner == "provider":
                self._provider_calls[key[1]] = block
        elif block.type == TOOL_RESULT and key in self.asked:
            self._waits.setdefault(block.round, len(self.closed) - 1)

    def _runner(self, type: str, name: str | None) -> Runner | None:
        if type == TOOL_USE:
            return "client" if name in self._clients else "server"
        return "provider" if type in SERVER_CALLS else None

    def _retract(self, reset: Reset) -> Retract:
        kept = [step for step in self.closed if step.block.index < reset.index]
        self._retracted, self.open = self.open.start if self.open else None, None
        self._round_begins = min(self._round_begins, len(kept))
        self.closed, self.calls, self._provider_calls, self._waits = [], {}, {}, {}
        for step in kept:
            self._note(step)
        self.asked = {key: kind for key, kind in self.asked.items() if key in self.calls}
        return Retract(reset.attempt, reset.index, self._retracted, self.round)


def calls_of_client(steps: Sequence[Closed]) -> list[Block]:
    """Returns the calls of client tools among the steps."""
    return [step.block for step in steps if isinstance(step, Close) and step.runner == "client"]


def client_tools(turn: Turn | None) -> frozenset[str]:
    """Returns the names of the turn's client tools."""
    request = turn.request if turn is not None else None
    return frozenset(spec.name for spec in request.tools if spec.client) if request else frozenset()
