"""Messages of the next model call, built from the turns of a path. Pure; rows are never changed.

Two promises hold, each with a property test. The provider accepts the messages of every path. Each request begins with
the bytes of the request before, so that the provider's cache and its signatures stay valid: an omitted block stays
omitted. (There are exceptions. A call of a server tool that has no result at the end of its turn is omitted afterwards.
The messages change at the position of a summary or of shortened results.)
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID

from turnstream.domain.blocks import REJECTED, Block, caller_of
from turnstream.domain.compaction import COMPACTION, CONTEXT_EDITING
from turnstream.domain.history import (
    COMPACTED,
    earlier_results_of,
    shortenings_on,
    summary_on,
    turns_after_summary,
    with_earlier_results,
)
from turnstream.domain.kinds import REPORT, SERVER_CALLS, STEERED, SUMMARY, TEXT, THOUGHTS, TOOL_RESULT, VERDICT
from turnstream.domain.limits import calls_are_spent, round_limit, rounds_with_calls
from turnstream.domain.results import count_files
from turnstream.domain.rounds import Round
from turnstream.domain.steps import INTERRUPTED, PAUSED, tools_have_failed
from turnstream.domain.turns import Turn, TurnRequest
from turnstream.llm.conversation.sendable import (
    GOES_ON,
    RoleBlock,
    drop_blank_reply,
    drop_last_thoughts,
    group_by_role,
    is_blank,
    is_sendable,
    model_of,
    sendable_blocks,
    server_is_at_work,
    with_shortenings,
)
from turnstream.llm.provider import Message

# The repeated words show the seam, which removes them (app/turnstream/llm/conversation/seam.py).
GO_ON = (
    "Your reply was cut off, and what you have written stands. Begin with its last few words, exactly as they are, and"
    " go on from there. Do not begin anew, and say nothing about the interruption."
)
# For a fallback that cannot continue a reply that the client has begun. The answer of the fallback has no seam.
GO_ON_FROM_BEGUN = "Your reply was begun for you. Go on behind its last word, and repeat nothing of it."
SUMMARISED = "The conversation so far, in a summary:\n\n"
SUMMARISE = (
    "The conversation above has become too long. It will be replaced by a summary, which is all that you will know of"
    " it. Write that summary: what the user wants, facts, names, figures, decisions, what was tried; results of tools"
    " that still matter; what is open. Leave nothing out that may be asked about later. Write only the summary."
)
NO_OUTPUT = "You replied without calling a tool. Go on with your work, and give its result by calling the tool {}."
NO_TEXT = "You replied with nothing. Go on with your work, and write its result."
NO_RESULT = "No result of this call is known: it was interrupted, and it may or may not have had an effect."
GIVEN_UP = (
    "All tools have failed several times in a row, so you cannot use any more of them. Tell the user what you wanted to"
    " find out or do, that the tools failed, and what you can say without them."
)
PROGRAM_CUT = "A program of yours was stopped before its end. It had made these calls:"
# Texts about the remaining rounds, for a turn with `tell_rounds`. A text follows the results of each round. It stays in
# later requests, because its removal would invalidate the cache and the signatures of later thoughts.
ROUNDS_LEFT = "(You can call tools in up to {} more rounds of this answer, several calls at once in each.)"
ONE_ROUND_LEFT = "(You can call tools in one more round of this answer.)"
NO_ROUND_LEFT = "(You cannot call any more tools in this answer: give it now, from what you have.)"
NO_WORDS = "(The message has no text.)"
NO_USER = "(The conversation starts with the assistant.)"
# A provider accepts one result per call, and the call already has a result: the text that its job was started.
REPORTED = (
    "[Result of the call {tool_use_id} of the tool {name}, which ran in the background. The tool has returned it{how};"
    " the user has not written it.]"
)

_RESULT_TO_SUMMARISE = 2_000  # characters
_RESULT_OF_PROGRAM = 500  # characters; such results were for the program, not for the model


class KnownEntries:
    """Keeps the messages that earlier requests made from the turns of a path. An ended turn is sent unchanged as long
    as the rest of the request is unchanged.
    """

    def __init__(self) -> None:
        self._of: dict[UUID, tuple[Turn, tuple[object, ...], Sequence[RoleBlock]]] = {}

    def get(self, turn: Turn, key: tuple[object, ...], make: Callable[[], list[RoleBlock]]) -> Sequence[RoleBlock]:
        """Returns the entries of `turn` by `key`, and makes them if unknown. A changed turn is another object."""
        known = self._of.get(turn.id)
        if known is None or known[0] is not turn or known[1] != key:
            known = self._of[turn.id] = (turn, key, make())
        return known[2]


def build_messages(
    path: Sequence[Turn], model: str | None = None, *, may_use_tools: bool = True, known: KnownEntries | None = None
) -> tuple[Message, ...]:
    """Returns the messages for the running turn, the last turn of `path`. `model` is the called model, if it differs
    from the turn's model. A program that the model runs continues only if `may_use_tools` is true.
    """
    return _build(path, model, known or KnownEntries(), keep_thoughts=True, may_use_tools=may_use_tools)


def messages_to_summarise(path: Sequence[Turn], through: UUID, model: str | None = None) -> tuple[Message, ...]:
    """Returns the messages of the path up to the turn `through`, and the prompt for a summary. `path` ends with the
    running turn. Thoughts are omitted, because their signatures cover the results before them, which are cut here.
    """
    end = next(place for place, turn in enumerate(path, 1) if turn.id == through)
    running = path[-1]
    prompt = replace(running, role="user", request=None, rounds=(), blocks=(Block(0, 0, 0, TEXT, SUMMARISE),))
    summaries = replace(
        running,
        rounds=tuple(round for round in running.rounds if round.stop_reason == COMPACTED),
        blocks=tuple(block for block in running.blocks if block.type == SUMMARY),
    )
    messages = _build([*path[:end], prompt, summaries], model, KnownEntries(), keep_thoughts=False)
    return tuple(replace(message, blocks=tuple(map(_cut_result, message.blocks))) for message in messages)


def _cut_result(block: Block) -> Block:
    """Cuts a long result, and replaces its files by a note of their number."""
    if block.type != TOOL_RESULT:
        return block
    text, files = block.text, count_files(block)
    if len(text) > _RESULT_TO_SUMMARISE:
        text = f"{text[:_RESULT_TO_SUMMARISE]}\n[…]"
    if files:
        text = f"{text}\n[files that are not shown here: {files}]".lstrip()
    return replace(block, text=text, data=None)


def _build(
    path: Sequence[Turn], model: str | None, known: KnownEntries, *, keep_thoughts: bool, may_use_tools: bool = True
) -> tuple[Message, ...]:
    request = path[-1].request
    same_frames: dict[int, bool] = {}  # by request: most turns of a chat share a request
    model = model or (request.model if request else None)
    summary, shortenings = summary_on(path), shortenings_on(path)
    as_stored = path
    path = with_shortenings(as_sent := with_earlier_results(path), shortenings, model)
    running, kept = path[-1], turns_after_summary(path)
    entries: list[RoleBlock] = [("user", Block(0, 0, 0, TEXT, SUMMARISED + summary.text))] if summary else []
    for place, turn in enumerate(kept, len(path) - len(kept)):
        if turn.role == "user":
            words: list[RoleBlock] = [
                ("user", block) for block in turn.blocks if is_sendable(block) and not is_blank(block)
            ]
            # A message without blocks is from a client that has begun the reply.
            entries += words or [("user", Block(0, 0, 0, TEXT, NO_WORDS)) for _ in turn.blocks[:1]]
            continue
        begins = _user_words(turn, 0)  # a report may start a turn directly after an answer
        if not entries or (entries[-1][0] == "assistant" and not begins and not _is_prefilled(path, place)):
            # A path may begin with an assistant turn, or have two in a row; providers accept neither.
            entries.append(("user", Block(0, 0, 0, TEXT, GO_ON if entries else NO_USER)))
        # A signature binds a thought to the content before it. A new form of that content makes the thought invalid.
        valid = [
            number
            for number in (round.number for round in turn.rounds if keep_thoughts)
            if as_sent[place] is as_stored[place]
            and not (summary and (place, number) <= (summary.place, summary.round))
            and not any(shortening.invalidates((place, number)) for shortening in shortenings)
        ]
        then = id(turn.request)
        if then not in same_frames:
            same_frames[then] = _same_frame(turn.request, request)
        make = partial(_entries_of, turn, running, model, valid, same_frames[then], may_use_tools)
        if turn is running:
            entries += make()
        else:
            key = (model, tuple(valid), same_frames[then], earlier_results_of(request), may_use_tools)
            entries += known.get(turn, key, make)
    is_fallback = request is not None and model != request.model
    if is_fallback and entries[-1][0] == "assistant" and _is_prefilled(path, len(path) - 1):
        entries.append(("user", Block(0, 0, 0, TEXT, GO_ON_FROM_BEGUN)))
    return group_by_role(drop_last_thoughts(entries))


def _is_prefilled(path: Sequence[Turn], place: int) -> bool:
    """Whether the client asked that the turn at `place` continue the text before it. Such a turn follows a message
    without blocks, which follows a text. (A message without blocks may also follow results.)
    """
    before = path[max(0, place - 2) : place]
    return [turn.role for turn in before] == ["assistant", "user"] and (
        not before[1].blocks and before[0].blocks[-1:] != () and before[0].blocks[-1].type == TEXT
    )


def _entries_of(
    turn: Turn,
    running: Turn,
    model: str | None,
    valid_thoughts: Collection[int],
    same_frame: bool,
    may_use_tools: bool,
) -> list[RoleBlock]:
    """Returns the messages of an assistant turn, round by round: reply, results of calls, and texts from the user."""
    rounds = sorted((round for round in turn.rounds if round.sealed and not round.voided), key=lambda one: one.number)
    # The next model call completes the server calls of these rounds, unless a text from the user comes between.
    going_on = list(_rounds_going_on(turn, rounds)) if turn is running else []
    blocks = sendable_blocks(turn, rounds, going_on, may_use_tools)
    stopped = _stopped_calls(turn, rounds, blocks)
    entries = [*_rounds_left(turn, 0), *_user_words(turn, 0)]
    for round in rounds:
        reply: Sequence[Block] = [block for block in blocks if block.round == round.number]
        if not same_frame or round.number not in valid_thoughts or model_of(turn, round) != model:
            reply = [block for block in reply if block.type not in THOUGHTS]
        reply = drop_blank_reply(reply)
        at_work = server_is_at_work([block for block in blocks if block.round <= round.number])
        entries += [("assistant", block) for block in reply]
        calls = [block for block in reply if block.is_call]
        entries += [("user", _result_of(turn, call)) for call in calls]
        if not at_work:
            given_up = bool(calls) and turn.request is not None and tools_have_failed(turn, round.number)
            entries += _rounds_left(turn, round.number) if calls and not given_up else ()
            entries += _in_words(turn, round, stopped)
            if given_up:
                # The model cannot see that its tools are gone. The text is last, because a steer may restore the tools
                # if this call fails.
                entries.append(_added_text(GIVEN_UP, entries, round))
        words = _user_words(turn, round.number)
        entries += words
        called_again = turn is running or any(later.number > round.number for later in turn.rounds)
        is_stopped = any(call.round == round.number for call in stopped)
        # If the calls of a turn are omitted, its replies are adjacent.
        without_calls = turn is not running and earlier_results_of(running.request) == "none"
        # A compaction is no reply. The reply before it may have ended with calls of a program that was later stopped.
        goes_on = round.stop_reason in PAUSED or round.stop_reason == COMPACTED
        explains_itself = bool(words) or at_work or is_stopped or without_calls or goes_on
        if called_again and not explains_itself and entries and entries[-1][0] == "assistant":
            entries.append(_added_text(_reason_to_go_on(turn, round), entries, round))
    return entries


def _rounds_going_on(turn: Turn, rounds: Sequence[Round]) -> Iterator[Round]:
    """Yields the last rounds, newest first, while the provider can continue them."""
    for round in reversed(rounds):
        if _user_words(turn, round.number) or round.stop_reason not in GOES_ON | {COMPACTED}:
            return
        if round.stop_reason != COMPACTED:
            yield round


def _stopped_calls(turn: Turn, rounds: Sequence[Round], sent: Sequence[Block]) -> list[Block]:
    """Returns the calls that stopped programs made in `rounds`. Neither the calls nor the programs are sent."""
    programs = {None, *(block.tool_use_id for block in sent if block.type in SERVER_CALLS)}
    numbers = {round.number for round in rounds}
    calls = [block for block in turn.blocks if block.is_call and block.round in numbers]
    return [call for call in calls if caller_of(call) not in programs]


def _in_words(turn: Turn, round: Round, stopped: Sequence[Block]) -> list[RoleBlock]:
    """Returns a text with the calls of stopped programs. The text follows the last round of each program."""
    last = {caller_of(call): call.round for call in sorted(stopped, key=lambda call: call.round)}
    lines = [PROGRAM_CUT]
    for call in stopped:
        if last[caller_of(call)] == round.number:
            result = _result_of(turn, call)
            said = f"{'error: ' if result.is_error else ''}{result.text[:_RESULT_OF_PROGRAM]}"
            lines.append(f"- {call.name} {call.text or '{}'}: {said}")
    return [("user", Block(0, round.number, round.attempt, TEXT, "\n".join(lines)))] if lines[1:] else []


def _same_frame(then: TurnRequest | None, now: TurnRequest | None) -> bool:
    """Whether thoughts from the request `then` are valid in the request `now`. Thoughts are also bound to the system
    prompt, the tools, the form of earlier results, and the edits that clear content at the provider: without such an
    edit, the content is sent again. The provider's summaries are always sent.
    """
    if then is None or now is None:
        return then is now
    edits_remain = _clearing_edits(then) <= _clearing_edits(now)
    frames = [(request.system, request.tools, request.provider_tools) for request in (then, now)]
    same_results = earlier_results_of(then) == earlier_results_of(now)
    return edits_remain and same_results and frames[0] == frames[1]


def _clearing_edits(request: TurnRequest) -> set[str]:
    """Returns the edits with which the provider clears content: from the turn's parameters, or else the settings."""
    given = request.params.get("context_management")
    if not isinstance(given, Mapping):
        return {*request.limits.provider_edits} - {COMPACTION}
    types = {str(edit.get("type")) for edit in given.get("edits") or () if isinstance(edit, Mapping)}
    return {CONTEXT_EDITING if type.startswith("clear_tool_uses") else type for type in types if "compact" not in type}


