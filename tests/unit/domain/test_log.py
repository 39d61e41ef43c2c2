from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.turns import ask, begun, call, elicitation, result, sealed, sign_in, text, turn_of, voided, words
from turnstream.domain.asks import AskAnswer, job_question_id
from turnstream.domain.blocks import Block
from turnstream.domain.cursor import START, Cursor
from turnstream.domain.degraded import ALL_TOOLS_FAILED, Degraded
from turnstream.domain.events import (
    ActionRequired,
    Answered,
    BlockDelta,
    BlockStart,
    BlockStop,
    Event,
    Mark,
    RequiredAction,
    Reset,
    RoundStart,
    RoundStop,
    TurnEnd,
    TurnStart,
)
from turnstream.domain.jobs import Job
from turnstream.domain.log import (
    LONGEST_DELTA,
    Marks,
    action_required,
    elicited,
    end_cursor,
    marks_of,
    next_event,
    open_actions_of,
    required_actions_of,
    resume,
    start_of_block,
    stop_of_block,
)
from turnstream.domain.rounds import Round
from turnstream.domain.turns import Limits, Turn

TWO_ROUNDS = turn_of(
    text(0, 1, "let me look"),
    call(1, 1, "a"),
    call(2, 1, "b"),
    result(3, 1, "b"),
    result(4, 1, "a", is_error=True),
    text(5, 2, "🚢 it is a ship"),
    rounds=[voided(1), sealed(1, attempt=2), sealed(2, "end_turn", attempt=3)],
    status="complete",
    attempt=3,
)


@dataclass(frozen=True)
class Rows:
    """The log of a turn, built from the turn's rows, and optionally the text of an open block."""

    turn: Turn
    text: str = ""
    opened: Sequence[Mark] = ()

    @property
    def attempt(self) -> int:
        return self.turn.attempt

    def has_had(self, attempt: int) -> bool:
        return self.turn.has_had(attempt)

    @property
    def marks(self) -> Marks:
        marks = marks_of(self.turn)
        for mark in self.opened:
            marks.append(mark)
        return marks

    @property
    def open_length(self) -> int:
        return len(self.text)

    def open_text(self, offset: int) -> str:
        return self.text[offset : offset + LONGEST_DELTA]


# Attempt 1 asked a person about call b and ran call a. Attempt 2 continued after b was answered and the user had sent a
# message.
ASKED = turn_of(
    text(0, 1, "let me"),
    call(1, 1, "a"),
    call(2, 1, "b"),
    result(3, 1, "a"),
    result(4, 1, "b", attempt=2),
    words(5, 1, "and be quick", attempt=2),
    text(6, 2, "done", attempt=2),
    rounds=[sealed(1), sealed(2, "end_turn", attempt=2)],
    asks=[ask("b", answer="approve")],
    status="complete",
    attempt=2,
)


def _open(index: int, content: str, turn: Turn) -> Rows:
    return Rows(turn, content, [BlockStart(turn.attempt, index, 1, "text", None, None)])


def _read(log: Rows, cursor: Cursor) -> list[tuple[Event, Cursor]]:
    read = []
    while step := next_event(log, cursor):
        read.append(step)
        cursor = step[1]
    return read


def _texts(events: Sequence[Event]) -> dict[int, str]:
    """Returns the texts that a client assembles if it reads the events from the start."""
    texts: dict[int, str] = {}
    for event in events:
        match event:
            case BlockStart(index=index):
                assert index == len(texts)
                texts[index] = ""
            case BlockDelta(index, offset, piece):
                assert index == len(texts) - 1
                assert offset == len(texts[index])
                assert piece
                texts[index] += piece
            case BlockStop(block=block):
                assert texts[block.index] == block.text
            case _:
                pass
    return texts


def test_the_log_of_a_turn_tells_its_rounds_in_order_and_results_after_the_reply() -> None:
    names = [(type(mark).__name__, getattr(mark, "index", None)) for mark in marks_of(TWO_ROUNDS)]
    assert names == [
        ("TurnStart", None),
        ("RoundStart", None),
        *[pair for index in (0, 1, 2) for pair in (("BlockStart", index), ("BlockStop", None))],
        ("RoundStop", None),
        *[pair for index in (3, 4) for pair in (("BlockStart", index), ("BlockStop", None))],
        ("RoundStart", None),
        ("BlockStart", 5),
        ("BlockStop", None),
        ("RoundStop", None),
        ("TurnEnd", None),
    ]


