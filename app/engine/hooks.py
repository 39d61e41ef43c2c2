"""Hooks of the embedding program: methods that are called at events of the turns that run in this process."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from app.domain.blocks import Block
from app.domain.rounds import Round
from app.domain.turns import Turn
from app.telemetry import HOOK_FAILURES
from app.tools.tool import Outcome

log = structlog.get_logger(__name__)

TIMEOUT = 5.0  # seconds for one call of one hook
_STOP_TIMEOUT = 0.1  # seconds for a cancelled hook; then it is abandoned


@dataclass(frozen=True, slots=True)
class BeforeTool:
    """`turn` is the turn at the time of the event, as in every event. `input` is the JSON text that the tool gets. It
    differs from the call's if a person edited it.
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


class Hooks:
    """The base class of hooks; every method may be overridden. Hooks observe: they cannot change a turn."""

    async def before_tool(self, event: BeforeTool) -> None:
        """Called before a call runs here."""

    async def after_tool(self, event: AfterTool) -> None:
        """Called when the outcome of a call that ran here is stored."""

    async def after_round(self, event: AfterRound) -> None:
        """Called when a reply of the model is stored. The tools that it calls run afterwards."""

    async def turn_ended(self, event: TurnEnded) -> None:
        """Called when the end of a turn that ran here is stored and its readers have been notified."""


class HookRunner:
    """Calls all hooks, one after the other. It contains their failures, and stops each after `timeout` seconds."""

    def __init__(self, hooks: Sequence[Hooks] = (), timeout: float = TIMEOUT) -> None:
        self._hooks = hooks
        self._timeout = timeout
        self._abandoned: set[asyncio.Task[None]] = set()

    async def before_tool(self, event: BeforeTool) -> None:
        await self._call_all("before_tool", event)

    async def after_tool(self, event: AfterTool) -> None:
        await self._call_all("after_tool", event)

    async def after_round(self, event: AfterRound) -> None:
        await self._call_all("after_round", event)

    async def turn_ended(self, event: TurnEnded) -> None:
        await self._call_all("turn_ended", event)

    async def _call_all(self, name: str, event: object) -> None:
        for hook in self._hooks:
            if getattr(type(hook), name) is not getattr(Hooks, name):
                await self._call(getattr(hook, name), name, event)

    async def _call(self, method: Callable[[Any], Coroutine[Any, Any, None]], name: str, event: object) -> None:
        task = asyncio.create_task(_await(method, event), name=f"hook {name}")
        try:
            await asyncio.wait({task}, timeout=self._timeout)
            in_time = task.done()
        finally:
            await self._stop(task)
        if not in_time:
            _failed(name, method, TimeoutError(f"it took longer than {self._timeout:g} s"))
        elif task.cancelled():  # by the hook itself: a cancellation of this task has left at the await above
            _failed(name, method, asyncio.CancelledError())
        elif error := task.exception():
            _failed(name, method, error)

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
            task.exception()  # marks it as retrieved, or asyncio logs it


async def _await(method: Callable[[Any], Coroutine[Any, Any, None]], event: object) -> None:
    """Awaits in the hook's own task: a method that is not async fails there, as a failure of the hook."""
    try:
        await method(event)
    except SystemExit as error:  # asyncio lets it through, and the process would end
        raise RuntimeError("a hook has raised SystemExit") from error


def _failed(name: str, method: object, error: BaseException) -> None:
    HOOK_FAILURES.labels(name).inc()
    log.error("hook.failed", hook=name, method=getattr(method, "__qualname__", repr(method)), exc_info=error)
