"""From a turn path to the messages of the next request. Ordered, pure, small passes; rows are never changed.

Two promises, each with a property test. Every path gives messages the provider accepts. And what one request said,
the next one says again, byte for byte, before it says anything new: what is left out is left out every time. (One
exception: a server tool that was still at work when its turn ended is left out from then on. And where the path was
summarised or results were shortened, what was said before begins anew there.)
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from app.domain.blocks import NOT_TAKEN, Block
from app.domain.history import COMPACTED, Position, Shortening, Summary, kept_of, shortenings_on, summary_on
from app.domain.kinds import SUMMARY, TEXT, THOUGHTS, TOOL_RESULT, USER_TEXT, VERDICT
from app.domain.results import files_in
from app.domain.rounds import Round
from app.domain.steps import INTERRUPTED, PAUSED, hopeless
from app.domain.turns import Turn, TurnRequest
from app.llm.conversation.sendable import (
    GOES_ON,
    Said,
    drop_blank_reply,
    drop_last_thoughts,
    grouped,
    is_blank,
    is_sendable,
    sendable_blocks,
    server_is_at_work,
)
from app.llm.conversation.shortening import as_sent
from app.llm.provider import Message

GO_ON = "Your reply was cut off. Go on from where it stopped, without repeating what you have already said."
SUMMARISED = "The conversation so far, in a summary:\n\n"
SUMMARISE = (
    "The conversation above has become too long. It will be replaced by a summary, which is all that you will know of"
    " it. Write that summary: what the user wants, facts, names, figures, decisions, what was tried; results of tools"
    " that still matter; what is open. Leave nothing out that may be asked about later. Write only the summary."
)
NO_OUTPUT = "You replied without calling a tool. Go on with your work, and give its result by calling the output tool."
NO_TEXT = "You replied with nothing. Go on with your work, and write its result."
NO_RESULT = "No result of this call is known: it was interrupted, and it may or may not have had an effect."
GIVEN_UP = (
    "All tools have failed several times in a row, so you cannot use any more of them. Tell the user what you wanted to"
    " find out or do, that the tools failed, and what you can say without them."
)
NO_USER = "(The conversation starts with the assistant.)"

_RESULT_TO_SUMMARISE = 2_000  # characters


def build_messages(path: Sequence[Turn], model: str | None = None) -> tuple[Message, ...]:
    """The messages for the turn at the end of `path`, which is the assistant turn that runs; for `model` where that is
    not the one it asked for.
    """
    return _build(path, model, _Bounds(summary_on(path), shortenings_on(path)))


def _build(path: Sequence[Turn], model: str | None, bounds: "_Bounds") -> tuple[Message, ...]:
    path = as_sent(path, model)
    summary, kept = bounds.summary, kept_of(path)
    said: list[Said] = [("user", Block(0, 0, 0, TEXT, SUMMARISED + summary.text))] if summary else []
    for place, turn in enumerate(kept, len(path) - len(kept)):
        if turn.role == "user":
            said += [("user", block) for block in turn.blocks if is_sendable(block) and not is_blank(block)]
        else:
            said += _stand_in_for_user(said)
            _add_answer(said, turn, path[-1], model or _model_of(path[-1]), bounds.holding(place, turn))
    return grouped(drop_last_thoughts(said))


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Thoughts hold only behind what they were thought behind. Where that is sent in another way since, they do not;
    with `none` of it as it was, no thought does.
    """

    summary: Summary | None
    shortenings: Sequence[Shortening]
    none: bool = False

    def holding(self, place: int, turn: Turn) -> frozenset[int]:
        """The rounds of the turn at `place` whose thoughts still hold."""
        return frozenset(round.number for round in turn.rounds if self._holds((place, round.number)))

    def _holds(self, position: Position) -> bool:
        if self.none or (self.summary is not None and position <= (self.summary.place, self.summary.round)):
            return False
        return not any(shortening.unbinds(position) for shortening in self.shortenings)


def _stand_in_for_user(said: Sequence[Said]) -> list[Said]:
    """An answer needs something before it: a path may start with the assistant, or have it twice in a row."""
    if said and said[-1][0] == "user":
        return []
    return [("user", Block(0, 0, 0, TEXT, GO_ON if said else NO_USER))]


