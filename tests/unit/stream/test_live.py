from dataclasses import fields, replace
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.turns import ask, begun, call, elicitation, result, sealed, text, turn_of, voided
from turnstream.domain.asks import AskAnswer, job_question_id
from turnstream.domain.blocks import Block, PreliminaryOutput
from turnstream.domain.cursor import Cursor
from turnstream.domain.events import (
    ActionRequired,
    BlockDelta,
    BlockStart,
    BlockStop,
    Notice,
    RoundStart,
    preliminary_notice,
)
from turnstream.domain.jobs import Job
from turnstream.domain.log import LONGEST_DELTA, end_cursor, marks_of, next_event, resume
from turnstream.domain.rounds import Round
from turnstream.domain.turns import Turn
from turnstream.stream import live
from turnstream.stream.live import LiveView

PIECES = st.lists(st.text(st.sampled_from("a\u00e9\U0001f6a2"), min_size=1, max_size=4), min_size=1, max_size=12)


def _writing(*pieces: str, turn: Turn | None = None) -> LiveView:
    view = LiveView(turn or turn_of(rounds=[begun()]))
    view.open_block(BlockStart(view.attempt, len(view.turn.blocks), 1, "text", None, None))
    for piece in pieces:
        view.append(piece)
    return view


@given(PIECES, st.data())
def test_the_open_text_can_be_read_from_anywhere(pieces: list[str], data: st.DataObject) -> None:
    view, whole = _writing(*pieces), "".join(pieces)
    assert view.open_length == len(whole)
    offset, most = data.draw(st.integers(0, len(whole))), data.draw(st.integers(1, 20))
    assert view.open_text(offset) == whole[offset:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "LONGEST_DELTA", most)
        assert view.open_text(offset) == whole[offset : offset + most]


def test_a_long_open_text_is_read_in_parts() -> None:
    view = _writing("\U0001f6a2" * LONGEST_DELTA, "b" * 10)
    assert view.open_text(0) == "\U0001f6a2" * LONGEST_DELTA
    assert view.open_text(5) == "\U0001f6a2" * (LONGEST_DELTA - 5) + "b" * 5
    assert view.open_text(LONGEST_DELTA) == "b" * 10


def test_the_last_piece_is_handed_on_as_it_came() -> None:
    piece = "ahoy"
    assert _writing("one", piece).open_text(3) is piece


def test_nothing_is_open_before_and_after_a_block() -> None:
    view = LiveView(turn_of(rounds=[begun()]))
    assert view.block_being_written() is None
    view = _writing("ahoy")
    assert view.block_being_written() == text(0, 1, "ahoy", interrupted=True)
    view.close_blocks([text(0, 1, "ahoy")])
    assert view.block_being_written() is None
    assert view.open_length == 0


def test_a_block_that_was_never_open_has_a_start_all_the_same() -> None:
    view = LiveView(turn_of(rounds=[begun()]))
    view.close_blocks([Block(0, 1, 1, "redacted_thinking", data="{}")])
    assert [type(mark) for mark in view.marks[-2:]] == [BlockStart, BlockStop]
    assert view.marks == marks_of(view.turn)


def test_a_round_that_never_reached_the_view_is_taken_back_without_harm() -> None:
    view = LiveView(turn_of(rounds=[voided(1)]))
    view.void_round(voided(1), replace(view.turn, attempt=2))
    assert view.marks[1:] == marks_of(view.turn)[1:] == []


def test_a_voided_round_leaves_earlier_content_unchanged() -> None:
    first = turn_of(text(0, 1), rounds=[replace(begun(1), sealed_by=1, stop_reason="pause_turn")])
    view = LiveView(first)
    before = list(view.marks)
    view.begin_round(Round(2, 1, messages=2))
    view.open_block(BlockStart(1, 1, 2, "text", None, None))
    view.append("draft")
    view.void_round(voided(2), replace(view.turn, attempt=2))
    assert view.marks == before
    assert view.block_being_written() is None
    assert end_cursor(view) == Cursor(2, len(before), 0)