def _result_of(turn: Turn, call: Block) -> Block:
    for block in turn.blocks:
        if block.type == TOOL_RESULT and block.key == call.key:
            return block
    return replace(call, type=TOOL_RESULT, text=NO_RESULT, data=None, is_error=True)


def _user_words(turn: Turn, round: int) -> list[RoleBlock]:
    """Returns the texts that came from the user's side after a round (0: before the first round) while the turn ran:
    steers, reports of jobs, and the reasons why outputs were rejected.
    """
    return [
        ("user", replace(block, type=TEXT, text=_words_of(block), data=None, notes=None))
        for block in turn.blocks
        if block.round == round
        and (block.type in STEERED or (block.type == VERDICT and block.data == REJECTED))
        and block.text.strip()
    ]


def _words_of(block: Block) -> str:
    if block.type != REPORT:
        return block.text
    about = json.loads(block.data or "{}")
    head = REPORTED.format(
        tool_use_id=about.get("tool_use_id"),
        name=about.get("name"),
        how=" as an error" if about.get("is_error") else "",
    )
    return f"{head}\n\n{block.text}"


def _rounds_left(turn: Turn, round: int) -> Sequence[RoleBlock]:
    """Returns the text about the tool rounds that remain after a round (0: before the first round)."""
    request = turn.request
    # Attempts at an output have another limit.
    if request is None or request.output is not None or not (request.limits.tell_rounds and request.tools):
        return ()
    used = [number for number in rounds_with_calls(turn.blocks) if number <= round]
    left = 0 if calls_are_spent(turn, round) else round_limit(turn, round) - len(used)
    words = ROUNDS_LEFT.format(left) if left > 1 else ONE_ROUND_LEFT if left == 1 else NO_ROUND_LEFT
    return (("user", Block(0, round, 0, TEXT, words)),)


def _added_text(text: str, entries: Sequence[RoleBlock], round: Round) -> RoleBlock:
    return "user", Block(entries[-1][1].index, round.number, round.attempt, TEXT, text)


def _reason_to_go_on(turn: Turn, round: Round) -> str:
    output = turn.request.output if turn.request is not None else None
    if output is None or round.stop_reason == INTERRUPTED:
        return GO_ON
    return NO_TEXT if output.native else NO_OUTPUT.format(output.name)
