"""The gate of tool calls: decides from the rows of a turn whether and how its calls run.

Everything here is pure; `app/turnstream/engine/tool_runs.py` executes the decisions.
"""

import json
from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, assert_never

from msgspec.json import Decoder

from turnstream.domain.asks import Ask, AskAnswer, AskKind, Grant, digest_of
from turnstream.domain.blocks import Block, CallKey, CallState
from turnstream.domain.kinds import TEXT, TOOL_RESULT
from turnstream.domain.limits import calls_over_limit, round_limit
from turnstream.domain.steps import tool_rounds
from turnstream.domain.turns import ToolRole, ToolSpec, Turn, TurnRequest
from turnstream.kit.json_values import has_too_many_values
from turnstream.tools.grants import covers
from turnstream.tools.policy import Policy, repeatable
from turnstream.tools.tool import RETURNED_NOTHING, Outcome, PersonAnswer
from turnstream.tools.toolset import Toolset

OUTCOME_UNKNOWN = (
    "The server stopped while this call was running. Find out whether it took effect before you call again."
)

# The answer to an ask of the kind `sign_in`, after the person has signed in.
SIGNED_IN: Final = {"action": "accept", "content": None}

NO_JOBS: Final = "This call was not run: it needs to run in the background, and this server runs no such calls."
TOO_MANY_CALLS = "This call was not run: the limit of {} tool calls in a turn is reached."


@dataclass(frozen=True, slots=True)
class RunCall:
    """The call runs with `input_json`. `approval` is the person's permission, if the call needed one."""

    input_json: str
    approval: AskAnswer | None = None


@dataclass(frozen=True, slots=True)
class StartJob:
    """The call becomes a job with `input_json`. With `reports`, the turn does not wait for the job."""

    input_json: str
    reports: bool = False


@dataclass(frozen=True, slots=True)
class SettleUnrun:
    """The call gets `outcome` and does not run. `from_client` is true for a result that comes from a client or another
    program, and is not cut to size yet. If the call ran as a `job`, its outcome is treated like the outcome of a call
    in this process.
    """

    outcome: Outcome
    state: CallState = "settled"
    from_client: bool = False
    job: RunCall | None = None


@dataclass(frozen=True, slots=True)
class JobEnd:
    """The outcome of a job, as its row has it in JSON. With `from_elsewhere`, the outcome is not cut to size yet."""

    outcome: Outcome
    state: CallState = "settled"
    from_elsewhere: bool = False


UNKNOWN_END = JobEnd(Outcome(OUTCOME_UNKNOWN, is_error=True), "unknown")
_job_end = Decoder(JobEnd)


def end_of(outcome: str) -> JobEnd:
    """Decodes the end of a job from the JSON text of its row."""
    return _job_end.decode(outcome)