def test_only_the_last_notices_are_kept_and_each_is_returned_once() -> None:
    view = LiveView(turn_of())
    assert view.notices_after(0) == ()
    for number in range(40):
        view.notify(Notice("status", {"n": number}))
    assert [placed.notice.data["n"] for placed in view.notices_after(0) if isinstance(placed.notice, Notice)] == list(
        range(8, 40)
    )
    assert view.notices_after(40) == ()
    view.notify(Notice("status", {"n": 40}))
    assert [(placed.number, placed.notice) for placed in view.notices_after(40)] == [(41, Notice("status", {"n": 40}))]


def test_asks_have_the_mark_that_the_rows_give() -> None:
    view = LiveView(turn_of(call(0, 1, "a"), call(1, 1, "b"), rounds=[sealed()], asks=[]))
    view.ask([ask("b"), ask("a")])
    assert view.turn.asks == (ask("b"), ask("a"))
    assert isinstance(view.marks[-1], ActionRequired)
    assert view.marks == marks_of(view.turn)
    view.close_blocks([result(2, 1, "a")])
    assert view.marks == marks_of(view.turn)


def test_new_asks_of_a_round_keep_earlier_ones() -> None:
    before = turn_of(call(0, 1), result(1, 1), call(2, 2), rounds=[sealed(1), sealed(2)], asks=[ask(answer="result")])
    view = LiveView(before)
    view.ask([ask(round=2)])
    assert view.turn.asks == (ask(answer="result"), ask(round=2))
    assert view.marks == marks_of(view.turn)


# --- a view that a mirror updates from rows and journal --------------------------------------------------------------


def _mirror(view: LiveView) -> LiveView:
    mirror = LiveView(view.turn)
    mirror.adopt(view.turn, view.block_being_written())
    return mirror


def test_a_mirror_shows_the_text_of_the_journal() -> None:
    view = _writing("ahoy")
    mirror = _mirror(view)
    assert mirror.marks[1:] == view.marks[1:]
    view.append(" there")
    last = mirror.marks
    mirror.adopt(view.turn, view.block_being_written())
    assert mirror.marks is last, "text alone makes no marks anew"
    assert mirror.open_text(0) == "ahoy there"


def test_a_mirror_never_takes_text_back_within_an_attempt() -> None:
    mirror = _mirror(_writing("ahoy there"))
    for older in (text(0, 1, "ahoy", interrupted=True), text(0, 1, "ahoy there", interrupted=True), None):
        mirror.adopt(mirror.turn, older)
        assert mirror.open_text(0) == "ahoy there"


def test_a_mirror_appends_text_from_an_offset_that_it_has() -> None:
    mirror = _mirror(_writing("ahoy"))
    for rest, start in (("oy there", 2), ("y", 3), (" ye", 4)):
        mirror.adopt(mirror.turn, text(0, 1, rest, interrupted=True), start)
    assert mirror.open_text(0) == "ahoy there"
    mirror.adopt(replace(mirror.turn, status="queued"), text(0, 1, "there!", interrupted=True), 5)
    assert mirror.open_text(0) == "ahoy there!"


def test_a_mirror_ignores_text_whose_beginning_it_does_not_have() -> None:
    mirror = _mirror(_writing("ahoy"))
    mirror.adopt(mirror.turn, text(0, 1, "there", interrupted=True), 5)
    mirror.adopt(mirror.turn, text(1, 1, "there", interrupted=True), 4)
    assert mirror.open_text(0) == "ahoy"


def test_a_reader_of_a_mirror_that_lost_its_journal_waits_and_gets_no_nonsense() -> None:
    """After a restart of Postgres, the journal has lost the open text. In addition, another row of the turn has
    changed.
    """
    view = _writing("ahoy")
    mirror = _mirror(view)
    seen = end_cursor(mirror)
    mirror.adopt(replace(view.turn, status="queued"), None)
    assert next_event(mirror, seen) is None
    view.append(" there")
    view.close_blocks([text(0, 1, "ahoy there")])
    mirror.adopt(replace(view.turn, status="running"), None)
    assert next_event(mirror, seen) == (BlockDelta(0, 4, " there"), Cursor(1, 3, 10))


def test_a_mirror_ignores_rows_that_are_older_than_its_view() -> None:
    turns = [turn_of(rounds=[begun()]), turn_of(text(0, 1), rounds=[begun()]), turn_of(rounds=[voided(1)], attempt=2)]
    for older, newer in pairwise(turns):
        mirror = LiveView(newer)
        mirror.adopt(older, None)
        assert mirror.turn is newer


