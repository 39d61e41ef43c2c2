"""Runs one turn: asks the rows what comes next, does it, and asks again."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import assert_never

import structlog

from app.domain.blocks import CUT_SHORT, Block
from app.domain.compaction import halfway_to
from app.domain.errors import PermanentError, ProviderError, TooLong, TransientError
from app.domain.events import RoundStart
from app.domain.history import COMPACTED
from app.domain.rounds import Round
from app.domain.steps import (
    INTERRUPTED,
    ApplySteers,
    AwaitClient,
    CallModel,
    Compact,
    Fail,
    Finish,
    JudgeOutput,
    RunTools,
    Shorten,
    Step,
    compaction_step,
    next_step,
    open_round_number,
    settle,
    unanswered_calls,
)
from app.domain.turns import Status, Turn, TurnError, TurnRequest
from app.engine.calls import Calls
from app.engine.counting import TokenCounter, count_usage
from app.engine.frame_clock import FrameClock
from app.engine.hooks import AfterRound, HookRunner
from app.engine.patience import StallTimeout
from app.engine.recorder import Recorder
from app.engine.reply import Reply
from app.engine.requests import Asking, Requests, Rows
from app.engine.retries import Retries, RetryPolicy
from app.llm.conversation.summaries import as_summary
from app.llm.provider import ModelRequest, Provider
from app.telemetry import PROVIDER_RETRIES
from app.tools.tool import Outcome

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ModelPolicy:
    """How model calls are made. `stall_timeout` is in seconds; `fallbacks` of a model are tried when it is down."""

    retries: RetryPolicy = field(default_factory=RetryPolicy)
    stall_timeout: float = 120.0
    fallbacks: Callable[[str], Sequence[str]] = lambda _: ()


class Executor:
    """One claimed turn. `ancestors` is its path without itself; the turn itself is what `recorder` holds. Whoever sets
    `news` has something to say to the turn, which is in its `rows`.
    """

    def __init__(
        self,
        recorder: Recorder,
        ancestors: Sequence[Turn],
        provider_for: Callable[[str], Provider],
        calls: Calls,
        observers: HookRunner,
        owner: str,
        policy: ModelPolicy,
        clock: FrameClock,
        news: asyncio.Event,
        rows: Rows,
    ) -> None:
        self._news = news
        self._rows = rows
        self._requests = Requests(ancestors, rows)
        self._counting = TokenCounter(ancestors, self._requests)
        self._recorder = recorder
        self._ancestors = ancestors
        self._provider_for = provider_for
        self._calls = calls
        self._observers = observers
        self._owner = owner
        self._policy = policy
        self._clock = clock
        self._retries = Retries(policy.retries)
        self._reply: Reply | None = None
        self._model = self.request.model
        self._fallbacks = list(policy.fallbacks(self._model))

    @property
    def turn(self) -> Turn:
        return self._recorder.turn

    @property
    def request(self) -> TurnRequest:
        assert self.turn.request is not None
        return self.turn.request

    async def run(self) -> None:
        """Until the turn has ended or waits for a person. Raises ClaimLost; any other failure ends the turn."""
        try:
            await self._take_up()
            while self._recorder.holds:
                await self._catch_up()
                await self._do(await self._next())
        except ProviderError as error:
            await self.stop("error", "error", TurnError(error.type, error.message, error.request_id))
        finally:
            await self._calls.close()

    async def _next(self) -> Step:
        step = next_step(self.turn, self._ancestors)
        if not isinstance(step, CallModel | Shorten | Compact):
            return step
        tokens = await self._counting.tokens(self.turn, self._model, self._provider_for(self._model))
        return step if tokens is None else next_step(self.turn, self._ancestors, tokens)

    async def _do(self, step: Step) -> None:
        match step:
            case CallModel():
                await self._call_model(step)
            case Shorten(block):
                log.info("conversation.shortened", note=block.text)
                await self._recorder.close_block(block)
            case Compact():
                await self._compact(step)
            case RunTools(calls, refusal):
                self._recorder.notify_stage("executing")
                await self._calls.answer(calls, refusal)
            case JudgeOutput(draft):
                self._recorder.notify_stage("executing")
                await self._calls.judge(draft)
            case AwaitClient():
                await self._recorder.wait()
            case ApplySteers(steers):
                await self._recorder.apply_steers(steers, open_round_number(self.turn) - 1)
            case Finish(stop_reason):
                await self._recorder.end("complete", stop_reason)
            case Fail(type, message):
                await self._recorder.end("error", type, TurnError(type, message))
            case _:
                assert_never(step)

    async def _catch_up(self) -> None:
        """With what somebody said since, where a doorbell told of it. Without one it is seen at the end."""
        if self._news.is_set():
            self._news.clear()
            self._recorder.update_turn(await self._rows.refreshed(self.turn))

    async def stop(
        self, status: Status, stop_reason: str, error: TurnError | None = None, *, keep: bool = True
    ) -> None:
        """Ends the turn where it is, and every call gets a result. What was being written stays, interrupted; without
        `keep`, or where rows and readers' pictures do not agree on it, it is taken back.
        """
        await self._calls.close()
        if (round := self._unsealed()) is not None:
            left_open = self._left_open()
            if keep and self._follow(left_open):
                await self._seal(stop_reason, left_open, recoveries=self.turn.recoveries)
            else:
                await self._recorder.void_round(self._told(round, ""), recoveries=self.turn.recoveries)
        for call in unanswered_calls(self.turn.blocks):
            await self._recorder.settle_call(call, Outcome(CUT_SHORT.format(stop_reason), is_error=True))
        if self.turn.steers:
            await self._recorder.apply_steers(self.turn.steers, open_round_number(self.turn) - 1)
        await self._recorder.end(status, stop_reason, error)
        if round is not None and self.turn.rounds[-1].sealed:
            await self._tell_of_round()

    # --- one model call ----------------------------------------------------------------------------------------------

    async def _call_model(self, step: CallModel) -> None:
        try:
            await self._try_round(step)
        except TooLong:
            await self._take_back()
            relief = compaction_step(step.round, [*self._ancestors, self.turn], forced=True)
            if relief is None:
                raise
            await self._do(relief)

    async def _compact(self, step: Compact) -> None:
        """Has the turns to `step.through` summarised; fewer of them where they are too many to be read at once."""
        try:
            await self._try_round(step)
        except TooLong:
            await self._take_back()
            through = halfway_to([*self._ancestors, self.turn], step.through)
            if through is None:
                raise
            await self._compact(replace(step, through=through))

    async def _try_round(self, step: Asking) -> None:
        try:
            await self._stream_round(step)
        except TransientError as error:
            await self._after_failure(error)
        else:
            self._retries.reset()

    async def _stream_round(self, step: Asking) -> None:
        request = await self._requests.build(self.turn, step, self._model)
        with_tools = isinstance(step, CallModel) and step.tools
        reply = self._reply = Reply(
            self._recorder, self._clock, request, self._calls.start_early if with_tools else None
        )
        try:
            await self._hear(reply, request, step)
        except TransientError:
            if isinstance(step, Compact) or not reply.is_whole:
                raise  # else it happened after the end of a reply, and takes nothing back
        if self._unsealed() is None or not reply.is_whole:
            raise TransientError("incomplete_stream", "the provider's stream ended before the message did")
        await self._seal(COMPACTED if isinstance(step, Compact) else reply.stop_reason, self._left_open(), recoveries=0)
        if isinstance(step, Compact):
            log.info("conversation.compacted", through=str(step.through))
        await self._tell_of_round()

    async def _hear(self, reply: Reply, request: ModelRequest, step: Asking) -> None:
        self._recorder.notify_stage("processing")
        provider = self._provider_for(self._model)
        async with StallTimeout(self._policy.stall_timeout) as patience, aclosing(provider.stream(request)) as stream:
            await reply.consume(as_summary(stream, step.through) if isinstance(step, Compact) else stream, patience)

    # --- what becomes of a round -------------------------------------------------------------------------------------

    def _unsealed(self) -> Round | None:
        rounds = self.turn.rounds
        return rounds[-1] if rounds and not rounds[-1].sealed and not rounds[-1].voided else None

    def _told(self, round: Round, stop_reason: str) -> Round:
        """The round with what the reply told so far. After a crash there is no reply: the row says what is known."""
        reply, self._reply = self._reply, None
        return replace(round, stop_reason=stop_reason) if reply is None else reply.told(round, stop_reason)

    async def _seal(self, stop_reason: str, left_open: Sequence[Block], *, recoveries: int) -> None:
        round = self._unsealed()
        assert round is not None
        sealed = self._told(round, stop_reason)
        await self._recorder.seal_round(sealed, left_open, recoveries=recoveries)
        count_usage(sealed)
        log.info("round.sealed", stop_reason=stop_reason, blocks=len(self.turn.blocks))

    async def _tell_of_round(self) -> None:
        await self._observers.after_round(AfterRound(self._owner, self.turn, self.turn.rounds[-1]))

    async def _take_up(self) -> None:
        """What an earlier attempt left: perhaps a round that was never sealed, perhaps one failure too many."""
        crash = TransientError("interrupted", "the server stopped while the answer was being written")
        if self.turn.recoveries > self.request.limits.max_recoveries:
            raise PermanentError(crash.type, f"{crash.message}, too often without progress")
        if self._unsealed() is not None:
            await self._settle(crash, charge=False)

    async def _after_failure(self, error: TransientError) -> None:
        PROVIDER_RETRIES.labels(error.type).inc()
        shown = self._has_output()
        if self._unsealed() is not None:
            await self._settle(error, charge=shown)
        try:
            delay = self._retries.delay(error, charged=not shown)
        except PermanentError:
            if not self._fallbacks:
                raise
            delay = 0.0
            self._fall_back(error)
        log.warning("provider.retry", error=error.type, message=error.message, seconds=round(delay, 3))
        self._recorder.notify("retry", error=error.type, seconds=round(delay, 3))
        await asyncio.sleep(delay)

    def _fall_back(self, error: TransientError) -> None:
        """The rest of this run is another model's; a later run tries the first again."""
        log.warning("model.fallback", model=self._model, fallback=self._fallbacks[0], error=error.type)
        self._model = self._fallbacks.pop(0)
        self._retries.reset()

    async def _settle(self, error: ProviderError, *, charge: bool) -> None:
        """The one rule for an interrupted round, whoever interrupted it. A crash was charged when the lease lapsed."""
        round = self._unsealed()
        assert round is not None
        recoveries = self.turn.recoveries + charge
        what = settle(self.turn, self._recorder.view.block_being_written(), recoveries)
        log.info("round.interrupted", settled=what, error=error.type)
        match what:
            case "seal" | "keep":
                await self._seal(INTERRUPTED, self._left_open(), recoveries=recoveries)
                await self._tell_of_round()
            case "void":
                await self._take_back(recoveries)
            case "give_up":
                raise PermanentError(error.type, f"{error.message}; given up after too many interruptions")
            case _:
                assert_never(what)

    async def _take_back(self, recoveries: int = 0) -> None:
        """The unsealed round, if there is one, never was."""
        if (round := self._unsealed()) is not None:
            await self._calls.close()
            await self._recorder.void_round(self._told(round, ""), recoveries=recoveries)
            structlog.contextvars.bind_contextvars(attempt=self.turn.attempt)

    def _left_open(self) -> list[Block]:
        """The blocks that no row holds yet: from the reply, or after a crash from the journal."""
        if self._reply is None:
            block = self._recorder.view.block_being_written()
            return [block] if block else []
        return self._reply.left_open()

    def _follow(self, left_open: Sequence[Block]) -> bool:
        """Whether these blocks come next, in the rows and for readers. They do not where Postgres refused one."""
        next_index, shown = len(self.turn.blocks), self._recorder.view.block_being_written()
        in_order = all(block.index == next_index + place for place, block in enumerate(left_open))
        return in_order and (shown is None or len(left_open) > 0)

    def _has_output(self) -> bool:
        """Whether the unsealed round has shown anything yet."""
        marks = self._recorder.view.marks
        return self._unsealed() is not None and not isinstance(marks[-1], RoundStart)