def test_a_round_says_which_tools_were_answered_before_it() -> None:
    rounds = [mark for mark in marks_of(TWO_ROUNDS) if isinstance(mark, RoundStart)]
    assert rounds[0] == RoundStart(2, 1, messages=1, answered=())
    assert rounds[1].answered == (Answered("b", "look", is_error=False), Answered("a", "look", is_error=True))


def test_a_turn_that_has_not_ended_has_no_end() -> None:
    turn = turn_of(text(), rounds=[begun()])
    assert [type(mark) for mark in marks_of(turn)] == [TurnStart, RoundStart, BlockStart, BlockStop]
    assert not any(isinstance(mark, (RoundStop, TurnEnd)) for mark in marks_of(turn))


def test_a_turn_that_was_cancelled_in_the_queue_starts_and_ends() -> None:
    turn = turn_of(status="cancelled", attempt=0)
    assert [type(mark) for mark in marks_of(turn)] == [TurnStart, TurnEnd]
    assert end_cursor(Rows(turn)) == Cursor(0, 2, 0)


def test_a_user_turn_has_a_log_too() -> None:
    turn = replace(turn_of(), role="user", request=None, status="complete", attempt=0)
    assert marks_of(turn)[0] == TurnStart(0, turn.id, turn.chat_id, "", 0, "complete")


def test_a_reader_from_the_start_gets_every_event_once() -> None:
    events = [event for event, _ in _read(Rows(TWO_ROUNDS), Cursor(3))]
    assert _texts(events) == {block.index: block.text for block in TWO_ROUNDS.blocks}
    assert [event for event in events if not isinstance(event, BlockDelta)] == marks_of(TWO_ROUNDS)


def test_an_open_block_is_sent_as_far_as_it_is_written() -> None:
    log = _open(0, "ahoy", turn_of(rounds=[begun()]))
    (*_, (start, _), (delta, cursor)) = _read(log, Cursor(1))
    assert isinstance(start, BlockStart)
    assert delta == BlockDelta(0, 0, "ahoy")
    assert cursor == end_cursor(log) == Cursor(1, 3, 4)
    assert next_event(log, cursor) is None


def test_no_delta_is_longer_than_the_longest() -> None:
    long = "🚢" * (2 * LONGEST_DELTA + 1)
    logs = [Rows(turn_of(text(0, 1, long), rounds=[sealed()])), _open(0, long, turn_of(rounds=[begun()]))]
    for log in logs:
        deltas = [event for event, _ in _read(log, Cursor(1)) if isinstance(event, BlockDelta)]
        assert [len(delta.text) for delta in deltas] == [LONGEST_DELTA, LONGEST_DELTA, 1]
        assert "".join(delta.text for delta in deltas) == long


def test_a_cursor_into_a_text_that_was_closed_meanwhile_gets_the_rest_of_it() -> None:
    turn = turn_of(text(0, 1, "ahoy there"), rounds=[begun()])
    cursor, reset = resume(Rows(turn), Cursor(1, 3, 4))
    assert reset is None
    assert next_event(Rows(turn), cursor) == (BlockDelta(0, 4, " there"), Cursor(1, 3, 10))


@pytest.mark.parametrize("attempt", [4, 70, 999])
@pytest.mark.parametrize("place", [2, 5, 999])
def test_a_cursor_of_an_attempt_of_another_past_is_reset_to_the_first_mark(attempt: int, place: int) -> None:
    turn = replace(TWO_ROUNDS, attempt=100, lineage=(3, 71, 100))
    assert resume(Rows(turn), Cursor(attempt, place, 4)) == (Cursor(100, 1, 0), Reset(100, 0))


@pytest.mark.parametrize("attempt", [0, 1, 2, 3, 71, 100])
def test_a_cursor_of_an_attempt_of_this_past_is_good(attempt: int) -> None:
    turn = replace(TWO_ROUNDS, attempt=100, lineage=(3, 71, 100))
    cursor, reset = resume(Rows(turn), Cursor(attempt, 1, 0))
    assert (cursor, reset) == (Cursor(100, 1, 0), None)