def test_a_mirror_ignores_rows_that_a_failover_has_thinned_out_until_they_are_written_again() -> None:
    known = turn_of(call(), result(1), rounds=[sealed()], asks=[ask()])
    mirror = LiveView(known)
    marks = mirror.marks
    for lost in (
        replace(known, blocks=known.blocks[:1], rounds=(*known.rounds, begun(2))),
        replace(known, rounds=(begun(),), blocks=(*known.blocks, text(2))),
        replace(known, asks=()),
    ):
        mirror.adopt(lost, None)
        assert mirror.marks is marks
    again = replace(known, blocks=(*known.blocks, text(2, 2)), rounds=(*known.rounds, begun(2)))
    mirror.adopt(again, None)
    assert mirror.marks == marks_of(again)


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_mirror_takes_over_an_end_even_where_rows_are_lost(attempt: int) -> None:
    mirror = LiveView(turn_of(call(), result(1), rounds=[sealed()], attempt=2))
    end = turn_of(rounds=[begun()], attempt=attempt, status="cancelled")
    mirror.adopt(end, None)
    assert mirror.ended
    assert mirror.marks == marks_of(end)


def test_a_mirror_takes_over_a_new_attempt() -> None:
    mirror = _mirror(_writing("draft"))
    again = turn_of(rounds=[voided(1), begun(1, attempt=2)], attempt=2)
    mirror.adopt(again, None)
    assert mirror.attempt == 2
    assert mirror.marks == marks_of(again)
    assert isinstance(mirror.marks[-1], RoundStart)


def test_a_mirror_shows_new_progress_of_a_job_and_not_the_old_one() -> None:
    job = Job(UUID(int=1), 1, "a", "dig", "tool", "half")
    before = replace(turn_of(call(), rounds=[sealed()], status="waiting"), jobs=(job,))
    view = LiveView(before)
    view.adopt(before, None)
    assert view.notices == []
    view.adopt(replace(before, jobs=(replace(job, progress="done"),)), None)
    (shown,) = view.notices
    assert isinstance(shown.notice, Notice)
    assert {**shown.notice.data, "job": None} == {"tool_use_id": "a", "name": "dig", "message": "done", "job": None}
    assert (shown.notice.data["job"]["state"], shown.notice.data["job"]["progress"]) == ("due", "done")
    view.adopt(replace(before, jobs=(replace(job, progress="done", state="running"),)), None)
    (_, claimed) = view.notices
    assert isinstance(claimed.notice, Notice)
    assert claimed.notice.data["job"]["state"] == "running"
    view.adopt(replace(before, jobs=(replace(job, settled=True),)), None)
    assert view.notices == [shown, claimed]


def test_a_mirror_shows_asks_without_new_blocks() -> None:
    before = turn_of(call(), rounds=[sealed()])
    mirror = LiveView(before)
    asking = replace(before, asks=(ask(),))
    mirror.adopt(asking, None)
    assert mirror.turn is asking
    assert isinstance(mirror.marks[-1], ActionRequired)


def test_a_mirror_follows_a_turn_that_waits_and_continues_elsewhere() -> None:
    waiting = turn_of(call(), rounds=[sealed()], asks=[ask()], status="waiting")
    mirror = LiveView(waiting)
    seen = end_cursor(mirror)
    queued = replace(waiting, status="queued", asks=(ask(answer="result"),))
    mirror.adopt(queued, None)
    assert next_event(mirror, seen) is None, "an answer is no event"
    gone_on = replace(queued, status="running", attempt=2, blocks=(*queued.blocks, result(1, 1, attempt=2)))
    mirror.adopt(gone_on, None)
    place, reset = resume(mirror, seen)
    assert (place, reset) == (seen._replace(attempt=2), None)
    step = next_event(mirror, place)
    assert step is not None
    assert step[0] == BlockStart(2, 1, 1, "tool_result", "a", "look")


