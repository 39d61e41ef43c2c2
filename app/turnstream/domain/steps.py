"""Decides the next step of a turn, and how to settle an interrupted round. Pure functions, which accept any rows."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import takewhile
from typing import Any, Literal
from uuid import UUID

from turnstream.domain.asks import Ask, Steer
from turnstream.domain.assembly import handed_over
from turnstream.domain.blocks import Block
from turnstream.domain.compaction import compaction_needed
from turnstream.domain.history import COMPACTED
from turnstream.domain.jobs import Job
from turnstream.domain.kinds import SERVER_CALLS, STEERED, TEXT, THOUGHTS, TOOL_RESULT, USER_TEXT, kind_of
from turnstream.domain.limits import (
    BUDGET,
    FamilyUse,
    budget_sentence,
    calls_are_spent,
    calls_over_limit,
    counted_calls,
    round_limit,
    rounds_with_calls,
    spent_budget,
)
from turnstream.domain.output import failure_of, output_progress, unjudged_draft
from turnstream.domain.rounds import Round
from turnstream.domain.turns import Limits, Turn

INTERRUPTED = "interrupted"
VOIDED = "voided"
MAX_TOOL_ROUNDS = "max_tool_rounds"
MAX_CALLS = "max_calls"

# After these stop reasons, the provider expects its reply back unchanged, and continues the reply.
PAUSED = frozenset({"pause_turn", "compaction"})

_OF_A_TEXT = THOUGHTS | {TEXT}
_GOES_ON = PAUSED | {INTERRUPTED}
_WHOLE = frozenset({"end_turn", "stop_sequence", "tool_use"})
_CLIENT_TOOL = (
    "The model called {name!r}, a tool of its provider that the provider's client must run or decide about. This server"
    " does not: request the tool in a form that the provider runs by itself (such as `execution` `server`, or"
    " `require_approval` `never`), or leave it out of the turn's `tools`."
)
_NOT_RUN = {
    "refusal": "This call was not run: the reply was refused.",
    "cancelled": "This call was not run: the turn was cancelled.",
    "error": "This call was not run: the turn ended with an error.",
}


@dataclass(frozen=True, slots=True)
class CallModel:
    """Call the model for round `round`. If `tools` is False, the model must not call tools."""

    round: int
    tools: bool = True


@dataclass(frozen=True, slots=True)
class Shorten:
    """From now on, shorten the tool results that `block` names."""

    block: Block


@dataclass(frozen=True, slots=True)
class Compact:
    """Summarise the turns up to `through`, in round `round`."""

    round: int
    through: UUID


@dataclass(frozen=True, slots=True)
class RunTools:
    """Give each call its only result: run the call or, if `refusal` is set, answer with this reason not to run it."""

    calls: tuple[Block, ...]
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class JudgeOutput:
    """Judge an output that the model wrote as text."""

    draft: Block


@dataclass(frozen=True, slots=True)
class HandOver:
    """Make `result`, the answer of an agent, the answer of the turn."""

    result: Block


@dataclass(frozen=True, slots=True)
class AwaitClient:
    """Wait for a person's answer to one of `asks`, or for the end of one of `jobs`. There is no other work."""

    asks: tuple[Ask, ...]
    jobs: tuple[Job, ...] = ()