def _add_answer(said: list[Said], turn: Turn, running: Turn, model: str | None, holding: Collection[int]) -> None:
    rounds = sorted((r for r in turn.rounds if r.sealed and not r.voided), key=lambda round: round.number)
    blocks = sendable_blocks(turn, rounds, _waiting_round(turn, rounds, running))
    said += _said_meanwhile(turn, 0)
    framed = _same_frame(turn.request, running.request)
    for round in rounds:
        mine: Sequence[Block] = [block for block in blocks if block.round == round.number]
        if not framed or round.number not in holding or (round.model or _model_of(turn)) != model:
            mine = [block for block in mine if block.type not in THOUGHTS]
        mine = drop_blank_reply(mine)
        said += [("assistant", block) for block in mine]
        if calls := [block for block in mine if block.is_call]:
            said += [("user", _result(turn, call)) for call in calls]
            said += [] if server_is_at_work(mine) else _given_up(turn, round, said[-1][1])
        said += (words := _said_meanwhile(turn, round.number))
        if not words and said[-1][0] == "assistant" and _needs_go_on(turn, round, mine, running):
            said.append(("user", Block(said[-1][1].index, round.number, round.attempt, TEXT, _why_again(turn, round))))


def messages_to_summarise(path: Sequence[Turn], through: UUID, model: str | None = None) -> tuple[Message, ...]:
    """The messages of the path to the turn `through`, and the wish for a summary. `path` is to the running turn. No
    thoughts are among them, since of long results only the beginning is.
    """
    end = next(place for place, turn in enumerate(path, 1) if turn.id == through)
    running = path[-1]
    wish = replace(running, role="user", request=None, rounds=(), blocks=(Block(0, 0, 0, TEXT, SUMMARISE),))
    summaries = replace(
        running,
        rounds=tuple(round for round in running.rounds if round.stop_reason == COMPACTED),
        blocks=tuple(block for block in running.blocks if block.type == SUMMARY),
    )
    told = [*path[:end], wish, summaries]
    messages = _build(told, model, _Bounds(summary_on(told), shortenings_on(told), none=True))
    return tuple(replace(message, blocks=tuple(map(_shortened, message.blocks))) for message in messages)


def _shortened(block: Block) -> Block:
    """For a summary the beginning of a long result will do, and the word that there were files."""
    if block.type != TOOL_RESULT:
        return block
    text, files = block.text, files_in(block)
    if len(text) > _RESULT_TO_SUMMARISE:
        text = f"{text[:_RESULT_TO_SUMMARISE]}\n[…]"
    if files:
        text = f"{text}\n[files that are not shown here: {files}]".lstrip()
    return replace(block, text=text, data=None)


def _waiting_round(turn: Turn, rounds: Sequence[Round], running: Turn) -> int | None:
    """The round whose server calls may still be answered: by the model call that is now made."""
    if turn is not running or not rounds:
        return None
    last = rounds[-1]
    return last.number if last.stop_reason in GOES_ON and not _said_meanwhile(turn, last.number) else None


# --- thinking holds only for the model, and under the request, that it was thought by and under -------------


def _same_frame(then: TurnRequest | None, now: TurnRequest | None) -> bool:
    """What the provider left out by itself is back where it is not to do so any more."""
    if then is None or now is None:
        return then is now
    left_to_provider = {*then.limits.provider_edits} <= {*now.limits.provider_edits}
    frames = [(request.system, request.tools, request.provider_tools) for request in (then, now)]
    return left_to_provider and frames[0] == frames[1]


def _model_of(turn: Turn) -> str | None:
    return turn.request.model if turn.request else None


# --- what the user's side says after a round ----------------------------------------------------------------


def _result(turn: Turn, call: Block) -> Block:
    for block in turn.blocks:
        if block.type == TOOL_RESULT and (block.round, block.tool_use_id) == (call.round, call.tool_use_id):
            return block
    return replace(call, type=TOOL_RESULT, text=NO_RESULT, data=None, is_error=True)


def _said_meanwhile(turn: Turn, number: int) -> list[Said]:
    """What the user said while the turn ran, as it was taken in behind round `number`; before any of them it is 0. What
    was wrong with an output is said by the same side.
    """
    mine = [block for block in turn.blocks if block.round == number and _is_word_to_the_model(block)]
    return [("user", replace(block, type=TEXT, data=None, notes=None)) for block in mine if block.text.strip()]


def _is_word_to_the_model(block: Block) -> bool:
    return block.type == USER_TEXT or (block.type == VERDICT and block.data == NOT_TAKEN)


def _given_up(turn: Turn, round: Round, last: Block) -> list[Said]:
    """So that the answer says it: the model cannot see that it is given no tools any more."""
    if turn.request is None or not hopeless(turn, round.number):
        return []
    return [("user", Block(last.index, round.number, round.attempt, TEXT, GIVEN_UP))]


def _why_again(turn: Turn, round: Round) -> str:
    output = turn.request.output if turn.request is not None else None
    if output is None or round.stop_reason == INTERRUPTED:
        return GO_ON
    return NO_TEXT if output.native else NO_OUTPUT


def _needs_go_on(turn: Turn, round: Round, mine: Sequence[Block], running: Turn) -> bool:
    """True when the model was, or is now, called again after `round` and must be told why."""
    if round.stop_reason in PAUSED or server_is_at_work(mine):
        return False
    return turn is running or any(later.number > round.number for later in turn.rounds)