def test_a_view_stays_provisional_until_it_adopts_rows_that_are_not_older() -> None:
    mirror = LiveView(turn_of(text(0, 1), rounds=[begun()]))
    mirror.provisional = True
    mirror.adopt(turn_of(rounds=[begun()]), None)
    assert mirror.provisional
    mirror.adopt(mirror.turn, None)
    assert not mirror.provisional


def test_an_elicitation_is_shown_by_a_notice_and_has_no_mark() -> None:
    view = LiveView(turn_of(call(0), call(1, id="b"), rounds=[sealed()], asks=[ask("b", kind="approval")]))
    marks, question = list(view.marks), elicitation()
    view.ask([question])
    view.notify_actions()
    assert view.marks == marks == marks_of(view.turn)
    (placed,) = view.notices_after(0)
    assert isinstance(placed.notice, ActionRequired)
    assert [(action.kind, action.tool_use_id) for action in placed.notice.actions] == [
        ("approval", "b"),
        ("elicitation", "a"),
    ]


def test_readers_on_another_replica_are_asked_when_the_rows_have_an_elicitation() -> None:
    turn = turn_of(call(0), rounds=[sealed()])
    view = LiveView(turn)
    view.adopt(replace(turn, asks=(elicitation(),)), None)
    assert [type(placed.notice) for placed in view.notices_after(0)] == [ActionRequired]


def test_readers_on_another_replica_get_a_notice_when_a_job_with_an_ask_runs_again() -> None:
    asking = replace(elicitation(), tool_use_id=job_question_id("a", 1, 0))
    job = Job(UUID(int=1), 1, "a", "look", "tool", "", state="detached", attempt=1)
    turn = replace(turn_of(call(0), rounds=[sealed()], status="waiting", asks=[asking]), jobs=(job,))
    view = LiveView(turn)
    view.adopt(turn, None)
    assert not view.notices_after(0)
    view.adopt(replace(turn, jobs=(replace(job, state="running", attempt=2),)), None)
    assert ActionRequired in [type(placed.notice) for placed in view.notices_after(0)]


def test_outputs_of_running_tools_are_copied_from_rows_and_removed_with_their_round() -> None:
    one, two = (PreliminaryOutput(1, "a", "look", words) for words in ("one", "two"))
    turn = turn_of(call(), rounds=[sealed(1)])
    view = LiveView(turn)
    view.adopt(replace(turn, preliminary=(one,)), None)
    view.adopt(replace(turn, preliminary=(one,)), None)
    view.adopt(replace(turn, preliminary=(two,), blocks=(call(), text(1))), None)
    assert [placed.notice for placed in view.notices] == [preliminary_notice(one), preliminary_notice(two)]
    assert view.turn.preliminary == (two,)
    open_round = LiveView(replace(turn_of(call(), rounds=[begun()]), preliminary=(one,)))
    open_round.void_round(voided(1), replace(open_round.turn, attempt=2))
    assert open_round.turn.preliminary == ()


def test_an_ask_that_is_not_shown_makes_no_mark() -> None:
    view = LiveView(turn_of(call(), rounds=[sealed(1)]))
    marks = len(view.marks)
    view.ask([replace(ask(), answer=AskAnswer("approve", grant=UUID(int=1)))])
    assert len(view.marks) == marks


# One row of each kind whose arrival causes an event.
NEW_ROWS = {
    "rounds": begun(2),
    "blocks": text(),
    "asks": ask(),
    "preliminary": PreliminaryOutput(1, "a", "look", "so far"),
    "jobs": Job(UUID(int=1), 1, "a", "dig", "tool", "half"),
}
UNSEEN = {"lineage", "steers"}  # the readers get attempts as numbers, and a steer only as a block


def test_each_kind_of_rows_of_a_turn_is_seen_or_not() -> None:
    kinds = {each.name for each in fields(Turn) if str(each.type).startswith("tuple")}
    assert kinds == NEW_ROWS.keys() | UNSEEN


@pytest.mark.parametrize("kind", NEW_ROWS)
def test_a_new_row_of_each_kind_reaches_the_view_of_another_replica(kind: str) -> None:
    view = LiveView(turn_of(rounds=[begun()]))
    rows: dict[str, Any] = {kind: (*getattr(view.turn, kind), NEW_ROWS[kind])}
    turn = replace(view.turn, **rows)
    view.adopt(turn, None)
    assert view.turn == turn