@dataclass(frozen=True, slots=True)
class ToolGate:
    """Decides about the calls of a turn.

    `started_before` are calls that an earlier attempt started and that have no stored end. `running` are calls that
    this run started before the seal of their round.
    """

    turn: Turn
    toolset: Toolset
    started_before: Set[CallKey] = frozenset()
    running: Collection[CallKey] = ()

    # --- decisions ---------------------------------------------------------------------------------------------------

    def may_start_early(self, call: Block) -> bool:
        """Whether the call may run before its round is sealed: its tool is `read_only`, and no other rule settles it. A
        call that repeats another call of its round waits for the outcome of the other call.
        """
        blocks, spec = self.turn.blocks, self.spec(call)
        if not call.is_call or tool_rounds(blocks) > round_limit(self.turn) or call in calls_over_limit(self.turn):
            return False
        if spec is None or not spec.read_only or self._ask_kind(call) or self._known_outcome(call):
            return False
        if self._policy(call).background:
            return False
        return self.first_of_same(call, [b for b in blocks if b.is_call and b.round == call.round]) is None

    def asks(self, calls: Sequence[Block], now: datetime) -> list[Ask]:
        """Returns the asks for those calls of a round that need a person. All asks are created together and only once,
        before any call of the round has a result.
        """
        round = calls[0].round
        results = [block.round for block in self.turn.blocks if block.type == TOOL_RESULT]
        asked = [ask.round for ask in self.turn.asks if ask.question is None]
        started = [number for number, _ in self.started_before]
        if round in {*results, *asked, *started}:
            return []
        over = calls_over_limit(self.turn)
        return [self._ask(call, kind, now) for call in calls if call not in over and (kind := self._ask_kind(call))]

    def decide(self, call: Block, refusal: str | None = None) -> RunCall | StartJob | SettleUnrun:
        """Decides about a call that waits for no person. With `refusal`, no call of its round may run."""
        if (end := self.end_of_job(call)) is not None:
            return SettleUnrun(end.outcome, end.state, end.from_elsewhere, job=self.run_of(call))
        spec = self.spec(call)
        if call.key in self.started_before and spec is not None and not repeatable(spec):
            # An earlier attempt started the call. Its outcome is unknown, and a second run may do harm.
            return SettleUnrun(Outcome(OUTCOME_UNKNOWN, is_error=True), "unknown")
        ask = self._ask_of(call)
        if ask is not None and ask.answer is not None and ask.answer.kind != "approve":
            return SettleUnrun(outcome_of_answer(ask, ask.answer), from_client=True)
        if (outcome := self._without_sign_in(call)) is not None:
            return SettleUnrun(outcome)
        if refusal is not None:
            return SettleUnrun(Outcome(refusal, kind="refused"))
        if call in calls_over_limit(self.turn):
            return SettleUnrun(Outcome(TOO_MANY_CALLS.format(self._request.limits.max_calls), kind="refused"))
        if (outcome := self._known_outcome(call)) is not None:
            return SettleUnrun(outcome)
        run, policy = self.run_of(call), self._policy(call)
        if policy.background and not self.toolset.runs_jobs:
            return SettleUnrun(Outcome(NO_JOBS, is_error=True))
        return StartJob(run.input_json, policy.reports) if policy.background else run

    def _without_sign_in(self, call: Block) -> Outcome | None:
        """Returns the outcome of a call that needed a sign-in, if the person did not sign in."""
        asked = [ask for ask in self.turn.asks if ask.kind == "sign_in" and (ask.round, ask.call_id) == call.key]
        answer = asked[-1].answer if asked else None
        if answer is None:
            return None
        if answer.kind == "result":
            if _parsed(answer.text) == SIGNED_IN:
                return None
            text, decision = "The user did not sign in.", "denied"
        elif answer.kind == "superseded":
            text, decision = "The user said something else instead of signing in.", "superseded"
        else:
            text, decision = "Nobody signed in in time.", "expired"
        return Outcome(f"This call was not run: {text}", kind="refused", notes={"sign_in": {"decision": decision}})

    def end_of_job(self, call: Block) -> JobEnd | None:
        """Returns the end of the call's job; None if the call has no job. The end of a running job is unknown, because
        the result of the call stops the job.
        """
        job = next((job for job in self.turn.jobs if job.key == call.key), None)
        if job is None:
            return None
        return UNKNOWN_END if job.outcome is None else end_of(job.outcome)

    def run_of(self, call: Block) -> RunCall:
        """Returns the call with the input to run: the input from the model, or the input as a person has edited it."""
        ask, edited = self._ask_of(call), self._edited_input(call)
        return RunCall(call.text if edited is None else edited, None if ask is None else ask.answer)

    def first_of_same(self, call: Block, calls: Iterable[Block]) -> Block | None:
        """Returns the first of `calls` that is identical to `call`, if they may share its outcome."""
        if not self._has_memo(call):
            return None
        first = next(other for other in calls if same_call(other, call) and self._has_memo(other))
        return None if first is call else first

    def submitted_draft(self, submit: Block) -> str | None:
        """Returns the draft that a call of the submit tool submits: the last successful draft before the call."""
        failed = {block.key for block in self.turn.blocks if block.type == TOOL_RESULT and block.is_error}
        calls = [block for block in self.turn.blocks if block.is_call and block.index < submit.index]
        drafts = [call for call in calls if self.role(call) == "output" and call.key not in failed]
        return drafts[-1].text if drafts else None

    def approvers(self, call: Block) -> tuple[str, ...]:
        """Returns the only principals who may answer for the call; if there are none, the owner may."""
        return tuple(self._policy(call).approvers)

    def role(self, call: Block) -> ToolRole | None:
        """Returns the role of a call in a structured turn. An output in plain text has the role `output`."""
        if call.type == TEXT:
            return "output"
        spec = self.spec(call)
        return None if spec is None else spec.role

    def spec(self, call: Block) -> ToolSpec | None:
        return next((spec for spec in self._request.tools if spec.name == call.name), None)

    # --- what decides ------------------------------------------------------------------------------------------------

    @property
    def _request(self) -> TurnRequest:
        assert self.turn.request is not None
        return self.turn.request

    def _policy(self, call: Block) -> Policy:
        return self.toolset.policy(call.name or "", self._request.tools)

    def _ask_kind(self, call: Block) -> AskKind | None:
        spec, limit = self.spec(call), self._policy(call).calls_per_turn
        if spec is None or call.key in self.running or is_over_limit(call, self.turn.blocks, limit):
            return None
        if spec.client:
            return "client"
        return "approval" if self.toolset.needs_approval(spec.name, call.text, self._request.tools) else None

    def _ask(self, call: Block, kind: AskKind, now: datetime) -> Ask:
        assert call.tool_use_id is not None
        assert call.name is not None
        spec = self.spec(call)
        expiry = spec.expiry if spec and kind == "client" else self._policy(call).approval_expiry
        return Ask(
            round=call.round,
            tool_use_id=call.tool_use_id,
            name=call.name,
            kind=kind,
            digest=digest_of(call),
            attempt=self.turn.attempt,
            expires_at=None if expiry is None else now + timedelta(seconds=expiry),
            tool_digest=self.toolset.tool_digest(call.name, self._request.tools) if kind == "approval" else None,
            approvers=self.approvers(call) if kind == "approval" else (),
        )

    def _ask_of(self, call: Block) -> Ask | None:
        return next((ask for ask in self.turn.asks if ask.key == call.key), None)

    def _edited_input(self, call: Block) -> str | None:
        ask = self._ask_of(call)
        return None if ask is None or ask.answer is None else ask.answer.input

    def _known_outcome(self, call: Block) -> Outcome | None:
        if call.key in self.running:
            return None
        limit = self._policy(call).calls_per_turn
        if limit is not None and is_over_limit(call, self.turn.blocks, limit):
            return over_limit(call, limit)
        read_only = {spec.name for spec in self._request.tools if spec.read_only}
        return earlier_result(call, self.turn.blocks, read_only) if self._has_memo(call) else None

    def _has_memo(self, call: Block) -> bool:
        """Whether identical calls share one outcome. A call with an edited input shares no outcome."""
        spec = self.spec(call)
        return spec is not None and spec.read_only and self._policy(call).memo and self._edited_input(call) is None