# Attempt 1 wrote one round and a part of the next round. Attempt 2 voided that part and wrote the round again.
BEFORE = turn_of(text(0, 1), call(1, 1), result(2, 1), text(3, 2, "draft"), rounds=[sealed(1), begun(2)])
AFTER = turn_of(
    text(0, 1),
    call(1, 1),
    result(2, 1),
    text(3, 2, "final", attempt=2),
    rounds=[sealed(1), voided(2), sealed(2, "end_turn", attempt=2)],
    status="complete",
    attempt=2,
)


def test_voided_blocks_are_dropped_and_remaining_ones_are_kept() -> None:
    cursor = end_cursor(Rows(BEFORE))
    place, reset = resume(Rows(AFTER), cursor)
    assert reset == Reset(attempt=2, index=3)
    assert place > cursor
    events = [event for event, _ in _read(Rows(AFTER), place)]
    assert isinstance(events[0], RoundStart)
    assert BlockDelta(3, 0, "final") in events


def test_a_cursor_before_voided_content_stays_valid() -> None:
    second_round = next(
        n for n, mark in enumerate(marks_of(BEFORE)) if isinstance(mark, RoundStart) and mark.round == 2
    )
    for _, cursor in _read(Rows(BEFORE), Cursor(1)):
        place, reset = resume(Rows(AFTER), cursor)
        if reset is None:
            assert place == cursor._replace(attempt=2)
        else:
            assert cursor.place > second_round


def test_an_open_block_that_was_taken_back_is_forgotten_with_its_start() -> None:
    interrupted = turn_of(rounds=[begun(1)])
    again = turn_of(text(0, 1, "anew", attempt=2), rounds=[begun(1)], attempt=2)
    place, reset = resume(Rows(again), Cursor(1, 3, 2))
    assert (place, reset) == (Cursor(2, 2, 0), Reset(2, 0))
    place, reset = resume(Rows(replace(interrupted, attempt=2)), Cursor(1, 3, 2))
    assert (place, reset) == (Cursor(2, 2, 0), Reset(2, 0))


def test_an_interrupted_block_restarts_for_a_client_that_has_it_as_complete() -> None:
    """A failover has lost the complete block. The next attempt has kept the part of the block's text that the journal
    had.
    """
    kept = turn_of(text(0, 1, "Aho", interrupted=True), rounds=[replace(begun(1), sealed_by=2)], attempt=2)
    assert resume(Rows(kept), Cursor(1, 4)) == (Cursor(2, 2, 0), Reset(2, 0))
    assert resume(Rows(kept), Cursor(1, 3, 2)) == (Cursor(2, 3, 2), None), "in the middle of it"


# --- asks, and messages of the user ----------------------------------------------------------------------------------


def test_asks_are_between_a_reply_and_its_results_and_steers_behind_them() -> None:
    names = [(type(mark).__name__, getattr(mark, "index", None)) for mark in marks_of(ASKED)]
    assert names == [
        ("TurnStart", None),
        ("RoundStart", None),
        *[pair for index in (0, 1, 2) for pair in (("BlockStart", index), ("BlockStop", None))],
        ("RoundStop", None),
        ("ActionRequired", None),
        *[pair for index in (3, 4, 5) for pair in (("BlockStart", index), ("BlockStop", None))],
        ("RoundStart", None),
        ("BlockStart", 6),
        ("BlockStop", None),
        ("RoundStop", None),
        ("TurnEnd", None),
    ]


def test_an_answer_does_not_change_its_ask() -> None:
    unanswered = replace(ASKED, asks=(ask("b"),))
    assert marks_of(unanswered) == marks_of(ASKED)


def test_asks_are_sent_in_the_order_of_the_calls_with_their_exact_input() -> None:
    calls = [replace(call(0, 1, "a"), text='{"n": 1}'), replace(call(1, 1, "b"), text="{}"), call(2, 2, "b")]
    asks = [ask("b"), replace(ask("a", kind="approval"), digest="d")]
    wanted = (
        RequiredAction("a", "look", "approval", '{"n": 1}', "d", None),
        RequiredAction("b", "look", "client", "{}", ask().digest, None),
    )
    assert required_actions_of(asks, calls) == wanted
    assert action_required(asks, calls) == ActionRequired(1, 1, wanted)