@dataclass(frozen=True, slots=True)
class ApplySteers:
    """Add `steers`, which are messages of the user and reports of jobs, to the turn."""

    steers: tuple[Steer, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """End the turn as complete."""

    stop_reason: str


@dataclass(frozen=True, slots=True)
class Fail:
    """End the turn as failed. `type` is the name of the failure, `details` are its figures."""

    type: str
    message: str
    details: Mapping[str, Any] | None = None


Step = CallModel | Shorten | Compact | RunTools | JudgeOutput | HandOver | AwaitClient | ApplySteers | Finish | Fail


def next_step(
    turn: Turn,
    ancestors: Sequence[Turn] = (),
    tokens: int | None = None,
    now: datetime | None = None,
    family: FamilyUse | None = None,
) -> Step:
    """Returns the next step of an assistant turn that has no unsettled round. `ancestors` are the earlier turns, from
    the root. `tokens` is the counted size of the next request, if known. `now` is the time, which the budget of seconds
    needs. `family` is the family's use of the shared budgets.
    """
    step = _within_budget(_next_step(turn), turn, now, family)
    if isinstance(step, CallModel) and not is_paused(turn):
        return compaction_step(step.round, [*ancestors, turn], tokens=tokens) or step
    return step


def _within_budget(step: Step, turn: Turn, now: datetime | None, family: FamilyUse | None) -> Step:
    """Returns the step or, if a budget is spent, a step that ends the turn or refuses calls. Output calls still run."""
    if not isinstance(step, CallModel | RunTools) or (spent := spent_budget(turn, now, family)) is None:
        return step
    sentence = budget_sentence(spent, family)
    if isinstance(step, CallModel):
        return Fail(BUDGET, sentence, asdict(spent))
    counted = {call.key for call in counted_calls(turn)}
    refused = tuple(call for call in step.calls if call.key in counted)
    if step.refusal is not None or not refused:
        return step
    return RunTools(refused, f"This call was not run: the turn's budget is used up. {sentence}")


def compaction_step(
    round: int, path: Sequence[Turn], *, tokens: int | None = None, forced: bool = False
) -> Shorten | Compact | None:
    """Returns the step before round `round` if the path is too long. `forced`: the provider has refused the path."""
    needed = compaction_needed(path, tokens=tokens, forced=forced)
    if needed is None:
        return None
    return Shorten(needed) if isinstance(needed, Block) else Compact(round, needed)


def is_paused(turn: Turn) -> bool:
    """Returns True if the provider will continue its last reply. Until then, no other block may follow the reply."""
    sealed = [round for round in turn.rounds if round.sealed]
    return bool(sealed) and sealed[-1].stop_reason in PAUSED


def _next_step(turn: Turn) -> Step:
    assert turn.request is not None
    limits = turn.request.limits
    sealed = [round for round in turn.rounds if round.sealed]
    if not sealed:
        return ApplySteers(turn.steers) if turn.steers else _call_model(turn, 1)
    last = sealed[-1]
    with_calls = rounds_with_calls(turn.blocks)
    if unanswered := unanswered_calls(turn.blocks):
        return _answer_calls(turn, unanswered, last, len(with_calls))
    if draft := unjudged_draft(turn):
        return JudgeOutput(draft)
    pauses = takewhile(lambda round: round.stop_reason in _GOES_ON, reversed(sealed))
    paused = len(list(pauses))
    goes_on = 0 < paused <= max(limits.max_rounds, limits.max_recoveries)
    if turn.steers and not (goes_on and last.stop_reason in PAUSED):
        return ApplySteers(turn.steers)
    steered = any(block.type in STEERED and block.round == last.number for block in turn.blocks)
    if steered or last.stop_reason == COMPACTED:
        return _call_model(turn, last.number + 1)
    if turn.request.output is not None:
        progress = output_progress(turn)
        if progress.accepted is not None:
            return Finish("output")
        failure = failure_of(progress, turn.request.output)
        return Fail(failure.type, failure.message, failure.details) if failure else CallModel(last.number + 1)
    if with_calls and with_calls[-1] == last.number:
        return _after_tools(turn, last, len(with_calls), limits)
    if goes_on:
        return _call_model(turn, last.number + 1)
    if last.stop_reason in PAUSED:
        times = f"{paused} times in a row ({last.stop_reason})"
        return Fail("not_finished", f"The provider paused its reply {times}, and did not finish it.")
    if last.stop_reason in _WHOLE and (call := _call_for_client(turn.blocks, last)):
        return Fail("client_tool", _CLIENT_TOOL.format(name=call.name))
    return Finish(last.stop_reason or "end_turn")


def _call_for_client(blocks: Sequence[Block], last: Round) -> Block | None:
    """Returns a provider's tool call at the end of the reply, if the provider expects the result from its client."""
    answered = {block.tool_use_id for block in blocks if kind_of(block.type).family == "server_result"}
    for block in reversed([block for block in blocks if block.round == last.number]):
        if block.type in SERVER_CALLS and block.tool_use_id not in answered:
            return block
        if block.type == TEXT and block.text.strip():
            return None
    return None


def _answer_calls(turn: Turn, unanswered: tuple[Block, ...], last: Round, tool_rounds: int) -> RunTools | AwaitClient:
    if tool_rounds > (limit := round_limit(turn)):
        return RunTools(unanswered, f"This call was not run: the limit of {limit} tool rounds is reached.")
    if last.stop_reason in _NOT_RUN:
        return RunTools(unanswered, _NOT_RUN[last.stop_reason])
    waiting = {(ask.round, ask.call_id): ask for ask in turn.asks if ask.holds_call}
    working = {job.key: job for job in turn.open_jobs}
    if ready := tuple(call for call in unanswered if call.key not in waiting and call.key not in working):
        return RunTools(ready)
    return AwaitClient(
        tuple(waiting[call.key] for call in unanswered if call.key in waiting),
        tuple(working[call.key] for call in unanswered if call.key in working),
    )


def _call_model(turn: Turn, number: int) -> CallModel:
    spent = tool_rounds(turn.blocks) >= round_limit(turn) or calls_are_spent(turn)
    return CallModel(number, tools=not (spent or tools_have_failed(turn)))


def _after_tools(turn: Turn, last: Round, tool_rounds: int, limits: Limits) -> Step:
    if last.stop_reason in _NOT_RUN:
        return Finish(last.stop_reason or "")
    if not limits.continue_after_tools:
        return Finish("tool_use")
    if (result := handed_over(turn, last.number)) is not None:
        return HandOver(result)
    limit, stops = round_limit(turn), limits.on_max_rounds == "stop"
    if tool_rounds > limit or (tool_rounds == limit and stops):
        return Finish(MAX_TOOL_ROUNDS)
    refused = calls_over_limit(turn)
    goes_on_calling = bool(refused) and all(
        call in refused for call in turn.blocks if call.round == last.number and call.is_call
    )
    if goes_on_calling or (stops and calls_are_spent(turn)):
        return Finish(MAX_CALLS)
    return _call_model(turn, last.number + 1)


def unanswered_calls(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """Returns the calls that have no result yet, in the order of the calls."""
    calls = [block for block in blocks if block.is_call]
    if not calls:  # avoids a second pass over the blocks, of which an answer may have tens of thousands
        return ()
    answered = {block.key for block in blocks if block.type == TOOL_RESULT}
    return tuple(call for call in calls if call.key not in answered)


def failed_rounds(blocks: Sequence[Block], last: int | None = None) -> int:
    """Returns the number of consecutive rounds, up to round `last` or to the last round, in which all calls failed. A
    message of the user restarts the count, unless the message is blank, because requests omit blank messages.
    """
    numbers = [number for number in rounds_with_calls(blocks) if last is None or number <= last]
    if not numbers:
        return 0
    spoken = max(
        (
            block.round
            for block in blocks
            if block.type == USER_TEXT and block.text.strip() and (last is None or block.round <= last)
        ),
        default=0,
    )
    count = 0
    for number in reversed(numbers):
        results = [block for block in blocks if block.round == number and block.type == TOOL_RESULT]
        if number <= spoken or not all(result.is_error for result in results):
            break
        count += 1
    return count


def tools_have_failed(turn: Turn, last: int | None = None) -> bool:
    """Returns True after the maximum of failed rounds. The model must then answer without tools."""
    assert turn.request is not None
    if turn.request.output is not None:  # a structured turn has a limit of attempts instead
        return False
    return failed_rounds(turn.blocks, last) >= turn.request.limits.max_failed_rounds


def tool_rounds(blocks: Sequence[Block]) -> int:
    """Returns the number of rounds that have tool calls."""
    return len(rounds_with_calls(blocks))


Settlement = Literal["seal", "keep", "void", "give_up"]


def settle(turn: Turn, open_block: Block | None, recoveries: int) -> Settlement:
    """Decides how to treat the unsealed round after a crash, or after a failure of the provider.

    `seal`: the round has a complete call, so the server seals the round and runs its calls. `keep`: the text of the
    round stays as an interrupted block, and the model continues. `void`: the server deletes the blocks of the round,
    and calls the model again. `give_up`: there were too many interruptions. `open_block` is the block that was being
    written. `recoveries` counts the interruptions since the last progress, including this interruption if it counts.
    """
    assert turn.request is not None
    limits = turn.request.limits
    mine = [block for block in turn.blocks if block.round == open_round_number(turn)]
    if any(block.is_call for block in mine):
        return "seal"
    if recoveries > limits.max_recoveries:
        return "give_up"
    texts = [block.text for block in (*mine, open_block) if block is not None and block.type == TEXT]
    return "keep" if limits.recovery == "continue" and any(map(str.strip, texts)) else "void"


def text_to_continue(turn: Turn) -> tuple[str, str]:
    """Returns the text of the answer before the interrupted text, and the interrupted text at the end, which the next
    reply continues. Both texts are empty if no reply was interrupted.
    """
    interrupted = {round.number for round in turn.rounds if round.stop_reason == INTERRUPTED}
    if open_round_number(turn) - 1 not in interrupted:
        return "", ""
    begin = len(turn.blocks)
    while begin and (block := turn.blocks[begin - 1]).round in interrupted:
        if not (block.type in _OF_A_TEXT or block.interrupted):
            break
        begin -= 1
    earlier = "\n".join(block.text for block in turn.blocks[:begin] if block.type == TEXT)
    return earlier, "".join(block.text for block in turn.blocks[begin:] if block.type == TEXT)


def open_round_number(turn: Turn) -> int:
    """Returns the number of the round after the last sealed round, even if that round has not begun."""
    return 1 + max((round.number for round in turn.rounds if round.sealed), default=0)