# --- limits and memo -------------------------------------------------------------------------------------------------


def is_over_limit(call: Block, blocks: Iterable[Block], limit: int | None) -> bool:
    """Whether at least `limit` calls of the same tool precede this call."""
    if limit is None:
        return False
    return sum(other.is_call and other.name == call.name and other.index < call.index for other in blocks) >= limit


def over_limit(call: Block, limit: int) -> Outcome:
    text = f"This call was not run: {call.name} has reached its limit of {limit} calls in one turn."
    return Outcome(text, kind="refused", notes={"calls_per_turn": limit})


def earlier_result(call: Block, blocks: Sequence[Block], read_only: Collection[str | None]) -> Outcome | None:
    """Returns the result of an identical earlier call of this turn. None if that call failed, or if a later call of a
    tool that is not `read_only` may have changed the data.
    """
    results = {block.key: block for block in blocks if block.type == TOOL_RESULT and _is_reusable(block)}
    for other in reversed([block for block in blocks if block.is_call and block.index < call.index]):
        if other.name not in read_only:
            break
        if same_call(other, call) and (result := results.get(other.key)):
            notes = {"memo": other.tool_use_id}
            return Outcome(result.text, notes=notes, layout=result.data, data=_parsed(result.client_data or "null"))
    return None


def _is_reusable(result: Block) -> bool:
    """True unless the call failed or a person edited its input."""
    notes = json.loads(result.notes or "{}")
    return not result.is_error and "input" not in notes.get("approval", {})


