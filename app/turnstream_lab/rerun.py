"""Runs an ended turn again in the real engine, with recorded answers from the model and stored tool results."""

import asyncio
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from uuid import UUID

import httpx2
from pydantic_core import from_json

from turnstream.domain.blocks import CUT_SHORT, REJECTED, Block
from turnstream.domain.kinds import TEXT, TOOL_RESULT, USER_TEXT, VERDICT
from turnstream.domain.turns import OutputSpec, ToolRole, ToolSpec, Turn
from turnstream.engine.frame_clock import FrameClock
from turnstream.engine.worker import Worker, WorkerPolicy
from turnstream.kit.ids import new_id
from turnstream.llm.interceptor import Interceptor, Send
from turnstream.llm.models.catalog import Models
from turnstream.storage.chats.turns import Turns
from turnstream.storage.database import Database
from turnstream.storage.runs.queue import Queue
from turnstream.stream.directory import Directory
from turnstream.tools.outputs import Outputs, as_call
from turnstream.tools.policy import Policy
from turnstream.tools.tool import Outcome, ToolContext
from turnstream.tools.toolset import Toolset
from turnstream_lab.filtering import current_call
from turnstream_lab.recording import Recording
from turnstream_lab.replay import ReplayInterceptor
from turnstream_lab.transfer import answer_as_recorded, copy_path, steer_as_recorded

_LOOK = 0.02  # seconds
# The stall timeout of a rerun. It is short, because only a recorded silence takes time.
_STALL = 1.0
_LEASE = 86_400.0
OpenModels = Callable[[Sequence[Interceptor]], AbstractAsyncContextManager[Models]]

_NOT_MADE = Outcome("This call was not made when the turn was recorded.", is_error=True)


@dataclass(frozen=True, slots=True)
class Rerun:
    """`turn` is the result of this run; `requests` are the bodies of its model calls."""

    turn: Turn
    requests: Sequence[bytes]


async def rerun(
    source: Database,
    target: Database,
    owner: str,
    then: Turn,
    recordings: Sequence[Recording],
    *,
    open_models: OpenModels,
    policy: WorkerPolicy,
    speed: float = 0.0,
) -> Rerun:
    """Runs the turn `then` again in the database `target`, and only reads from `source`. No server is called, and no
    tool runs.

    `open_models` opens the models, with interceptors in place of the network.
    """
    await copy_path(source, target, owner, then)
    replay = ReplayInterceptor(recordings, speed=speed)
    steering, results = _SteerInterceptor(target, then), _Results(then, replay.over)
    # The short timeout is only for a recorded silence. Otherwise a pause of a busy machine would count as a stall.
    is_silent = any(recording.ending == "closed" for recording in recordings)
    stall = _STALL if is_silent and not speed else policy.model.stall_timeout
    async with (
        open_models([replay, steering]) as models,
        _worker(policy, target, models, _RecordedToolset(results), stall) as worker,
    ):
        steering.refresh = worker.refresh
        stopping = asyncio.create_task(_stop_as_then(worker, target, owner, then, replay.over))
        try:
            turn = await _ended(worker, target, owner, then)
        finally:
            stopping.cancel()
            with suppress(asyncio.CancelledError):
                await stopping
    return Rerun(turn, replay.requests)


@asynccontextmanager
async def _worker(
    policy: WorkerPolicy, database: Database, models: Models, toolset: Toolset, stall: float
) -> AsyncIterator[Worker]:
    quick = replace(policy.model.retries, waits=False)
    model = replace(
        policy.model,
        retries=quick,
        stall_timeout=stall,
        fallbacks=models.fallbacks,
        fitting=models.fitting,
        breaker=None,
    )
    policy = replace(policy, grace_period=0.0, declines=False, model=model)
    queue = Queue(database, new_id(), "replay", secrets.randbits(62))
    await queue.renew_lease(_LEASE)
    worker = Worker(database, queue, Directory(), models.provider_for, toolset, policy, FrameClock())
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await queue.leave()


async def _ended(worker: Worker, database: Database, owner: str, then: Turn) -> Turn:
    """Returns the turn when it has ended, or when it waits for an answer that the original turn did not get either."""
    while True:
        worker.wake()
        turn = await Turns(database).get(owner, then.chat_id, then.id)
        if turn.ended or (turn.status == "waiting" and not await answer_as_recorded(database, then)):
            return turn
        await asyncio.sleep(_LOOK)


