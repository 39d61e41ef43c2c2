"""One run of a claimed turn: loaded, composed of its parts, and executed until it ends or is stopped."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, assert_never
from uuid import UUID

import structlog

from turnstream.domain.activity import Activity
from turnstream.domain.blocks import CallKey
from turnstream.domain.errors import MODEL_NOT_AVAILABLE, ClaimLost, PermanentError, RequestRefused
from turnstream.domain.history import without_withdrawn
from turnstream.domain.plans import Plans
from turnstream.domain.turns import Status, Turn, TurnError, TurnRequest
from turnstream.engine.call_policies import CallPolicy
from turnstream.engine.executor import Executor
from turnstream.engine.hooks import HookRunner, TurnEnded
from turnstream.engine.metrics import count_ended_turn
from turnstream.engine.model_route import ModelAccess
from turnstream.engine.recorder import Recorder, to_the_end
from turnstream.engine.spending import Spending
from turnstream.engine.text_checks import NO_CHECKS, TextChecks
from turnstream.engine.tool_runs import ToolRuns
from turnstream.engine.turn_context import TurnContext
from turnstream.engine.warm_paths import WarmPaths
from turnstream.kit.clock import CLOCK
from turnstream.llm.conversation.messages import KnownEntries
from turnstream.storage.chats.grants import Grants
from turnstream.storage.chats.reports import Reports
from turnstream.storage.chats.turns import Turns
from turnstream.storage.database import Database, retry_while_unavailable
from turnstream.storage.owners.accounts import Accounts
from turnstream.storage.owners.charges import Charges
from turnstream.storage.owners.uploads import Uploads
from turnstream.storage.runs.journal import OpenTexts
from turnstream.storage.runs.record import Records
from turnstream.stream.directory import Directory
from turnstream.stream.live import LiveView
from turnstream.tools.toolset import Toolset
from turnstream.tracing import TRACING, Span, trace_id

log = structlog.get_logger(__name__)

_INTERNAL = TurnError("internal_error", "The server failed while it ran this turn; its log says more.")

# Why a run stops: the turn is cancelled, this replica returns the turn to the queue, or another run has the claim.
StopCause = Literal["cancel", "release", "lost"]


@dataclass(frozen=True, slots=True)
class RunServices:
    """The parts of the replica that every run uses. `replica` is the id in the rows of claimed turns. `notify_owner`
    wakes the readers of an owner's feed. `decline` puts a turn back into the queue for others, and returns whether it
    did.
    """

    database: Database
    replica: UUID
    directory: Directory
    toolset: Toolset
    models: ModelAccess
    hooks: HookRunner
    accounts: Accounts
    plans: Plans
    notify_owner: Callable[[str], None]
    decline: Callable[[Turn], Awaitable[bool]]
    warm_paths: WarmPaths
    checks: TextChecks = NO_CHECKS
    call_policies: Sequence[CallPolicy] = ()


class TurnRun:
    """A turn that runs in this process. `task` is the task of `execute`, set by the caller that creates it. `updated`
    is set when a user adds an answer or a message to the rows while the turn runs.
    """

    task: asyncio.Task[None]

    def __init__(self, turn: UUID, services: RunServices, loaded: tuple[str, Sequence[Turn]] | None = None) -> None:
        """`loaded` has the owner and the last turns of the path. If `loaded` is None, both are read from the rows."""
        self.turn = turn
        self.owner: str | None = None  # set when the rows of the turn are read
        self.updated = asyncio.Event()
        self.stop_cause: StopCause | None = None
        self._services = services
        self._started = False
        self._loaded = loaded
        self._context: TurnContext | None = None
        self._executor: Executor | None = None

    def activity(self) -> Activity | None:
        """Returns the state of the turn in memory; None until the rows of the turn are read."""
        view = self._services.directory.running(self.turn)
        return None if self._executor is None or view is None else self._executor.activity(view.wakeup.waiters)

    def stop(self, cause: StopCause) -> None:
        """Stops the run. The first cause is kept. A run that is still loading its rows stops after the load."""
        if self.stop_cause is None:
            self.stop_cause = cause
            if self._started:
                self.task.cancel()

    async def execute(self) -> bool:
        """Runs the turn until it ends, waits, or returns to the queue. Returns whether this turn, or a later turn of
        its chat, is queued. Raises ClaimLost.
        """
        services = self._services
        turns = Turns(services.database)
        self.owner, path, entries = await self._load_path(turns)
        owner, turn = self.owner, path[-1]
        structlog.contextvars.bind_contextvars(chat=str(turn.chat_id), attempt=turn.attempt)
        # A turn that this process has inserted was checked before the insert.
        if self._loaded is None and (reason := self._lacks(turn)) and await services.decline(turn):
            log.warning("turn.declined", reason=reason)
            return False
        view = LiveView(turn)
        started_before = await retry_while_unavailable(lambda: self._load_leftovers(turns, view))
        assert turn.request is not None
        plan = services.plans.of(owner, turn.request.plan)
        with services.directory.host(view, owner), _span_of(turn, turn.request) as span:
            storage = services.database
            recorder = Recorder(Records(storage, services.replica, lambda: view.turn), view)
            context = self._context = TurnContext(
                owner=owner,
                ancestors=without_withdrawn(path[:-1]),
                entries=entries,
                recorder=recorder,
                hooks=services.hooks,
                turns=turns,
                uploads=Uploads(storage),
                grants=Grants(storage),
                reports=Reports(storage),
                call_policies=services.call_policies,
                charges=Charges(storage),
                spending=Spending(services.accounts, owner, plan, turn.attempt),
                updated=self.updated,
                notify_owner=services.notify_owner,
                span=span,
                secrets=services.toolset.secrets,
                checks=services.checks.of(owner, plan.name),
            )
            tool_runs = ToolRuns(context, services.toolset, services.models, started_before)
            executor = self._executor = Executor(context, tool_runs, services.models)
            log.info("turn.claimed", model=turn.request.model, recoveries=turn.recoveries)
            if turn.has_run_before:  # for the first attempt, the POST has notified the readers
                services.notify_owner(owner)
            try:
                await self._carry_out(executor, recorder)
            except ClaimLost:
                if await retry_while_unavailable(lambda: turns.exists(turn.id)):
                    raise
                log.info("turn.deleted")
                await executor.charge_open_round()
                view.vanish()
                return False
            finally:
                if context.spending.holds_for(recorder.turn):
                    await to_the_end(context.spending.close(recorder.turn))
            services.notify_owner(owner)
            span.set(turnstream__status=view.turn.status)
            if view.turn.error is not None:
                span.failed(view.turn.error.type)
            if view.turn.ended:
                count_ended_turn(view.turn, tool_runs.first_started)
                services.warm_paths.keep((*path[:-1], view.turn), entries)
        return recorder.leaves_work

    def _lacks(self, turn: Turn) -> str | None:
        """Returns the parts that the turn needs and this replica lacks. A turn that is only cancelled needs no part."""
        request = turn.request
        if request is None or turn.cancel_requested or self.stop_cause is not None:
            return None
        try:
            self._services.models.provider_for(request.model)
            if request.output is not None:
                self._services.toolset.outputs.find(request.output)
        except PermanentError as error:
            return error.message if error.type == MODEL_NOT_AVAILABLE else None
        except RequestRefused as error:
            return error.detail
        lacking = self._services.toolset.lacking(request.tools)
        return f"there are no such tools: {', '.join(lacking)}" if lacking else None

    async def _load_path(self, turns: Turns) -> tuple[str, Sequence[Turn], KnownEntries]:
        """Returns the owner of the turn, its path, and the known messages. The turns before it may be in memory."""
        if self._loaded is not None:
            owner, path = self._loaded
        else:
            owner, path = await retry_while_unavailable(lambda: turns.claimed(self.turn, self._services.replica))
        leaf = path[0].parent_id
        if leaf is None:
            return owner, path, KnownEntries()
        if warm := self._services.warm_paths.find(leaf):
            return owner, (*warm.turns, *path), warm.entries
        before = await retry_while_unavailable(lambda: turns.path_to(leaf))
        if not before:
            raise ClaimLost(f"turn {self.turn} was deleted, with all turns from {leaf} on")
        return owner, (*before, *path), KnownEntries()

    async def call_hooks(self) -> None:
        """Calls the hooks for the end of the turn, if the turn ended in this run."""
        context = self._context
        if context is not None and context.recorder.turn.ended and context.hooks.want(TurnEnded):
            await to_the_end(context.call_hooks(TurnEnded(context.owner, context.recorder.turn)))

    async def _load_leftovers(self, turns: Turns, view: LiveView) -> frozenset[CallKey]:
        """Loads the state of earlier attempts: the view gets the open text from the journal. Returns the started calls
        that have no outcome.
        """
        if not view.turn.rounds:
            return frozenset()
        view.adopt(view.turn, await OpenTexts(self._services.database).open_block(view.turn))
        return await turns.started_calls(view.turn.id)

    async def _carry_out(self, executor: Executor, recorder: Recorder) -> None:
        if recorder.turn.cancel_requested or recorder.turn.is_abandoned:
            self.stop_cause = "cancel"
        try:
            # There is no await between this check and `_started`, so a later cause cancels the task.
            if self.stop_cause is None:
                self._started = True
                try:
                    await executor.run()
                finally:
                    self._started = False  # a later cause must not interrupt the next steps
        except asyncio.CancelledError:
            if self.stop_cause is None:
                raise
            # The handled cancellation must not interrupt the next steps.
            self.task.uncancel()
        except (ClaimLost, MemoryError):
            raise
        except Exception:
            log.exception("turn.failed")
            await to_the_end(_end(executor, "error", _INTERNAL))
        if self.stop_cause is not None and recorder.holds:
            await to_the_end(_stop(self.stop_cause, executor, recorder))


@contextmanager
def _span_of(turn: Turn, request: TurnRequest) -> Iterator[Span]:
    """Encloses a run in its span. The first child of the span is the time in the queue."""
    if TRACING.on:
        structlog.contextvars.bind_contextvars(trace=trace_id(request.trace))
    with TRACING.span(
        "invoke_agent turnstream",
        "CONSUMER",
        parent=request.trace,
        # A killed replica never sent its span, so a later run links to the request that created the turn.
        link=request.trace if turn.has_run_before else None,
        gen_ai__operation__name="invoke_agent",
        gen_ai__agent__name="turnstream",
        gen_ai__conversation__id=str(turn.chat_id),
        gen_ai__request__model=request.model,
        turnstream__turn=str(turn.id),
        turnstream__attempt=turn.attempt,
        turnstream__recoveries=turn.recoveries,
    ) as span:
        if not turn.has_run_before and turn.created_at is not None:
            TRACING.past("queue", (CLOCK.now() - turn.created_at).total_seconds())
        yield span


async def _stop(cause: StopCause, executor: Executor, recorder: Recorder) -> None:
    match cause:
        case "cancel":
            await _end(executor, "cancelled", stop_reason=recorder.turn.stop_reason)  # set for a withdrawn turn
        case "release":
            await recorder.release()
        case "lost":
            raise ClaimLost("this replica has claimed the turn again")
        case _:
            assert_never(cause)


async def _end(
    executor: Executor, status: Status, error: TurnError | None = None, *, stop_reason: str | None = None
) -> None:
    try:
        await executor.cut_short(status, stop_reason or status, error)
    except ClaimLost:
        raise
    except Exception:  # if Postgres refuses the write, the turn ends without that block
        log.exception("turn.not_tidied")
        await executor.cut_short(status, stop_reason or status, error, keep=False)
