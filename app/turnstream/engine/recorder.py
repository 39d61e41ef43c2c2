"""The recorder of one run: the only writer of its turn. The row is written first, then the live view changes."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce, wraps
from time import monotonic, perf_counter
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, cast

from msgspec.json import encode as to_json

from turnstream.domain.activity import Stage
from turnstream.domain.asks import QUESTIONS, Ask, Steer
from turnstream.domain.blocks import ACCEPTED, REJECTED, Block, CallState, PreliminaryOutput
from turnstream.domain.errors import ClaimLost, StatementRefused
from turnstream.domain.events import BlockStart, Notice, preliminary_notice, progress_notice
from turnstream.domain.jobs import Job
from turnstream.domain.kinds import REPORT, TOOL_RESULT, USER_TEXT, VERDICT
from turnstream.domain.results import summary_notes
from turnstream.domain.rounds import Round, add_usage
from turnstream.domain.steps import VOIDED
from turnstream.domain.turns import Status, Turn, TurnError, check_transition
from turnstream.kit.clock import CLOCK
from turnstream.storage.runs.record import NewJob, Records, SettledCall
from turnstream.stream.live import LiveView
from turnstream.telemetry import PERSIST_SECONDS
from turnstream.tools.tool import Outcome

P = ParamSpec("P")
T = TypeVar("T")


async def to_the_end(work: Coroutine[Any, Any, T] | asyncio.Task[T]) -> T:
    """Runs `work` to its end even if the caller is cancelled; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled():
            # Marks the exception as retrieved, or asyncio logs it. After a failed write, the next write fails, too.
            task.exception()
        raise


@dataclass(slots=True, eq=False)
class Settlement:
    """The outcome of a call, to be stored. `failure` is the reason why it was not stored."""

    call: Block
    outcome: Outcome
    state: CallState = "settled"
    failure: Exception | None = None


Write = Callable[Concatenate["Recorder", P], Coroutine[Any, Any, T]]


def _write(method: Write[P, T]) -> Write[P, T]:
    """Turns a method into a write: it is timed, waits for other writes, and is never cancelled between row and view."""

    seconds = PERSIST_SECONDS.labels(method.__name__)

    @wraps(method)
    async def write(self: "Recorder", *args: P.args, **kwargs: P.kwargs) -> T:
        async def alone() -> T:
            async with self.lock:
                start = perf_counter()
                result = await method(self, *args, **kwargs)
                seconds.observe(perf_counter() - start)
                return result

        return await to_the_end(alone())

    return cast("Write[P, T]", write)


