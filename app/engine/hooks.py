"""What the embedding program is told of a turn that runs here. Hooks observe: nothing they do changes a turn."""

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

PATIENCE = 5.0  # seconds that one hook gets for one event
# What a hook that was told to stop gets for it; then it is left to itself.
_FAREWELL = 0.1


@dataclass(frozen=True, slots=True)
class BeforeTool:
    """`turn` is the turn as it was then, as in every event. `input` is the JSON text that the tool gets: another one
    than the call's, where whoever approved it has changed it.
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
    """To be derived from; each method is there to be overridden."""

    async def before_tool(self, event: BeforeTool) -> None:
        """A call is about to run."""

    async def after_tool(self, event: AfterTool) -> None:
        """The outcome of a call that ran here is stored."""

    async def after_round(self, event: AfterRound) -> None:
        """A reply of the model is complete and stored; the tools it asked for come next."""

    async def turn_ended(self, event: TurnEnded) -> None:
        """The end of a turn that ran here is stored, and its readers know of it."""


class HookRunner:
    """All hooks, told one after the other. No failure of theirs gets past it, and none takes longer than `patience`."""

    def __init__(self, hooks: Sequence[Hooks] = (), patience: float = PATIENCE) -> None:
        self._hooks = hooks
        self._patience = patience
        self._abandoned: set[asyncio.Task[None]] = set()

    async def before_tool(self, event: BeforeTool) -> None:
        await self._tell("before_tool", event)

    async def after_tool(self, event: AfterTool) -> None:
        await self._tell("after_tool", event)

    async def after_round(self, event: AfterRound) -> None:
        await self._tell("after_round", event)

    async def turn_ended(self, event: TurnEnded) -> None:
        await self._tell("turn_ended", event)

    async def _tell(self, name: str, event: object) -> None:
        for hook in self._hooks:
            if getattr(type(hook), name) is not getattr(Hooks, name):
                await self._call(getattr(hook, name), name, event)

    async def _call(self, method: Callable[[Any], Coroutine[Any, Any, None]], name: str, event: object) -> None:
        task = asyncio.create_task(_await(method, event), name=f"hook {name}")
        try:
            await asyncio.wait({task}, timeout=self._patience)
            in_time = task.done()
        finally:
            await self._stop(task)
        if not in_time:
            _failed(name, method, TimeoutError(f"it took longer than {self._patience:g} s"))
        elif task.cancelled():  # by the hook itself: a cancellation of ours has left through the await above
            _failed(name, method, asyncio.CancelledError())
        elif error := task.exception():
            _failed(name, method, error)

    async def _stop(self, task: asyncio.Task[None]) -> None:
        if task.done():
            return
        self._abandoned.add(task)
        task.add_done_callback(self._forget)
        task.cancel()
        await asyncio.wait({task}, timeout=_FAREWELL)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._abandoned.discard(task)
        if not task.cancelled():
            task.exception()  # it counts as seen


async def _await(method: Callable[[Any], Coroutine[Any, Any, None]], event: object) -> None:
    """A method that is not async fails here, where it is the hook's failure."""
    try:
        await method(event)
    except SystemExit as error:  # it would end the process
        raise RuntimeError("a hook wants to end the process") from error


def _failed(name: str, method: object, error: BaseException) -> None:
    HOOK_FAILURES.labels(name).inc()
    log.error("hook.failed", hook=name, method=getattr(method, "__qualname__", repr(method)), exc_info=error)
