"""The executor of one turn: in a loop, derives the next step from the rows and runs it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, replace
from functools import partial
from time import monotonic
from typing import assert_never

import structlog

from turnstream.domain.activity import Activity
from turnstream.domain.assembly import assembled_answer, can_be_assembled, handoff_answer
from turnstream.domain.blocks import CUT_SHORT, Block
from turnstream.domain.charges import Charge, charge_of_request, charges_of, root_of
from turnstream.domain.compaction import earlier_cut, estimate_size, size_of_reply
from turnstream.domain.errors import PermanentError, ProviderError, TooLong, TransientError
from turnstream.domain.events import RoundStart
from turnstream.domain.history import COMPACTED
from turnstream.domain.limits import BUDGET, family_of
from turnstream.domain.output import output_progress
from turnstream.domain.plans import rate_sentence
from turnstream.domain.rounds import Round
from turnstream.domain.steps import (
    INTERRUPTED,
    ApplySteers,
    AwaitClient,
    CallModel,
    Compact,
    Fail,
    Finish,
    HandOver,
    JudgeOutput,
    RunTools,
    Shorten,
    Step,
    compaction_step,
    next_step,
    open_round_number,
    settle,
    text_to_continue,
    unanswered_calls,
)
from turnstream.domain.turns import DELETED, Status, Turn, TurnError, TurnRequest
from turnstream.engine.hooks import AfterRound, BeforeAttempt
from turnstream.engine.metrics import count_retry, count_usage, logged_continuation
from turnstream.engine.model_route import ModelAccess, ModelRoute
from turnstream.engine.model_spans import model_call
from turnstream.engine.recorder import Settlement, to_the_end
from turnstream.engine.reply import Reply
from turnstream.engine.requests import ModelStep, Requests, TokenCounts
from turnstream.engine.retries import StallTimeout
from turnstream.engine.spending import BudgetSpent, most_cost, most_tokens
from turnstream.engine.text_checks import TextGate, TurnBlocked
from turnstream.engine.tool_gate import JobEnd, end_of
from turnstream.engine.tool_runs import ToolRuns
from turnstream.engine.turn_caller import TurnCaller
from turnstream.engine.turn_context import TurnContext
from turnstream.kit.clock import CLOCK
from turnstream.kit.text import sentence
from turnstream.llm.conversation.summaries import as_summary
from turnstream.llm.provider import discard_answer
from turnstream.storage.database import retry_while_unavailable
from turnstream.telemetry import PROVIDER_FIRST_DELTA_SECONDS
from turnstream.tools.tool import Outcome

log = structlog.get_logger(__name__)

# Most process deaths while a turn runs; one more ends the turn. `recoveries` cannot limit them: new text resets it.
_MOST_DEATHS = 10
_DISCARD_TIMEOUT = 5.0  # seconds


class Executor:
    """Runs a claimed turn until the turn ends, or waits for a person or a job."""

    def __init__(self, context: TurnContext, tool_runs: ToolRuns, models: ModelAccess) -> None:
        self._context = context
        self._recorder = context.recorder
        self._tool_runs = tool_runs
        self._models = models
        self._caller = TurnCaller(context.owner, context.recorder)
        self._requests = Requests(
            context.ancestors,
            context.entries,
            context.uploads,
            models.policy.fitting,
            partial(context.secrets.opened_request, context.owner),
            self._caller,
        )
        self._token_counter = TokenCounts(context.ancestors, self._requests)
        self._route = ModelRoute(models, self.request.model, context.owner)
        self._reply: Reply | None = None
        self._summary_model_failed = False
        self._stall: StallTimeout | None = None
        self._attempt = 0  # the last attempt at the output for which hooks were called

    @property
    def turn(self) -> Turn:
        return self._recorder.turn

    @property
    def request(self) -> TurnRequest:
        assert self.turn.request is not None
        return self.turn.request

    @property
    def _path(self) -> Sequence[Turn]:
        return [*self._context.ancestors, self.turn]

    def activity(self, readers: int) -> Activity:
        """Returns the part of the turn's state that exists only in memory."""
        recorder, stage = self._recorder, self._recorder.stage
        in_call = stage in {"processing", "streaming"} and self._stall is not None
        silent = self._stall.silent if in_call and self._stall is not None else None
        return Activity(stage, monotonic() - recorder.stage_since, silent, self._tool_runs.running, readers)

    async def run(self) -> None:
        """Runs until the turn ends or waits. Errors of models, budgets and guards end the turn. Raises ClaimLost."""
        try:
            await self._take_up()
            while self._recorder.holds:
                await self._load_updates()
                try:
                    await self._do(await self._next_step())
                except ProviderError as error:
                    # With tool results the answer has begun, so every error of a model leads to the next fallback.
                    if not can_be_assembled(self.turn) or not self._route.leave(error):
                        raise
                    await self._settle_open_round(error, recoveries=0)
        except ProviderError as error:
            await self._end_without_model(self._route.turn_error(error))
        except BudgetSpent as spent:
            await self.cut_short("error", BUDGET, TurnError(BUDGET, str(spent), details=asdict(spent.reached)))
        except TurnBlocked as blocked:
            await self.cut_short("error", blocked.error.type, blocked.error)
        finally:
            await self._tool_runs.close()

    async def _end_without_model(self, error: TurnError) -> None:
        """Ends a turn that has no model left, with an answer from its tool results, or else with an error."""
        if not can_be_assembled(self.turn):
            await self.cut_short("error", "error", error)
            return
        log.warning("turn.assembled", error=error.type, message=error.message)
        cut = self._unsealed()
        if await self._tidy("error", keep=True):
            await self._call_after_round()
        await self._discard_answer(cut)
        await self._write_answer(*assembled_answer(self.turn, error, open_round_number(self.turn)))

    async def _write_answer(self, round: Round, answer: Block) -> None:
        """Ends the turn with an answer that the server writes, without a model."""
        begun = replace(round, started_at=CLOCK.now())
        self._recorder.begin_round(replace(begun, stop_reason=None))
        await self._recorder.seal_round(begun, [answer])
        await self._recorder.end("complete", round.stop_reason or "")

    async def _next_step(self) -> Step:
        now, family = CLOCK.now(), await self._context.spending.family_use(self.turn)
        step = next_step(self.turn, self._context.ancestors, now=now, family=family)
        if not isinstance(step, CallModel | Shorten | Compact):
            return step
        tokens = await self._token_counter.tokens(self.turn, self._route.model, self._route.provider)
        return step if tokens is None else next_step(self.turn, self._context.ancestors, tokens, now, family)

    async def _do(self, step: Step) -> None:
        match step:
            case CallModel():
                await self._call_model(step)
            case Shorten(block):
                log.info("conversation.shortened", note=block.text)
                await self._recorder.close_blocks([block])
            case Compact():
                await self._compact(step)
            case RunTools(calls, refusal):
                self._recorder.notify_stage("executing")
                async with self._route.connection_kept_open():
                    await self._tool_runs.answer(calls, refusal)
            case JudgeOutput(draft):
                self._recorder.notify_stage("executing")
                await self._tool_runs.judge(draft)
            case HandOver(result):
                await self._write_answer(*handoff_answer(self.turn, result, open_round_number(self.turn)))
            case AwaitClient():
                await self._recorder.wait()
            case ApplySteers():
                await self._apply_steers()
            case Finish(stop_reason):
                await self._recorder.end("complete", stop_reason)
            case Fail(type, message, details):
                await self._recorder.end("error", type, TurnError(type, message, details=details))
            case _:
                assert_never(step)

    async def _load_updates(self) -> None:
        """Loads the user's answers and messages after a notification. If a notification is lost, the statement that
        ends the turn finds them and puts the turn back into the queue.
        """
        updated = self._context.updated
        if updated.is_set():
            updated.clear()  # before the query: a notification during the query sets the event again
            await self._refresh()

    async def _refresh(self) -> None:
        turns = self._context.turns
        await self._recorder.refresh(lambda turn: retry_while_unavailable(lambda: turns.refreshed(turn)))

    async def _apply_steers(self) -> None:
        """Adds the waiting steers to the turn. Until then, the user may edit or withdraw a steer."""
        while (steers := self.turn.steers) and not await self._recorder.apply_steers(
            steers, open_round_number(self.turn) - 1
        ):
            await self._refresh()

    async def cut_short(
        self, status: Status, stop_reason: str, error: TurnError | None = None, *, keep: bool = True
    ) -> None:
        """Ends the turn at once, with a result for every call. The open round is sealed with its present content. The
        round is voided instead if `keep` is false, or if rows and view differ about the open block.
        """
        cut = self._unsealed()
        sealed = await self._tidy(stop_reason, keep=keep)
        await self._recorder.end(status, stop_reason, error)
        await self._discard_answer(cut)
        if sealed:
            await self._call_after_round()

    async def _tidy(self, stop_reason: str, *, keep: bool) -> bool:
        """Seals or voids the open round, settles all calls, and applies steers. Returns whether a round was sealed."""
        await self._tool_runs.close()
        has_open_round = self._unsealed() is not None
        if has_open_round:
            round, left_open = self._close_reply(stop_reason)
            if keep and self._is_next_in_rows(left_open):
                await self._seal(round, left_open, recoveries=self.turn.recoveries)
            else:
                await self._recorder.void_round(round, recoveries=self.turn.recoveries)
        if unanswered := unanswered_calls(self.turn.blocks):
            cut = Outcome(CUT_SHORT.format(stop_reason), is_error=True)
            ends = {job.key: end_of(job.outcome) for job in self.turn.jobs if job.outcome is not None}
            results = [(call, ends.get(call.key, JobEnd(cut))) for call in unanswered]
            await self._recorder.settle_calls(*(Settlement(call, end.outcome, end.state) for call, end in results))
        await self._apply_steers()
        return has_open_round and self.turn.rounds[-1].sealed

    # --- one model call ----------------------------------------------------------------------------------------------

    async def _call_model(self, step: CallModel) -> None:
        if self.request.output is not None:
            progress = output_progress(self.turn)
            attempt = progress.failed + 1
            # A retried round, or a round after a steer, belongs to the same attempt.
            if progress.iterations == 0 and attempt > self._attempt:
                self._attempt = attempt
                await self._context.call_hooks(BeforeAttempt(self._context.owner, self.turn, attempt))
        try:
            await self._try_round(step)
        except TooLong:
            await self._void_open_round()
            compaction = compaction_step(step.round, self._path, forced=True)
            if compaction is None:
                raise
            await self._do(compaction)

    async def _compact(self, step: Compact) -> None:
        """Summarises the turns up to `step.through`, or fewer turns if one request cannot contain all of them. If the
        operator's summary model fails, the present model of the turn summarises.
        """
        chosen = self._models.policy.summary_model
        owner = self._context.owner
        if chosen is not None and not self._summary_model_failed and not self._models.is_open(chosen, owner):
            try:
                await self._stream_round(step, chosen)
                return
            except ProviderError as error:
                log.warning("conversation.summary_model_failed", model=chosen, error=error.type)
                self._summary_model_failed = True
                await self._void_open_round()
        try:
            await self._try_round(step)
        except TooLong:
            await self._void_open_round()
            through = earlier_cut(self._path, step.through)
            if through is None:
                raise
            await self._compact(replace(step, through=through))

    async def _try_round(self, step: ModelStep) -> None:
        try:
            with logged_continuation(lambda: self.turn, step.round):
                await self._stream_round(step)
        except TransientError as error:
            await self._after_failure(error)

    async def _stream_round(self, step: ModelStep, chosen: str | None = None) -> None:
        """Calls a model once: the `chosen` model, or else the present model of the route. Raises BudgetSpent if the
        owner's plan, or a budget of the family, has no room for the call.
        """
        if self._context.spending.limits_models or self._context.spending.reached is not None:
            await self._reserve(chosen or self._route.model)
        # This reservation must follow the plan's reservation, which first returns the turn's earlier reservations.
        if (root := family_of(self.turn)) is not None:
            request_charge = self._charge_of_request(chosen or self._route.model)
            await self._context.spending.take_of_family(root, self.turn, request_charge)
        with self._route.call() if chosen is None else self._models.call(chosen, self._context.owner) as provider:
            opened = await self._models.openings.enter()
            request = await self._requests.build(self.turn, step, chosen or self._route.model)
            label = self._models.policy.label(request.model if chosen is None else chosen)
            with model_call(
                provider.name,
                label,
                request,
                gen_ai__conversation__id=str(self.turn.chat_id),
                turnstream__round=step.round,
                turnstream__compaction=isinstance(step, Compact) or None,
            ) as call:
                with_tools = isinstance(step, CallModel) and step.tools
                start_early = self._tool_runs.start_early if with_tools else None
                continued = text_to_continue(self.turn) if isinstance(step, CallModel) else ("", "")
                reply = self._reply = Reply(
                    self._recorder,
                    self._models.clock,
                    request,
                    self._models.policy.max_reply_chars,
                    opened,
                    start_early,
                    continued,
                    self._gate(continued[1]),
                    self._tool_runs.close,
                )
                self._recorder.notify_stage("processing")
                timeout = StallTimeout(self._models.policy.stall_timeout)
                try:
                    self._stall = timeout
                    self._caller.called(timeout)
                    async with (
                        self._reserved_request(reply, request.model),
                        timeout as stall,
                        aclosing(provider.stream(request)) as stream,
                    ):
                        summary = as_summary(stream, step.through) if isinstance(step, Compact) else None
                        await reply.consume(summary or stream, stall)
                except TransientError:
                    if isinstance(step, Compact) or not reply.is_whole:
                        raise  # but a failure after a whole reply changes nothing
                seconds = reply.seconds_to_first_delta
                if seconds is not None:
                    seconds -= self._caller.waited
                    PROVIDER_FIRST_DELTA_SECONDS.labels(provider.name, label).observe(seconds)
                call.answered(reply.stop_reason, reply.usage, reply.blocks, reply.request_id, seconds)
                if self._unsealed() is None or not reply.is_whole:
                    raise TransientError("incomplete_stream", "The provider's answer ended in the middle.")
        await self._seal_reply(COMPACTED if isinstance(step, Compact) else reply.stop_reason)
        if isinstance(step, Compact):
            log.info("conversation.compacted", through=str(step.through))
        await self._call_after_round()

    def _gate(self, before: str) -> TextGate | None:
        open_gate = self._context.checks.open_gate
        return open_gate and open_gate(lambda: self.turn, self._models.policy.max_reply_chars, before)

    async def _seal_reply(self, stop_reason: str) -> None:
        """Seals the round of a complete reply. If possible, the same write ends the turn or starts the calls."""
        round, unwritten = self._close_reply(stop_reason)
        match self._step_behind(round, unwritten):
            case Finish(reason):
                await self._recorder.seal_and_end(round, unwritten, reason)
                self._report_sealed(round)
            case RunTools(calls, None):
                starting = self._tool_runs.ready_to_start(self._sealed_turn(round, unwritten), calls)
                await self._seal(round, unwritten, recoveries=0, starting=starting)
            case _:
                await self._seal(round, unwritten, recoveries=0)

    async def _reserve(self, model: str) -> None:
        policy, spending = self._models.policy, self._context.spending
        request, reply = most_tokens(self._path, self.request.params, policy.longest_reply(model))
        cost = most_cost(policy.prices(model), request, reply)
        if not await spending.reserve(self.turn, self._charge_of_request(model), request + reply, cost):
            assert spending.reached is not None
            raise BudgetSpent(spending.reached, rate_sentence(spending.reached))

    @asynccontextmanager
    async def _reserved_request(self, reply: Reply, model: str) -> AsyncIterator[None]:
        """Lets the round writer reserve the cost of the request until the reply begins, so that a kill does not hide
        the cost. If the plan limits models or the family shares a budget, the cost is reserved already.
        """
        turn, view = self.turn, self._recorder.view
        if self._context.spending.limits_models or family_of(turn) is not None:
            yield
            return
        request = view.unreserved = partial(self._charge_of_request, model)
        try:
            yield
        finally:
            is_reserved = view.unreserved is not request
            view.unreserved = None
            if is_reserved and not reply.has_begun:
                await to_the_end(self._context.spending.forget(turn, self._call))

    def _charge_of_request(self, model: str) -> Charge:
        tokens = estimate_size(self._path).tokens
        return charge_of_request("round", self._call, model, tokens, self._models.policy.prices(model))

    @property
    def _call(self) -> str:
        return f"{open_round_number(self.turn)}.{self.turn.attempt}"

    def _step_behind(self, round: Round, unwritten: Sequence[Block]) -> Step | None:
        """Returns the step that follows the seal of this round: the write of the seal can then also end the turn or
        start the calls. Returns None if updates must be loaded or hooks called first, or if the family shares a budget,
        whose use is unknown here. The statement that ends the turn finds steers whose notification was lost.
        """
        waits = self._context.updated.is_set() or self._context.hooks.want(AfterRound)
        if waits or family_of(self.turn) is not None:
            return None
        return next_step(self._sealed_turn(round, unwritten), self._context.ancestors, now=CLOCK.now())

    def _sealed_turn(self, round: Round, unwritten: Sequence[Block]) -> Turn:
        turn = self.turn
        rounds = (*turn.rounds[:-1], replace(round, sealed_by=turn.attempt))
        return replace(turn, rounds=rounds, blocks=(*turn.blocks, *unwritten))

    # --- the end of a round ------------------------------------------------------------------------------------------

    def _unsealed(self) -> Round | None:
        rounds = self.turn.rounds
        return rounds[-1] if rounds and not rounds[-1].sealed and not rounds[-1].voided else None

    def _close_reply(self, stop_reason: str) -> tuple[Round, list[Block]]:
        """Ends the reply. Returns the unsealed round with its final figures, and those of its blocks that have no row.
        After a crash, this run has no reply, and the content comes from the rows and the journal.
        """
        round = self._unsealed()
        assert round is not None
        reply, self._reply = self._reply, None
        if reply is None:
            block = self._recorder.view.block_being_written()
            round, left_open = replace(round, stop_reason=stop_reason), [block] if block else []
        else:
            round, left_open = reply.complete(round, stop_reason), reply.cut_off()
        if reply is None or not reply.is_whole:
            tokens = size_of_reply([*self.turn.blocks, *left_open], round.number)
            round = replace(round, estimated_tokens=tokens)
        cost = self._models.policy.cost(round.model or self.request.model, round.spent)
        return replace(round, cost=cost), left_open

    async def _discard_answer(self, cut: Round | None) -> None:
        """Cancels the answer of an interrupted round, if its provider would otherwise finish the answer."""
        if cut is None or cut.retained is None:
            return
        try:
            async with asyncio.timeout(_DISCARD_TIMEOUT):
                await discard_answer(self._models.provider_for(cut.model or self.request.model), cut.retained)
        except (ProviderError, TimeoutError) as error:
            log.warning("answer.not_cancelled", error=error.type if isinstance(error, ProviderError) else "timeout")

    async def charge_open_round(self) -> None:
        """Charges the open round of a deleted turn, which no other statement can charge: its row is deleted."""
        reply, turn = self._reply, self.turn
        if reply is not None and self._unsealed() is None and reply.has_begun:  # the row of the round was never written
            self._recorder.view.begin_round(reply.new_round())
        cut = self._unsealed()
        if cut is None:
            return
        await self._discard_answer(cut)
        for charge in charges_of([self._close_reply(DELETED)[0]], turn):
            add = partial(self._context.charges.add, self._context.owner, turn.chat_id, turn.id, charge, root_of(turn))
            await retry_while_unavailable(add)

    async def _seal(
        self, round: Round, left_open: Sequence[Block], *, recoveries: int, starting: Sequence[Block] = ()
    ) -> None:
        await self._recorder.seal_round(round, left_open, recoveries=recoveries, starting=starting)
        self._report_sealed(round)

    def _report_sealed(self, round: Round) -> None:
        count_usage(round, self._models.policy.label(round.model or self.request.model))
        log.info("round.sealed", stop_reason=round.stop_reason, blocks=len(self.turn.blocks))

    async def _call_after_round(self) -> None:
        await self._context.call_hooks(AfterRound(self._context.owner, self.turn, self.turn.rounds[-1]))

    async def _take_up(self) -> None:
        """Settles the open round of an earlier attempt. Raises PermanentError after too many recoveries or deaths."""
        crash = TransientError("interrupted", "The server stopped while the answer was being written.")
        if self.turn.recoveries > self.request.limits.max_recoveries:
            raise PermanentError(crash.type, f"{crash.message} The turn was interrupted too often without progress.")
        if self.turn.deaths > _MOST_DEATHS:
            raise PermanentError(crash.type, f"{crash.message} The turn may have caused {self.turn.deaths} such stops.")
        # The round was charged when the lease of its replica expired.
        await self._settle_open_round(crash, recoveries=self.turn.recoveries)

    async def _after_failure(self, error: TransientError) -> None:
        is_open = self._unsealed() is not None
        shown = is_open and not isinstance(self._recorder.view.marks[-1], RoundStart)  # readers have its output
        try:
            await self._settle_open_round(error, recoveries=self.turn.recoveries + shown)
        except PermanentError as given_up:
            if not self._route.leave(given_up):
                raise
            await self._settle_open_round(error, recoveries=0)
            return
        tries = self._route.calls
        seconds = round(self._route.seconds_to_wait(error, charged=not shown), 3)
        count_retry(error)
        log.warning("provider.retry", error=error.type, message=error.message, seconds=seconds, tries=tries)
        model, message = self._route.model, sentence(error.message)
        self._recorder.set_stage("retrying")
        self._recorder.notify("retry", error=error.type, message=message, seconds=seconds, model=model, tries=tries)
        await asyncio.sleep(seconds)

    async def _settle_open_round(self, error: ProviderError, *, recoveries: int) -> None:
        """Settles an interrupted round, if there is one. `recoveries` is the turn's count of recoveries afterwards."""
        cut = self._unsealed()
        if cut is None:
            return
        settlement = settle(self.turn, self._recorder.view.block_being_written(), recoveries)
        # A retained answer can be read again by the same request, and is charged once. A steer changes the request.
        is_retained = cut.retained is not None and cut.model == self._route.model and not self.turn.steers
        if settlement == "keep" and (self._context.checks.voids_interrupted or is_retained):
            settlement = "void"
        log.info("round.interrupted", settled=settlement, error=error.type)
        match settlement:
            case "seal" | "keep":
                await self._seal(*self._close_reply(INTERRUPTED), recoveries=recoveries)
                await self._call_after_round()
            case "void":
                await self._void_open_round(recoveries, unpaid=is_retained)
            case "give_up":
                raise PermanentError(
                    error.type, f"{sentence(error.message)} The server gave up after too many interruptions."
                )
            case _:
                assert_never(settlement)
        if settlement != "void" or not is_retained:
            await self._discard_answer(cut)

    async def _void_open_round(self, recoveries: int = 0, *, unpaid: bool = False) -> None:
        """Voids the unsealed round, if there is one. The turn continues in a new attempt. If `unpaid` is true, another
        round will read the same answer, and is charged for it.
        """
        if self._unsealed() is not None:
            await self._tool_runs.close()  # calls that were started early belong to the round
            round = self._close_reply("")[0]
            if unpaid:
                round = replace(round, usage={}, estimated_tokens=None, cost=0.0)
            await self._recorder.void_round(round, recoveries=recoveries)
            structlog.contextvars.bind_contextvars(attempt=self.turn.attempt)

    def _is_next_in_rows(self, left_open: Sequence[Block]) -> bool:
        """Whether these blocks come next in rows and view. They do not if Postgres refused an earlier block."""
        next_index, shown = len(self.turn.blocks), self._recorder.view.block_being_written()
        in_order = all(block.index == next_index + place for place, block in enumerate(left_open))
        return in_order and (shown is None or len(left_open) > 0)
