"""Hooks of the embedding program: methods that are called at events of the turns of this process."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from turnstream.domain.blocks import Block
from turnstream.domain.rounds import Round
from turnstream.domain.turns import Turn
from turnstream.telemetry import HOOK_FAILURES
from turnstream.tools.tool import Outcome

log = structlog.get_logger(__name__)

TIMEOUT = 5.0  # seconds for one call of one hook
_STOP_TIMEOUT = 0.1  # seconds that a cancelled hook has to stop; then it is abandoned


@dataclass(frozen=True, slots=True)
class BeforeTool:
    """`turn` is the turn as it was at the event; this holds for every event. `input` is the JSON text that the tool
    receives. It differs from the input of the call if a person has edited the input.
    """

    owner: str
    turn: Turn
    call: Block
    input: str


@dataclass(frozen=True, slots=True)
class AfterTool:
    owner: str
    turn: Turn
    call: Block
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class AfterRound:
    owner: str
    turn: Turn
    round: Round


@dataclass(frozen=True, slots=True)
class TurnEnded:
    owner: str
    turn: Turn


@dataclass(frozen=True, slots=True)
class BeforeAttempt:
    """`attempt` is the number of the attempt at the output, counted from 1."""

    owner: str
    turn: Turn
    attempt: int


@dataclass(frozen=True, slots=True)
class OutputRejected:
    """`draft` is the rejected block: a call of the output tool, a call of the submit tool, or a text. `outcome` has the
    error text for the model.
    """

    owner: str
    turn: Turn
    attempt: int
    draft: Block
    outcome: Outcome


HookEvent = BeforeTool | AfterTool | AfterRound | BeforeAttempt | OutputRejected | TurnEnded
_METHODS: Mapping[type[HookEvent], str] = {
    BeforeTool: "before_tool",
    AfterTool: "after_tool",
    AfterRound: "after_round",
    BeforeAttempt: "before_attempt",
    OutputRejected: "output_rejected",
    TurnEnded: "turn_ended",
}


class Hooks:
    """The base class of hooks; every method may be overridden. Hooks only observe a turn."""

    async def before_tool(self, event: BeforeTool) -> None:
        """Called before a tool call runs in this process."""

    async def after_tool(self, event: AfterTool) -> None:
        """Called when this process has stored the outcome of a tool call."""

    async def after_round(self, event: AfterRound) -> None:
        """Called when a reply of the model is stored, before its tools run."""

    async def before_attempt(self, event: BeforeAttempt) -> None:
        """Called before the first model call of an attempt at the output of a structured turn."""

    async def output_rejected(self, event: OutputRejected) -> None:
        """Called when validation has rejected an output, and the rejection is stored."""

    async def turn_ended(self, event: TurnEnded) -> None:
        """Called when a turn of this process has ended, and its end is stored and sent to its readers."""


class HookRunner:
    """Calls all hooks in order. Catches the failure of a hook, and stops a hook after `timeout` seconds."""

    def __init__(self, hooks: Sequence[Hooks] = (), timeout: float = TIMEOUT) -> None:
        self._hooks = hooks
        self._timeout = timeout
        self._abandoned: set[asyncio.Task[None]] = set()

    def want(self, event: type[HookEvent]) -> bool:
        """Whether a hook overrides the method of this event."""
        name = _METHODS[event]
        return any(getattr(type(hook), name) is not getattr(Hooks, name) for hook in self._hooks)

    async def call(self, event: HookEvent) -> int:
        """Calls the method for `event` of every hook that overrides it. Returns how many calls failed."""
        name = _METHODS[type(event)]
        failures = 0
        for hook in self._hooks:
            if getattr(type(hook), name) is not getattr(Hooks, name):
                failures += not await self._call(getattr(hook, name), name, event)
        return failures

    async def _call(self, method: Callable[[Any], Coroutine[Any, Any, None]], name: str, event: HookEvent) -> bool:
        """Returns whether the call succeeded."""
        task = asyncio.create_task(_await(method, event), name=f"hook {name}")
        try:
            await asyncio.wait({task}, timeout=self._timeout)
            in_time = task.done()
        finally:
            await self._stop(task)
        error: BaseException | None
        if not in_time:
            error = TimeoutError(f"it took longer than {self._timeout:g} s")
        elif task.cancelled():  # by the hook itself: a cancellation of the caller is raised at the await above
            error = asyncio.CancelledError()
        else:
            error = task.exception()
        if error is not None:
            HOOK_FAILURES.labels(name).inc()
            log.error("hook.failed", hook=name, method=getattr(method, "__qualname__", repr(method)), exc_info=error)
        return error is None

    async def _stop(self, task: asyncio.Task[None]) -> None:
        if task.done():
            return
        self._abandoned.add(task)
        task.add_done_callback(self._forget)
        task.cancel()
        await asyncio.wait({task}, timeout=_STOP_TIMEOUT)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._abandoned.discard(task)
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved; otherwise asyncio logs it


async def _await(method: Callable[[Any], Coroutine[Any, Any, None]], event: object) -> None:
    """Awaits the method in its own task: if the method is not async, its TypeError counts as the hook's failure."""
    try:
        await method(event)
    except (SystemExit, KeyboardInterrupt) as error:  # asyncio would re-raise them, and the process would exit
        raise RuntimeError(f"a hook has raised {type(error).__name__}") from error