def test_asks_of_another_attempt_have_its_number() -> None:
    turn = turn_of(call(), rounds=[sealed()], asks=[ask(attempt=2)], attempt=2)
    assert marks_of(turn)[-1] == ActionRequired(2, 1, required_actions_of(turn.asks, turn.blocks))


def test_a_round_asks_only_for_its_own_calls() -> None:
    turn = turn_of(
        call(0, 1), result(1, 1), call(2, 2), rounds=[sealed(1), sealed(2)], asks=[ask(answer="result"), ask(round=2)]
    )
    marks = [mark for mark in marks_of(turn) if isinstance(mark, ActionRequired)]
    assert [(mark.round, [wanted.tool_use_id for wanted in mark.actions]) for mark in marks] == [(1, ["a"]), (2, ["a"])]


def test_steers_before_the_first_round_come_first() -> None:
    turn = turn_of(words(0, 0), text(1, 1), rounds=[sealed(1, "end_turn")])
    names = [(type(mark).__name__, getattr(mark, "index", None)) for mark in marks_of(turn)[:4]]
    assert names == [("TurnStart", None), ("BlockStart", 0), ("BlockStop", None), ("RoundStart", None)]


def test_a_steer_is_no_result_of_a_tool() -> None:
    (_, second) = [mark for mark in marks_of(ASKED) if isinstance(mark, RoundStart)]
    assert [answered.tool_use_id for answered in second.answered] == ["a", "b"]


def test_the_end_lists_degradations() -> None:
    turn = turn_of(
        call(),
        result(is_error=True),
        rounds=[sealed()],
        limits=Limits(max_failed_rounds=1),
        status="complete",
    )
    end = marks_of(turn)[-1]
    assert isinstance(end, TurnEnd)
    assert end.degraded == (Degraded(ALL_TOOLS_FAILED),)


def test_every_cursor_of_a_waiting_turn_stays_valid_after_it_continues() -> None:
    waiting = replace(ASKED, blocks=ASKED.blocks[:4], rounds=ASKED.rounds[:1], asks=(ask("b"),), status="waiting")
    waiting = replace(waiting, attempt=1)
    read = _read(Rows(waiting), Cursor(1))
    rest = _read(Rows(ASKED), Cursor(2))
    for number, (_, cursor) in enumerate(read, 1):
        place, reset = resume(Rows(ASKED), cursor)
        assert (place, reset) == (cursor._replace(attempt=2), None)
        assert [event for event, _ in _read(Rows(ASKED), place)] == [event for event, _ in rest[number:]]


@given(st.sampled_from([TWO_ROUNDS, ASKED]), st.integers(0, 9), st.integers(0, 40), st.integers(0, 40))
def test_any_cursor_leads_to_the_end_and_never_to_a_gap(turn: Turn, attempt: int, place: int, offset: int) -> None:
    """Some of the cursors are invented: a client with an invented cursor gets a consistent log, or a reset."""
    log = Rows(turn)
    cursor, reset = resume(log, Cursor(attempt, place, offset))
    read = _read(log, cursor)
    assert [after for _, after in read] == sorted({after for _, after in read}), "ids grow"
    assert (read[-1][1] if read else cursor) == end_cursor(log)
    if reset is not None:
        kept = [block for block in turn.blocks if block.index < reset.index]
        starts = [event.index for event, _ in read if isinstance(event, BlockStart)]
        assert starts == [block.index for block in turn.blocks[len(kept) :]]


BLOCKS_OF_A_TURN = st.lists(st.text(max_size=3), max_size=4)


@given(BLOCKS_OF_A_TURN, BLOCKS_OF_A_TURN, st.data())
def test_a_log_read_in_two_goes_is_the_log(first: list[str], second: list[str], data: st.DataObject) -> None:
    blocks: list[Block] = [text(index, 1, content) for index, content in enumerate(first)]
    blocks += [text(len(first) + index, 2, content) for index, content in enumerate(second)]
    log = Rows(turn_of(*blocks, rounds=[sealed(1, "pause_turn"), sealed(2, "end_turn")], status="complete"))
    whole = _read(log, resume(log, START)[0])
    cut = data.draw(st.integers(0, len(whole)))
    cursor = Cursor.parse(str(whole[cut - 1][1])) if cut else START
    place, reset = resume(log, cursor)
    assert reset is None
    assert whole[:cut] + _read(log, place) == whole
    assert _texts([event for event, _ in whole]) == {block.index: block.text for block in blocks}


