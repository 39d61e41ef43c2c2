"""The tasks of one turn's tool calls: some start before the seal of their round; each is settled when it ends."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from hashlib import sha256
from time import perf_counter
from typing import Any, Final

import structlog

from turnstream.domain.activity import RunningCall
from turnstream.domain.asks import Ask, AskAnswer, AskKind, elicitation_id
from turnstream.domain.blocks import Block, CallKey
from turnstream.domain.deferred import NamedCalls
from turnstream.domain.errors import CannotOpen
from turnstream.domain.kinds import TEXT
from turnstream.domain.output import attempt_of
from turnstream.domain.plans import rate_sentence
from turnstream.domain.turns import Turn, TurnRequest
from turnstream.engine.call_policies import PolicyCall
from turnstream.engine.hooks import AfterTool, BeforeTool, OutputRejected
from turnstream.engine.model_route import ModelAccess
from turnstream.engine.preliminary import PreliminaryOutputs
from turnstream.engine.recorder import Settlement
from turnstream.engine.tool_call import handle_text, measured, with_files_stored
from turnstream.engine.tool_gate import (
    RunCall,
    SettleUnrun,
    StartJob,
    ToolGate,
    person_answer,
    with_approval,
    with_grants,
)
from turnstream.engine.turn_context import TurnContext
from turnstream.kit.clock import CLOCK
from turnstream.kit.ids import new_id
from turnstream.storage.database import retry_while_unavailable
from turnstream.storage.runs.record import NewJob
from turnstream.telemetry import WAITS
from turnstream.tools.outputs import OUTPUT, as_call
from turnstream.tools.policy import count_policies
from turnstream.tools.tool import Detached, Outcome, PersonAnswer, PersonQuestion, SignIn, ToolContext
from turnstream.tools.toolset import Toolset

log = structlog.get_logger(__name__)

_MAX_PROGRESS = 1000  # characters of a tool's progress
_LOOK_FOR_ANSWER = 5.0  # seconds
STARTED: Final = (
    "This call was started and runs in the background. Its result is not known yet. It will be sent to you later, in"
    " this conversation: do not wait for it, and do not make the call again."
)


class ToolRuns:
    """Owns every tool task of a turn; `close` cancels the tasks that still run. `started_before` are calls that an
    earlier attempt started and that have no stored end.
    """

    def __init__(
        self,
        context: TurnContext,
        toolset: Toolset,
        models: ModelAccess,
        started_before: frozenset[CallKey] = frozenset(),
    ) -> None:
        self._context = context
        self._recorder = context.recorder
        self._toolset = toolset
        self._models = models
        self._started_before = started_before
        self._named = NamedCalls(context.recorder.turn.request)
        self._tasks: dict[CallKey, asyncio.Task[Outcome]] = {}
        self._begun: dict[CallKey, tuple[str, float]] = {}  # tool names, and start times by perf_counter
        self._in_ledger: set[CallKey] = set()
        self._questions = 0
        self._check_result = context.checks.check_result
        self.first_started: float | None = None  # perf_counter, for the metrics of the turn

    @property
    def _gate(self) -> ToolGate:
        """The gate for the present rows of the turn."""
        return self._gate_of(self._recorder.turn)

    def _gate_of(self, turn: Turn) -> ToolGate:
        return ToolGate(self._named.turn(turn), self._toolset, self._started_before, self._tasks.keys())

    @property
    def _request(self) -> TurnRequest:
        request = self._recorder.turn.request
        assert request is not None
        return request

    @property
    def running(self) -> tuple[RunningCall, ...]:
        now, running = perf_counter(), [key for key, task in self._tasks.items() if not task.done()]
        return tuple(RunningCall(name, now - since) for name, since in map(self._begun.__getitem__, running))

    def start_early(self, block: Block) -> None:
        """Starts the call of a block that has just closed, if its tool is `read_only`. Its outcome is stored after the
        seal. If the owner's plan limits calls, the call waits for the seal, because it is counted first.
        """
        call = self._named.call(block)
        if not self._context.spending.limits_calls and self._gate.may_start_early(call):
            self._start(call)

    def ready_to_start(self, sealed: Turn, calls: Sequence[Block]) -> Sequence[Block]:
        """Returns the `calls` of a round if they may start right after its seal, whose write then enters them into the
        ledger; else none. `sealed` is the turn after the seal. The caller must start or settle the calls next.
        """
        gate, named = self._gate_of(sealed), [*map(self._named.call, calls)]
        if self._context.spending.limits_calls or gate.asks(named, CLOCK.now()):
            return ()
        if not all(isinstance(gate.decide(call), RunCall) for call in named):
            return ()
        self._in_ledger |= {call.key for call in calls}
        return calls

    async def answer(self, calls: Sequence[Block], refusal: str | None) -> None:
        """Gives each call of a round a result or an ask. With a `refusal`, no call runs."""
        calls = [*map(self._named.call, calls)]
        if refusal is None and (asks := self._gate.asks(calls, CLOCK.now())):
            if any(ask.tool_digest is not None for ask in asks):
                asks = [await self._with_digest_of_plain_headers(ask) for ask in asks]
                find = partial(self._context.grants.of_chat, self._recorder.turn.chat_id)
                asks = with_grants(asks, calls, await retry_while_unavailable(find))
            await self._recorder.ask(asks)
            waiting = [ask for ask in asks if ask.answer is None]
            self._report_wait(waiting)
            asked = {ask.key for ask in waiting}
            calls = [call for call in calls if call.key not in asked]
        runnable = list(calls)
        jobs = {job.key for job in self._recorder.turn.jobs}
        # Repeated, because a result that is stored here may be the memo of another call.
        while unrun := await self._unrun(runnable, refusal):
            await self._recorder.settle_calls(*unrun)
            for each in unrun:
                if each.call.key in jobs:
                    await self._call_after_tool(each.call, each.outcome)
            settled = {each.call.key for each in unrun}
            runnable = [call for call in runnable if call.key not in settled]
        if self._context.spending.limits_calls:
            runnable = await self._within_plan(runnable)
        runnable = await self._start_jobs(runnable)
        if runnable:
            # The ledger is written first: after a crash, a call without an entry has certainly not run.
            if unlisted := [call for call in runnable if call.key not in self._in_ledger]:
                await self._recorder.start_calls(unlisted)
            gate = self._gate
            try:
                async with asyncio.TaskGroup() as group:
                    for call in runnable:
                        group.create_task(self._finish(call, gate.first_of_same(call, runnable)))
            except ExceptionGroup as failures:
                raise failures.exceptions[0] from None
            for call in runnable:
                self._tasks.pop(call.key, None)

    async def _start_jobs(self, calls: Sequence[Block]) -> list[Block]:
        """Turns the calls of background tools into jobs. Returns the other calls."""
        gate, jobs, others, may_report = self._gate, list[NewJob](), list[Block](), None
        for call in calls:
            match gate.decide(call):
                case StartJob(input_json, reports):
                    if reports and may_report is None:
                        find = partial(self._context.reports.may_report, gate.turn.id)
                        may_report = await retry_while_unavailable(find)
                    seconds = self._toolset.policy(call.name or "", self._request.tools).seconds
                    await self._context.call_hooks(BeforeTool(self._context.owner, gate.turn, call, input_json))
                    kind, deadline = self._toolset.job_kind(call.name or ""), CLOCK.now() + timedelta(seconds=seconds)
                    jobs.append(NewJob(new_id(), call, kind, input_json, deadline, reports and bool(may_report)))
                case _:
                    others.append(call)
        if waited_for := [job for job in jobs if not job.reports]:
            await self._recorder.start_jobs(waited_for)
        if reporting := [job for job in jobs if job.reports]:
            started = [Settlement(job.call, Outcome(STARTED, notes={"job": str(job.id)})) for job in reporting]
            await self._recorder.start_reports(reporting, *started)
            for each in started:
                await self._call_after_tool(each.call, each.outcome)
        self._report_jobs(*jobs)
        return others

    def _report_jobs(self, *jobs: NewJob) -> None:
        if jobs:
            log.info("jobs.started", jobs=[str(job.id) for job in jobs], tools=[job.call.name for job in jobs])
            for job in jobs:
                self._context.span.event("job", turnstream__job=str(job.id), gen_ai__tool__name=job.call.name)
            self._context.notify_owner(self._context.owner)

    async def _with_digest_of_plain_headers(self, ask: Ask) -> Ask:
        """Returns the ask with the digest of decrypted headers, so that grants are valid for encrypted headers, too."""
        offered = self._request.tools
        try:
            opened = await self._toolset.opened(ask.name, self._context.owner, offered)
        except CannotOpen:
            return replace(ask, tool_digest=None)
        return ask if opened is offered else replace(ask, tool_digest=self._toolset.tool_digest(ask.name, opened))

    async def _unrun(self, calls: Sequence[Block], refusal: str | None) -> list[Settlement]:
        """Returns the outcomes of calls that do not run here, because they must not run or have run elsewhere."""
        gate, unrun = self._gate, []
        for call in calls:
            match gate.decide(call, refusal):
                case SettleUnrun(outcome, state, from_client, job):
                    if from_client:
                        name, id = call.name or "", call.tool_use_id or ""
                        outcome = self._toolset.fitted(name, outcome, id, self._request.tools)
                    if from_client or job is not None:
                        outcome = await self._checked(outcome, gate.turn, call.name or "")
                    if job is not None:
                        seen = self._as_policies_see(call, call.name or "", job.input_json)
                        outcome = await self._settled(seen, outcome)
                        outcome = outcome if job.approval is None else with_approval(outcome, job.approval)
                    count_policies(self._label(call), outcome.notes)
                    unrun.append(Settlement(call, outcome, state))
                case RunCall() | StartJob():
                    pass
        return unrun

    async def _within_plan(self, calls: Sequence[Block]) -> list[Block]:
        """Counts the calls that the owner's plan allows, and returns them. The other calls get an error as their
        result. Calls of the output tools, and calls that an earlier attempt counted, are not counted.
        """
        spending, admitted = self._context.spending, []
        for call in calls:
            again = call.key in {(ask.round, ask.call_id) for ask in self._recorder.turn.asks if ask.kind == "sign_in"}
            free = self._gate.role(call) is not None or call.key in self._started_before or again
            if free or await spending.count_calls(1):
                admitted.append(call)
            else:
                assert spending.reached is not None
                reason = f"This call was not run. {rate_sentence(spending.reached)}"
                await self._recorder.settle_calls(Settlement(call, Outcome(reason, is_error=True)))
        return admitted

    def _report_wait(self, asks: Sequence[Ask]) -> None:
        """Reports that calls wait for a person. The row of the webhook was written with the asks."""
        if asks:
            owner = self._context.owner
            log.info("turn.waiting", owner=owner, tools=[ask.name for ask in asks], kinds=[ask.kind for ask in asks])
            for ask in asks:
                WAITS.labels(ask.kind).inc()
                self._context.span.event("ask", turnstream__ask__kind=ask.kind, gen_ai__tool__name=ask.name)
            self._context.notify_owner(owner)

    async def judge(self, draft: Block) -> None:
        """Judges an output that the model wrote as text. Hooks and validators get it as a call of the output tool."""
        output = self._request.output
        call = as_call(draft) if output is None else as_call(draft, output.name)
        outcome = await self._perform(call, RunCall(call.text))
        await self._recorder.record_verdict(draft, outcome)
        await self._call_after_tool(call, outcome)

    async def close(self) -> None:
        """Cancels the tasks that still run and waits for them."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- the ledger --------------------------------------------------------------------------------------------------

    async def _finish(self, call: Block, same: Block | None) -> None:
        """Stores the outcome of `call` when its task ends. `call` shares the success of the identical call `same`."""
        if same is not None:
            # Shielded, because the task of the other call awaits this outcome, too.
            outcome = await asyncio.shield(self._start(same))
            if not outcome.is_error and outcome.detached is None:
                memo = replace(outcome, notes={"memo": same.tool_use_id})
                count_policies(self._label(call), memo.notes)
                await self._recorder.settle_calls(Settlement(call, memo))
                return
        outcome = await self._start(call)
        if outcome.sign_in is not None:
            await self._ask_to_sign_in(call, outcome.sign_in)
            return
        if outcome.detached is not None:
            await self._continue_as_job(call, outcome.detached)
            return
        await self._recorder.settle_calls(Settlement(call, outcome))
        if "cached" not in outcome.notes:  # a call with a cached outcome did not run
            await self._call_after_tool(call, outcome)

    async def _continue_as_job(self, call: Block, detached: Detached) -> None:
        """Turns a started call into a job. One write stores the job and its handle: the call never starts again."""
        name, run = call.name or "", self._gate.run_of(call)
        policy = self._toolset.policy(name, self._request.tools)
        deadline = CLOCK.now() + timedelta(seconds=replace(policy, background=True).seconds)
        kind, handle = self._toolset.job_kind(name), handle_text(detached.handle)
        job = NewJob(new_id(), call, kind, run.input_json, deadline, handle=handle)
        await self._recorder.start_jobs([job])
        self._report_jobs(job)

    async def _call_after_tool(self, call: Block, outcome: Outcome) -> None:
        owner, role, output = self._context.owner, self._gate.role(call), self._request.output
        await self._context.call_hooks(AfterTool(owner, self._recorder.turn, call, outcome))
        # A handler's comment on a draft is no rejection, and a submission without a draft fails for another reason.
        judged = output is not None and (role == "submit" or (role == "output" and output.handler is None))
        if judged and outcome.is_error and not (role == "submit" and self._gate.submitted_draft(call) is None):
            turn = self._recorder.turn
            await self._context.call_hooks(OutputRejected(owner, turn, attempt_of(turn), call, outcome))

    # --- one task ----------------------------------------------------------------------------------------------------

    def _start(self, call: Block) -> asyncio.Task[Outcome]:
        """Returns the task of the call, and starts it unless it runs already."""
        task = self._tasks.get(call.key)
        if task is None:
            self.first_started = self.first_started or perf_counter()
            task = asyncio.create_task(self._perform(call, self._gate.run_of(call)))
            self._tasks[call.key] = task
            self._begun[call.key] = call.name or "", perf_counter()
        return task

    async def _perform(self, call: Block, decision: RunCall) -> Outcome:
        input_json, run = decision.input_json, partial(self._run, call, decision.input_json)
        if self._gate.role(call) is None:
            seen = self._as_policies_see(call, call.name or "", input_json)
            for policy in reversed(self._context.call_policies):
                run = partial(policy.run, seen, run)
            outcome = await run()
            if outcome.detached is not None:
                return outcome
            outcome = await self._settled(seen, outcome)
        else:
            outcome = await run()
        outcome = outcome if decision.approval is None else with_approval(outcome, decision.approval)
        return await with_files_stored(outcome, self._context.uploads, self._context.owner, self._context.spending.plan)

    async def _settled(self, call: PolicyCall, outcome: Outcome) -> Outcome:
        for policy in self._context.call_policies:
            outcome = await policy.settled(call, outcome)
        return outcome

    def _as_policies_see(self, call: Block, name: str, input_json: str) -> PolicyCall:
        turn = self._recorder.turn
        return PolicyCall(
            owner=self._context.owner,
            turn=turn,
            tool_use_id=call.tool_use_id or "",
            name=name,
            input_json=input_json,
            label=self._label(call),
            models=self._models,
            check=lambda outcome: self._checked(outcome, turn, name),
        )

    async def _run(self, call: Block, input_json: str) -> Outcome:
        await self._context.call_hooks(BeforeTool(self._context.owner, self._recorder.turn, call, input_json))
        return await measured(self._label(call), call.tool_use_id, input_json, partial(self._invoke, call, input_json))

    async def _invoke(self, call: Block, input_json: str) -> Outcome:
        turn = self._recorder.turn
        assert call.name is not None
        assert call.tool_use_id is not None
        outputs, detached = PreliminaryOutputs(self._recorder, call), list[Detached]()

        def detach(given: Detached) -> None:
            handle_text(given.handle)
            detached.append(given)

        context = ToolContext(
            owner=self._context.owner,
            chat_id=turn.chat_id,
            turn_id=turn.id,
            tool_use_id=call.tool_use_id,
            idempotency_key=f"{turn.id}:{call.round}:{call.tool_use_id}",
            progress=partial(self._show_progress, call),
            # Unchecked text is not shown.
            preliminary=(lambda _: None) if self._check_result else outputs.show,
            ask=partial(self._ask_person, call),
            documents=self._request.documents,
            offered=self._request.tools,
        )
        if self._toolset.detaches(call.name):
            context = replace(context, detach=detach)
        role, output = self._gate.role(call), self._request.output
        if role is None or output is None:
            try:
                outcome = await self._toolset.run(call.name, input_json, context, offered=self._request.tools)
            finally:
                await outputs.close()
            if detached and not outcome.is_error:
                return replace(outcome, detached=detached[-1])
            return await self._checked(outcome, turn, call.name)
        draft = input_json if role == "output" else self._gate.submitted_draft(call)
        return await self._toolset.outputs.settle(role, output, draft, context)

    async def _checked(self, outcome: Outcome, turn: Turn, tool: str) -> Outcome:
        """Returns the outcome to store. Raises TurnBlocked."""
        return outcome if self._check_result is None else await self._check_result(outcome, turn, tool)

    def _show_progress(self, call: Block, message: str) -> None:
        if self._check_result is None:
            shown = {"tool_use_id": call.tool_use_id, "name": call.name, "message": message[:_MAX_PROGRESS]}
            self._recorder.notify("tool_progress", **shown)

    async def _ask_to_sign_in(self, call: Block, sign_in: SignIn) -> None:
        """Suspends the call until the owner, or a principal named by the server, has signed in."""
        expiry = self._toolset.policy(call.name or "", self._request.tools).approval_expiry
        ask = replace(self._question_of(call, "sign_in", sign_in.question, expiry), approvers=sign_in.approvers)
        await self._recorder.ask_to_sign_in(call, ask)
        self._in_ledger.discard(call.key)  # the call may run again in this attempt
        self._report_wait([ask])
        await retry_while_unavailable(sign_in.recheck)

    def _question_of(self, call: Block, kind: AskKind, question: Mapping[str, Any], seconds: float | None) -> Ask:
        self._questions += 1
        attempt = self._recorder.turn.attempt
        id = elicitation_id(call.tool_use_id or "", attempt, self._questions)
        text = json.dumps(question, ensure_ascii=False)
        return Ask(
            round=call.round,
            tool_use_id=id,
            name=call.name or "",
            kind=kind,
            digest=sha256(f"{id} {text}".encode()).hexdigest(),
            attempt=attempt,
            expires_at=None if seconds is None else CLOCK.now() + timedelta(seconds=seconds),
            question=text,
            approvers=self._gate.approvers(call) if kind == "elicitation" else (),
        )

    async def _ask_person(self, call: Block, question: PersonQuestion) -> PersonAnswer | None:
        """Asks the person a question that the running tool asks. Returns the answer; None if the question expires."""
        ask = self._question_of(call, "elicitation", question.shown, question.seconds)
        await self._recorder.ask([ask])
        self._report_wait([ask])
        answer = await self._answer_to(ask, perf_counter() + question.seconds)
        self._recorder.view.notify_actions()
        return person_answer(answer)

    async def _answer_to(self, ask: Ask, deadline: float) -> AskAnswer | None:
        """Waits until the rows have the answer or `deadline` passes. Polls the rows: a notification may be lost."""
        updated, turns = self._context.updated, self._context.turns
        while True:
            asks = self._recorder.turn.asks
            answer = next((each.answer for each in asks if each.tool_use_id == ask.tool_use_id), None)
            left = deadline - perf_counter()
            if answer is not None or left <= 0:
                return answer
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, _LOOK_FOR_ANSWER)):
                    await updated.wait()
            updated.clear()  # before the query: a notification during the query sets the event again
            await self._recorder.refresh(lambda turn: retry_while_unavailable(lambda: turns.refreshed(turn)))

    def _label(self, call: Block) -> str:
        """Returns the tool's name in metrics. Names from models or clients are replaced: each would be a new series."""
        spec = self._gate.spec(call)
        if call.type == TEXT:
            return OUTPUT
        if spec is None:
            return "(unknown)"
        if spec.role is not None:  # because the request chose the name of the tool
            return spec.role
        return "(declared)" if spec.http or spec.client else spec.name