def same_call(one: Block, other: Block) -> bool:
    return one.name == other.name and _parsed(one.text) == _parsed(other.text)


def _parsed(input_json: str) -> object:
    if has_too_many_values(input_json):
        return input_json
    try:
        return json.loads(input_json or "{}")
    except (ValueError, RecursionError):
        return input_json


# --- grants ----------------------------------------------------------------------------------------------------------


def with_grants(asks: Sequence[Ask], calls: Iterable[Block], grants: Sequence[Grant]) -> list[Ask]:
    """Returns the asks for `calls`, and answers each ask that has a matching grant. The row of such an ask names the
    grant, which may be revoked before the call runs.
    """
    inputs = {call.key: call.text for call in calls}
    answered = []
    for ask in asks:
        text = inputs[ask.key]
        grant = next((grant for grant in grants if covers(grant, ask.name, ask.tool_digest, text)), None)
        answered.append(ask if grant is None else replace(ask, answer=AskAnswer("approve", grant=grant.id)))
    return answered


# --- answers of persons ----------------------------------------------------------------------------------------------


def outcome_of_answer(ask: Ask, answer: AskAnswer) -> Outcome:
    """Returns the outcome of a call that does not run here: its client ran it, or a person refused it."""
    match answer.kind:
        case "result":
            empty = "" if answer.layout else RETURNED_NOTHING
            data = _parsed(answer.client_data or "null")
            return Outcome(answer.text or empty, is_error=answer.is_error, layout=answer.layout, data=data)
        case "deny":
            reason = f" The user says: {answer.text}" if answer.text else ""
            text, decision = f"The user did not allow this call of {ask.name}.{reason}", "denied"
        case "expired":
            text, decision = "This call was not run: nobody answered in time.", "expired"
        case "superseded":
            text = "This call was not run: the user said something else instead of answering."
            decision = "superseded"
        case "approve":
            raise AssertionError("an approved call is run")
        case _:
            assert_never(answer.kind)
    return Outcome(text, kind="refused", notes={"approval": {"decision": decision} | _by(answer)})


def person_answer(answer: AskAnswer | None) -> PersonAnswer | None:
    """Returns the answer to a question that a tool asked; None if the question expired."""
    if answer is None or answer.kind == "expired":
        return None
    return PersonAnswer(**json.loads(answer.text)) if answer.kind == "result" else PersonAnswer("cancel")


def _by(answer: AskAnswer) -> dict[str, str]:
    """Returns the person who decided for the owner, for the notes of the result."""
    return {} if answer.by is None else {"by": answer.by}


def with_approval(outcome: Outcome, approval: AskAnswer) -> Outcome:
    """Returns the outcome of an approved call, with a note of the approval. Informs the model of an edited input."""
    if approval.grant is not None:
        note = {"decision": "remembered", "grant": str(approval.grant)}
        return replace(outcome, notes={**outcome.notes, "approval": note})
    if approval.input is None:
        return replace(outcome, notes={**outcome.notes, "approval": {"decision": "approve"} | _by(approval)})
    notice = f"The user changed the input to {approval.input} before allowing the call."
    notes = {**outcome.notes, "approval": {"decision": "approve", "input": approval.input} | _by(approval)}
    return replace(outcome.with_parts(notice, *outcome.parts), notes=notes)