async def _stop_as_then(worker: Worker, database: Database, owner: str, then: Turn, over: asyncio.Event) -> None:
    await over.wait()
    if then.status != "cancelled":
        return
    turns, cut = Turns(database), next((block.index for block in then.blocks if _was_cut_short(block)), 0)
    with suppress(TimeoutError):
        async with asyncio.timeout(_STALL):
            # Waits until the rows have the blocks that the original had before its first interrupted result: some of
            # several tools may have finished.
            while len((await turns.get(owner, then.chat_id, then.id)).blocks) < cut:  # noqa: ASYNC110, nothing notifies here
                await asyncio.sleep(_LOOK)
    await turns.cancel(owner, then.chat_id, then.id)
    await worker.cancel(then.id)


class _SteerInterceptor(Interceptor):
    """Steers the turn during the same rounds as in the original turn."""

    def __init__(self, database: Database, then: Turn) -> None:
        self.refresh: Callable[[UUID], Awaitable[None]] | None = None
        self._database = database
        self._turn = then.id
        self._steers: defaultdict[int, list[Block]] = defaultdict(list)
        for block in then.blocks:
            if block.type == USER_TEXT:
                self._steers[block.round].append(Block(0, 0, 0, TEXT, block.text))

    async def __call__(self, request: httpx2.Request, send: Send) -> httpx2.Response:
        call = current_call()
        while call and (steers := self._steers[call.round]):
            await steer_as_recorded(self._database, self._turn, steers[:1])
            steers.pop(0)  # only now: if the stall timeout cancels this call, the next call steers
            if self.refresh is not None:
                await self.refresh(self._turn)
        return await send(request)


class _RecordedToolset(Toolset):
    """Returns the stored result of each call, whether it came from a tool, a person or a client."""

    def __init__(self, results: "_Results") -> None:
        self._results = results
        super().__init__((), outputs=_RecordedOutputs(recorded=results))

    def policy(self, name: str, offered: Sequence[ToolSpec] | None = None) -> Policy:  # noqa: ARG002
        return Policy()

    def needs_approval(self, name: str, input_json: str, offered: Sequence[ToolSpec] | None = None) -> bool:  # noqa: ARG002
        return False

    def fitted(self, name: str, outcome: Outcome, tool_use_id: str, offered: Sequence[ToolSpec]) -> Outcome:  # noqa: ARG002
        return self._results.next(tool_use_id)

    async def run(
        self,
        name: str,  # noqa: ARG002
        input_json: str,  # noqa: ARG002
        context: ToolContext,
        *,
        offered: Sequence[ToolSpec] | None = None,  # noqa: ARG002
    ) -> Outcome:
        return await self._results.wait_for(context.tool_use_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RecordedOutputs(Outputs):
    recorded: "_Results"

    async def settle(self, role: ToolRole, spec: OutputSpec, draft: str | None, context: ToolContext) -> Outcome:  # noqa: ARG002
        return await self.recorded.wait_for(context.tool_use_id)


class _Results:
    """The stored results by call, in the order of rounds, because ids may be repeated. A call that a
    cancellation interrupted has no result: it sets `over`, which cancels the turn, and waits.
    """

    def __init__(self, then: Turn, over: asyncio.Event) -> None:
        self._over = over
        self._cancelled = then.status == "cancelled"
        found: defaultdict[str, list[Outcome]] = defaultdict(list)
        for block in then.blocks:
            if block.type == TOOL_RESULT and not (self._cancelled and _was_cut_short(block)):
                data = from_json(block.client_data or "null")
                outcome = Outcome(block.text, block.is_error, layout=block.data, data=data)
                found[block.tool_use_id or ""].append(outcome)
            elif block.type == VERDICT:
                found[as_call(block).tool_use_id or ""].append(Outcome(block.text, block.data == REJECTED))
        self._by_call = {id: iter(outcomes) for id, outcomes in found.items()}

    async def wait_for(self, tool_use_id: str) -> Outcome:
        outcome = self.next(tool_use_id)
        if outcome is _NOT_MADE and self._cancelled:
            self._over.set()
            await asyncio.Event().wait()
        return outcome

    def next(self, tool_use_id: str) -> Outcome:
        """Returns the next result. A call that the original did not make gets an error, which differs in the blocks."""
        return next(self._by_call.get(tool_use_id, iter(())), _NOT_MADE)


def _was_cut_short(block: Block) -> bool:
    return block.type == TOOL_RESULT and block.text == CUT_SHORT.format("cancelled")