class Recorder:
    """Writes the turn of `view`. Every write raises ClaimLost once another attempt owns the turn.

    `holds` is true until the turn ends, waits, or returns to the queue because of a new answer or message. From then
    on, `leaves_work` is true if this turn, or a later turn of its chat, is queued.
    """

    def __init__(self, records: Records, view: LiveView) -> None:
        self._records = records
        self.view = view
        self.lock = asyncio.Lock()
        self._ready: list[Settlement] = []
        self.holds = True
        self.leaves_work = False
        self.stage: Stage | None = None
        self.stage_since = monotonic()

    @property
    def turn(self) -> Turn:
        return self.view.turn

    def open_block(self, start: BlockStart) -> None:
        self.view.open_block(start)

    def append(self, text: str) -> None:
        self.view.append(text)

    def notify(self, event: str, **data: Any) -> None:
        self.view.notify(Notice(event, data))

    def notify_stage(self, stage: Literal["processing", "streaming", "executing"]) -> None:
        """Shows readers the current stage of the turn."""
        self.set_stage(stage)
        self.notify("status", stage=stage)

    def set_stage(self, stage: Stage) -> None:
        self.stage, self.stage_since = stage, monotonic()

    def begin_round(self, round: Round) -> None:
        """Shows readers the round. Its row is written with its first blocks, at its end, or by the round writer."""
        self.view.begun, self.view.unreserved = (round,), None
        self.view.begin_round(round)

    @_write
    async def close_blocks(self, blocks: Sequence[Block]) -> None:
        """Closes the open block and the blocks after it (`blocks`) in one commit."""
        await self._records.close_blocks(blocks, self.view.begun)
        self.view.begun = ()
        self.view.close_blocks(blocks)

    @_write
    async def seal_round(
        self,
        round: Round,
        unwritten: Sequence[Block] = (),
        *,
        recoveries: int = 0,
        starting: Sequence[Block] = (),
    ) -> None:
        """Seals the last round. `unwritten` are its last blocks, which have no rows yet. The calls in `starting` are
        entered into the ledger.
        """
        sealed, turn = self._sealed(round, recoveries)
        await self._records.seal_round(sealed, unwritten, turn, starting)
        self._show_sealed(sealed, unwritten, turn)

    @_write
    async def seal_and_end(self, round: Round, unwritten: Sequence[Block], stop_reason: str) -> None:
        """Seals the last round and ends the turn as complete, in one commit."""
        check_transition(self.turn.status, "complete")
        sealed, turn = self._sealed(round, recoveries=0)
        ended = replace(turn, status="complete", stop_reason=stop_reason, error=None)
        ended_at, followed = await self._records.seal_and_end(sealed, unwritten, ended)
        self._show_sealed(sealed, unwritten, turn)
        self._show_end(ended, ended_at, followed)

    @_write
    async def void_round(self, round: Round, *, recoveries: int) -> None:
        """Voids the last round; its usage still counts. The turn continues in a new attempt."""
        voided = replace(round, stop_reason=VOIDED)
        turn = replace(self.turn, usage=self._usage_with(voided), recoveries=recoveries)
        attempt = await self._records.void_round(voided, turn)
        self.view.begun = ()
        self.view.void_round(voided, turn.in_attempt(attempt))

    @_write
    async def start_calls(self, calls: Sequence[Block]) -> None:
        await self._records.start_calls(calls)

    @_write
    async def start_jobs(self, jobs: Sequence[NewJob]) -> None:
        """Turns calls into jobs. The turn waits for the jobs when it has nothing else to do."""
        await self._records.start_jobs(jobs, len(self.turn.asks) + len(self.turn.jobs) + len(jobs))
        started = tuple(Job(job.id, *job.call.key, job.call.name or "", job.kind) for job in jobs)
        self.view.turn = replace(self.turn, jobs=(*self.turn.jobs, *started))
        for job in started:
            self.view.notify(progress_notice(job))

    @_write
    async def start_reports(self, jobs: Sequence[NewJob], *settlements: Settlement) -> None:
        """Turns calls into jobs for which the turn does not wait: each call gets a result at once."""
        first = len(self.turn.blocks)
        results = [self._settled_call(each, first + place).result for place, each in enumerate(settlements)]
        await self._records.start_reports(jobs, results, len(self.turn.asks) + len(self.turn.jobs) + len(jobs))
        started = tuple(Job(job.id, *job.call.key, job.call.name or "", job.kind, reports=True) for job in jobs)
        self.view.turn = replace(self.turn, jobs=(*self.turn.jobs, *started))
        self.view.close_blocks(results)

    @_write
    async def ask(self, asks: Sequence[Ask]) -> None:
        """Stores the asks for calls of the last round."""
        await self._records.ask(asks, len(self.turn.asks) + len(self.turn.jobs) + len(asks))
        self.view.ask(asks)
        self._show_questions(asks)

    @_write
    async def ask_to_sign_in(self, call: Block, ask: Ask) -> None:
        """Stores the ask of a call that waits for a sign-in, and removes the call from the ledger: it may run later."""
        await self._records.ask_to_sign_in(call, ask, len(self.turn.asks) + len(self.turn.jobs) + 1)
        self.view.ask([ask])
        self._show_questions([ask])

    def _show_questions(self, asks: Sequence[Ask]) -> None:
        if any(ask.kind in QUESTIONS for ask in asks):
            self.view.notify_actions()

    async def refresh(self, refreshed: Callable[[Turn], Awaitable[Turn]]) -> None:
        """Copies answers, steers and outcomes of jobs into the view, while this run writes nothing."""
        async with self.lock:
            self.view.turn = await refreshed(self.turn)

    def show_preliminary(self, output: PreliminaryOutput) -> None:
        """Shows readers the preliminary output of a tool, before the output is stored."""
        others = [each for each in self.turn.preliminary if each.key != output.key]
        self.view.turn = replace(self.turn, preliminary=(*others, output))
        self.view.notify(preliminary_notice(output))

    @_write
    async def store_preliminary(self, output: PreliminaryOutput) -> None:
        await self._records.store_preliminary(output)

    async def settle_calls(self, *settlements: Settlement) -> None:
        """Stores the results of calls. Outcomes that are ready together, or arrive during another write, share one
        statement; no outcome waits for a later one.
        """
        self._ready.extend(settlements)
        await to_the_end(self._settle_ready())
        for settlement in settlements:
            if settlement.failure is not None:
                raise settlement.failure

    async def _settle_ready(self) -> None:
        async with self.lock:
            ready, self._ready = self._ready, []
            if ready:
                with PERSIST_SECONDS.labels("settle_calls").time():
                    await self._settle(ready)

    async def _settle(self, ready: Sequence[Settlement]) -> None:
        """Stores the outcomes. The caller that awaits an outcome raises its failure. If Postgres refuses one result,
        the other results are still stored.
        """
        calls = [self._settled_call(each, len(self.turn.blocks) + place) for place, each in enumerate(ready)]
        try:
            await self._records.settle_calls(calls)
        except (ClaimLost, StatementRefused) as failure:
            if len(ready) > 1 and isinstance(failure, StatementRefused):
                for each in ready:
                    await self._settle([each])
            else:
                for each in ready:
                    each.failure = failure
            return
        for settled in calls:
            key = settled.result.key
            running = tuple(each for each in self.turn.preliminary if each.key != key)
            recoveries = 0 if settled.state == "settled" else self.turn.recoveries
            jobs = tuple(replace(job, settled=True, outcome=None) if job.key == key else job for job in self.turn.jobs)
            self.view.turn = replace(self.turn, recoveries=recoveries, preliminary=running, jobs=jobs)
            self.view.close_blocks([settled.result])

    def _settled_call(self, settlement: Settlement, index: int) -> SettledCall:
        call, outcome = settlement.call, settlement.outcome
        result = Block(
            index=index,
            round=call.round,
            attempt=self.turn.attempt,
            type=TOOL_RESULT,
            text=outcome.text,
            data=outcome.layout,
            tool_use_id=call.tool_use_id,
            name=call.name,
            is_error=outcome.is_error,
            notes=to_json(outcome.notes).decode() if outcome.notes else None,
            client_data=None if outcome.data is None else to_json(outcome.data).decode(),
        )
        return SettledCall(result, settlement.state, outcome.whole)

    @_write
    async def record_verdict(self, draft: Block, outcome: Outcome) -> None:
        """Stores the verdict about an output that the model wrote as text."""
        verdict = Block(
            index=len(self.turn.blocks),
            round=draft.round,
            attempt=self.turn.attempt,
            type=VERDICT,
            text=outcome.text,
            data=REJECTED if outcome.is_error else ACCEPTED,
        )
        await self._records.close_blocks([verdict])
        self.view.close_blocks([verdict])

    @_write
    async def apply_steers(self, steers: Sequence[Steer], round: int) -> bool:
        """Turns the steers, and the reports of jobs, into blocks after the results of `round`. Changes nothing and
        returns False if the user has changed a steer since it was read.
        """
        spoken = [(steer, block) for steer in steers for block in steer.blocks]
        first = len(self.turn.blocks)
        blocks = [
            replace(
                block,
                index=first + place,
                round=round,
                attempt=self.turn.attempt,
                type=REPORT if block.type == REPORT else USER_TEXT,
                notes=to_json({**json.loads(block.notes or "{}"), "steer": str(steer.id)}).decode(),
            )
            for place, (steer, block) in enumerate(spoken)
        ]
        if not await self._records.apply_steers(blocks, steers):
            return False
        self.view.close_blocks(blocks)
        taken = {steer.id for steer in steers}
        self.update_turn(replace(self.turn, steers=tuple(steer for steer in self.turn.steers if steer.id not in taken)))
        return True

    @_write
    async def count_hook_failures(self, failures: int) -> None:
        """Adds `failures` to the turn's count of failed hooks. The turn may have ended already."""
        count = self.turn.hook_failures + failures
        await self._records.count_hook_failures(count)
        self.view.turn = replace(self.turn, hook_failures=count)

    def update_turn(self, turn: Turn) -> None:
        """Replaces the turn of the view after a change of its steers."""
        self.view.turn = turn

    @_write
    async def wait(self) -> None:
        """Ends the run. The turn waits until a person acts or a job is settled, and is then claimed again."""
        check_transition(self.turn.status, "waiting")
        status = await self._records.wait(self.turn.arrivals)
        self.holds, self.leaves_work = False, status == "queued"

    @_write
    async def end(self, status: Status, stop_reason: str, error: TurnError | None = None) -> None:
        check_transition(self.turn.status, status)
        usage = self._usage_of(self.turn.rounds)
        turn = replace(self.turn, status=status, stop_reason=stop_reason, error=error, usage=usage)
        self._show_end(turn, *await self._records.end(turn))

    @_write
    async def release(self) -> None:
        """Stores the open block, and returns the turn to the queue."""
        check_transition(self.turn.status, "queued")
        await self._records.release(self.view.block_being_written(), self.view.begun)

    def _sealed(self, round: Round, recoveries: int) -> tuple[Round, Turn]:
        """Returns the sealed round, and the turn with updated totals."""
        sealed = replace(round, sealed_by=self.turn.attempt, sealed_at=CLOCK.now())
        return sealed, replace(self.turn, usage=self._usage_with(sealed), recoveries=recoveries)

    def _show_sealed(self, sealed: Round, unwritten: Sequence[Block], turn: Turn) -> None:
        self.view.begun = ()
        if unwritten:
            self.view.close_blocks(unwritten)
        self.view.seal_round(sealed, turn)

    def _show_end(self, turn: Turn, ended_at: datetime | None, followed: bool) -> None:
        """Shows readers the end of the turn. Without `ended_at`, the turn has not ended, but is in the queue again."""
        self.holds, self.leaves_work = False, followed or ended_at is None
        if ended_at is not None:
            self.view.end(replace(turn, rounds=self.turn.rounds, blocks=self.turn.blocks, ended_at=ended_at))

    def _usage_with(self, last: Round) -> dict[str, Any]:
        return self._usage_of([*self.turn.rounds[:-1], last])

    def _usage_of(self, rounds: Sequence[Round]) -> dict[str, Any]:
        """Returns the sum of the usage of all model calls: of the rounds, and of the calls that summarised results."""
        summaries = (note["usage"] for note in summary_notes(self.turn.blocks))
        return reduce(add_usage, (*(round.usage for round in rounds), *summaries), {})
