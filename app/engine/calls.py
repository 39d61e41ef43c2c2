"""The tool calls of one turn: run in parallel, each settled as it ends, read-only ones started early."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from time import perf_counter

from app.domain.asks import Ask, AskKind, digest_of
from app.domain.blocks import Block, CallState
from app.domain.kinds import TEXT, TOOL_RESULT
from app.domain.steps import tool_rounds
from app.domain.turns import ToolRole, ToolSpec, TurnRequest
from app.engine.answers import outcome_of_answer, with_approval
from app.engine.files import Files
from app.engine.hooks import AfterTool, BeforeTool, HookRunner
from app.engine.memory import earlier_result, is_over_limit, over_limit, same_call
from app.engine.recorder import Recorder
from app.telemetry import TOOL_OUTCOMES, TOOL_SECONDS
from app.tools.outputs import OUTPUT, as_call
from app.tools.policy import Policy
from app.tools.tool import Outcome, ToolContext
from app.tools.toolset import Toolset
from app.tools.uses import count_uses

OUTCOME_UNKNOWN = (
    "The server stopped while this call was running. Find out whether it took effect before you call again."
)

Key = tuple[int, str | None]


class Calls:
    """Owns every tool task of a turn; `close` ends those that are left. `files` keeps what they return.
    `started_before` are the calls that an earlier attempt started and did not see the end of.
    """

    def __init__(
        self,
        recorder: Recorder,
        toolset: Toolset,
        owner: str,
        observers: HookRunner,
        files: Files,
        started_before: frozenset[Key] = frozenset(),
    ) -> None:
        self._recorder = recorder
        self._toolset = toolset
        self._owner = owner
        self._observers = observers
        self._files = files
        self._started_before = started_before
        self._running: dict[Key, asyncio.Task[Outcome]] = {}
        self.first_started: float | None = None

    @property
    def _blocks(self) -> Sequence[Block]:
        return self._recorder.turn.blocks

    @property
    def _request(self) -> TurnRequest:
        request = self._recorder.turn.request
        assert request is not None
        return request

    def start_early(self, block: Block) -> None:
        """Starts a call whose block just closed, if its tool only reads. Its outcome waits for the round's seal, and
        calls that are the same wait for its outcome.
        """
        if not block.is_call or tool_rounds(self._blocks) > self._request.limits.max_rounds:
            return
        spec = self._spec(block)
        if spec is None or not spec.read_only or self._wants(block) or self._known_outcome(block):
            return
        if self._twin(block, [other for other in self._blocks if other.is_call and other.round == block.round]) is None:
            self._start(block)

    async def answer(self, calls: Sequence[Block], refusal: str | None) -> None:
        """Gives every call its result, or asks a person for it."""
        if refusal is not None:
            for call in calls:
                await self._recorder.settle_call(call, Outcome(refusal, kind="refused"))
            return
        if self._is_new(calls[0].round):
            calls = await self._ask(calls)
        runnable = [call for call in calls if not await self._settle_unrun(call)]
        if runnable:
            await self._recorder.start_calls(runnable)
            await self._settle_all(runnable)

    async def close(self) -> None:
        """Cancels what still runs and waits for it."""
        tasks = list(self._running.values())
        self._running.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- who must be asked -------------------------------------------------------------------------------------------

    def _is_new(self, round: int) -> bool:
        """Nothing was done for this round yet. Its asks are made at once, before any of its calls has a result."""
        known = (ask.round for ask in self._recorder.turn.asks)
        results = (block.round for block in self._blocks if block.type == TOOL_RESULT)
        started = (number for number, _ in self._started_before)
        return not any(number == round for numbers in (known, results, started) for number in numbers)

    async def _ask(self, calls: Sequence[Block]) -> Sequence[Block]:
        """Asks for what needs a person; the other calls are returned."""
        wanted = [(call, kind) for call in calls if (kind := self._wants(call))]
        if wanted:
            await self._recorder.ask([self._ask_for(call, kind) for call, kind in wanted])
        asked = {call.index for call, _ in wanted}
        return [call for call in calls if call.index not in asked]

    def _wants(self, call: Block) -> AskKind | None:
        spec = self._spec(call)
        if spec is None or _key(call) in self._running or is_over_limit(call, self._blocks, self._limit(call)):
            return None
        if spec.client:
            return "client"
        return "approval" if self._toolset.needs_approval(spec.name, call.text, self._request.tools) else None

    def _ask_for(self, call: Block, kind: AskKind) -> Ask:
        assert call.tool_use_id is not None
        assert call.name is not None
        patience = self._policy(call).approval_expiry
        return Ask(
            round=call.round,
            tool_use_id=call.tool_use_id,
            name=call.name,
            kind=kind,
            digest=digest_of(call),
            attempt=self._recorder.turn.attempt,
            expires_at=None if patience is None else datetime.now(UTC) + timedelta(seconds=patience),
        )

    async def judge(self, draft: Block) -> None:
        """Has an output judged that the model wrote as text: for tools and hooks it is as good as a call."""
        call = as_call(draft)
        outcome = await self._run(call)
        await self._recorder.record_verdict(draft, outcome)
        await self._observers.after_tool(AfterTool(self._owner, self._recorder.turn, call, outcome))

    # --- what needs no run -------------------------------------------------------------------------------------------

    async def _settle_unrun(self, call: Block) -> bool:
        """Settles a call whose outcome is known, or can never be."""
        outcome, state = self._unrun(call)
        if outcome is not None:
            count_uses(self._label(call), outcome.notes)
            await self._recorder.settle_call(call, outcome, state)
        return outcome is not None

    def _unrun(self, call: Block) -> tuple[Outcome | None, CallState]:
        if self._may_have_happened(call):
            return Outcome(OUTCOME_UNKNOWN, is_error=True), "unknown"
        ask = self._ask_of(call)
        if ask is not None and ask.answer is not None and ask.answer.kind != "approve":
            outcome = outcome_of_answer(ask, ask.answer)
            return self._toolset.fitted(ask.name, outcome, ask.tool_use_id, self._request.tools), "settled"
        return self._known_outcome(call), "settled"

    def _may_have_happened(self, call: Block) -> bool:
        spec = self._spec(call)
        repeatable = spec is None or spec.read_only or spec.retry_safe
        return _key(call) in self._started_before and not repeatable

    def _known_outcome(self, call: Block) -> Outcome | None:
        if _key(call) in self._running:
            return None
        limit = self._limit(call)
        if limit is not None and is_over_limit(call, self._blocks, limit):
            return over_limit(call, limit)
        harmless = {spec.name for spec in self._request.tools if spec.read_only}
        return earlier_result(call, self._blocks, harmless) if self._is_remembered(call) else None

    def _limit(self, call: Block) -> int | None:
        return self._policy(call).calls_per_turn

    def _policy(self, call: Block) -> Policy:
        return self._toolset.policy(call.name or "", self._request.tools)

    def _is_remembered(self, call: Block) -> bool:
        spec = self._spec(call)
        return spec is not None and spec.read_only and self._policy(call).memo and self._edited(call) is None

    # --- runs --------------------------------------------------------------------------------------------------------

    async def _settle_all(self, calls: Sequence[Block]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for call in calls:
                    group.create_task(self._settle(call, self._twin(call, calls)))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        for call in calls:
            self._running.pop(_key(call), None)

    def _twin(self, call: Block, calls: Iterable[Block]) -> Block | None:
        """An identical call of this round that came first and is remembered."""
        if not self._is_remembered(call):
            return None
        first = next(other for other in calls if same_call(other, call) and self._is_remembered(other))
        return None if first is call else first

    async def _settle(self, call: Block, twin: Block | None) -> None:
        if twin is not None:
            outcome = await asyncio.shield(self._start(twin))
            if not outcome.is_error:
                memo = replace(outcome, notes={"memo": twin.tool_use_id})
                count_uses(self._label(call), memo.notes)
                return await self._recorder.settle_call(call, memo)
        outcome = await self._start(call)
        await self._recorder.settle_call(call, outcome)
        await self._observers.after_tool(AfterTool(self._owner, self._recorder.turn, call, outcome))
        return None

    def _start(self, call: Block) -> asyncio.Task[Outcome]:
        task = self._running.get(_key(call))
        if task is None:
            self.first_started = self.first_started or perf_counter()
            task = self._running[_key(call)] = asyncio.create_task(self._run(call))
        return task

    async def _run(self, call: Block) -> Outcome:
        turn, ask, edited = self._recorder.turn, self._ask_of(call), self._edited(call)
        assert call.name is not None
        assert call.tool_use_id is not None
        context = ToolContext(
            owner=self._owner,
            chat_id=turn.chat_id,
            turn_id=turn.id,
            tool_use_id=call.tool_use_id,
            idempotency_key=f"{turn.id}:{call.round}:{call.tool_use_id}",
            progress=partial(self._progress, call),
        )
        input_json = call.text if edited is None else edited
        await self._observers.before_tool(BeforeTool(self._owner, turn, call, input_json))
        started_at, start = datetime.now(UTC), perf_counter()
        outcome = await self._outcome(call, input_json, context)
        seconds = perf_counter() - start
        label = self._label(call)
        TOOL_SECONDS.labels(label).observe(seconds)
        TOOL_OUTCOMES.labels(label, outcome.kind).inc()
        times = {"started_at": started_at.isoformat(timespec="milliseconds"), "seconds": round(seconds, 3)}
        outcome = replace(outcome, notes={**times, **outcome.notes})
        return await self._files.kept(outcome if ask is None else with_approval(outcome, edited))

    async def _outcome(self, call: Block, input_json: str, context: ToolContext) -> Outcome:
        role, output = self._role(call), self._request.output
        if role is None or output is None:
            return await self._toolset.run(call.name or "", input_json, context, offered=self._request.tools)
        draft = input_json if role == "output" else self._draft_before(call)
        return await self._toolset.outputs.settle(role, output, draft, context)

    def _role(self, call: Block) -> ToolRole | None:
        if call.type == TEXT:
            return "output"
        spec = self._spec(call)
        return None if spec is None else spec.role

    def _draft_before(self, submit: Block) -> str | None:
        """What a model submits: the last draft that was taken, or is about to be in the same reply."""
        failed = {_key(block) for block in self._blocks if block.type == TOOL_RESULT and block.is_error}
        drafts = [block for block in self._blocks if block.is_call and block.index < submit.index]
        mine = [b for b in drafts if (spec := self._spec(b)) and spec.role == "output" and _key(b) not in failed]
        return mine[-1].text if mine else None

    def _progress(self, call: Block, message: str) -> None:
        self._recorder.notify("tool_progress", tool_use_id=call.tool_use_id, name=call.name, message=message)

    def _label(self, call: Block) -> str:
        """For metrics: what a model or a client makes up would be a series of its own for ever."""
        spec = self._spec(call)
        if call.type == TEXT:
            return OUTPUT
        if spec is None:
            return "(unknown)"
        return "(declared)" if spec.http or spec.client else spec.name

    def _spec(self, call: Block) -> ToolSpec | None:
        return next((spec for spec in self._request.tools if spec.name == call.name), None)

    def _ask_of(self, call: Block) -> Ask | None:
        asks = self._recorder.turn.asks
        return next((ask for ask in asks if (ask.round, ask.tool_use_id) == _key(call)), None)

    def _edited(self, call: Block) -> str | None:
        """The input that a person put in the place of the model's."""
        ask = self._ask_of(call)
        return None if ask is None or ask.answer is None else ask.answer.input


def _key(call: Block) -> Key:
    return call.round, call.tool_use_id