# --- elicitations ----------------------------------------------------------------------------------------------------


def test_an_elicitation_is_open_while_its_call_runs_in_its_attempt() -> None:
    turn = turn_of(call(0), rounds=[sealed()], asks=[elicitation()])
    (action,) = open_actions_of(turn)
    assert (action.kind, action.tool_use_id, action.input) == ("elicitation", "a", '{"message": "How many?"}')
    assert elicited(turn) == ActionRequired(1, 1, (action,))
    answered = replace(elicitation(), answer=AskAnswer("result", "{}"))
    for gone in (
        replace(turn, attempt=2),
        replace(turn, status="waiting"),
        replace(turn, asks=(answered,)),
        replace(turn, blocks=(call(0), result(1))),
    ):
        assert open_actions_of(gone) == ()
        assert elicited(gone) is None


def test_a_question_of_a_job_is_open_until_the_job_is_over_or_runs_again() -> None:
    id = job_question_id("a", 2, 0)
    asked = replace(elicitation(), tool_use_id=id, attempt=2)
    job = Job(UUID(int=1), 1, "a", "dig", "tool", attempt=2)
    turn = replace(turn_of(call(0), rounds=[sealed()], asks=[asked]), jobs=(job,), status="waiting")
    (action,) = open_actions_of(turn)
    assert (asked.is_of_job, asked.call_id, elicitation().is_of_job, ask().is_of_job) == (True, "a", False, False)
    assert (action.kind, action.tool_use_id) == ("elicitation", "a")
    assert turn.waits_for_person
    assert open_actions_of(replace(turn, attempt=5, status="running")) == (action,)
    for gone in (
        replace(turn, jobs=(replace(job, attempt=3),)),
        replace(turn, jobs=(replace(job, settled=True),)),
        replace(turn, jobs=(replace(job, round=2),)),
        replace(turn, status="complete"),
    ):
        assert open_actions_of(gone) == ()
        assert not gone.waits_for(asked)
    assert not replace(turn, jobs=(replace(job, attempt=3),)).waits_for_person


def test_a_sign_in_is_open_in_any_attempt_until_its_call_has_a_result() -> None:
    turn = turn_of(call(0), rounds=[sealed()], asks=[sign_in()])
    (action,) = open_actions_of(turn)
    assert (action.kind, action.tool_use_id) == ("sign_in", "a")
    for open in (replace(turn, status="waiting"), replace(turn, attempt=2)):
        assert open_actions_of(open) == (action,)
    assert elicited(turn) == ActionRequired(1, 1, (action,))
    assert marks_of(turn) == marks_of(replace(turn, asks=()))
    assert open_actions_of(replace(turn, blocks=(call(0), result(1)))) == ()


def test_an_elicitation_and_an_ask_that_a_grant_has_answered_leave_no_mark() -> None:
    allowed = replace(ask("a", kind="approval"), answer=AskAnswer("approve", grant=uuid4()))
    plain = turn_of(call(0), rounds=[sealed()])
    assert marks_of(replace(plain, asks=(allowed, elicitation()))) == marks_of(plain)
    assert (allowed.is_marked, allowed.call_id, elicitation().call_id) == (False, "a", "a")


def test_the_marks_of_whole_blocks_are_made_when_they_are_read() -> None:
    blocks = tuple(Block(index, 1, 1, "text", "word") for index in range(20_000))
    marks = marks_of(replace(TWO_ROUNDS, blocks=blocks, rounds=(Round(1, 1, sealed_by=1),)))
    first, place = len(marks) - 2 - 2 * len(blocks), len(blocks)
    assert marks[first : first + 2] == [start_of_block(blocks[0]), stop_of_block(blocks[0], 1)]
    assert marks[-4:-2] == [start_of_block(blocks[-1]), stop_of_block(blocks[-1], 1)]
    assert marks[first + place] == start_of_block(blocks[place // 2])
    assert marks[first] is not marks[first]
    assert marks.blocks_before(first + place) == place // 2
