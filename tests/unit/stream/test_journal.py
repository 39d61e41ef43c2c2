"""The text that is read from the journal, for any order of the journal's pieces."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tests.support.turns import TURN, begun, sealed, text, turn_of, voided
from turnstream.domain.blocks import Block
from turnstream.domain.turns import Turn
from turnstream.storage.runs.journal import JournalEntry, open_block_from
from turnstream.storage.runs.snapshots import ReplicaLog, Tick


def _piece(start: int, content: str, attempt: int = 1, index: int = 0) -> JournalEntry:
    return JournalEntry(TURN, attempt, index, start, 1, "text", content)


def _open(turn: Turn, *pieces: JournalEntry) -> Block | None:
    block, _ = open_block_from(turn, pieces)
    return block


def _tick(number: int, checkpoint: int = 0, *pieces: JournalEntry) -> Tick:
    return Tick(number, checkpoint, {piece.turn: piece for piece in pieces})


WRITING = turn_of(rounds=[begun()])


def test_pieces_are_put_together() -> None:
    assert _open(WRITING, _piece(0, "ahoy"), _piece(4, " there")) == text(0, 1, "ahoy there", interrupted=True)


def test_nothing_is_open_where_nothing_was_written_or_no_round_is_unsealed() -> None:
    assert _open(WRITING) is None
    assert _open(turn_of(rounds=[sealed()]), _piece(0, "ahoy")) is None
    assert _open(turn_of(rounds=[voided()]), _piece(0, "ahoy")) is None


def test_journal_entries_of_closed_blocks_and_voided_rounds_are_ignored() -> None:
    assert _open(turn_of(text(), rounds=[begun()]), _piece(0, "ahoy")) is None
    again = turn_of(rounds=[voided(1), begun(1, attempt=2)], attempt=2)
    assert _open(again, _piece(0, "draft")) is None
    assert _open(again, _piece(0, "draft"), _piece(0, "final", attempt=2)) == text(0, 1, "final", 2, interrupted=True)


def test_text_without_its_beginning_is_no_text() -> None:
    assert _open(WRITING, _piece(4, " there")) is None


def test_text_ends_where_a_piece_is_missing() -> None:
    assert _open(WRITING, _piece(0, "ahoy"), _piece(9, "re")) == text(0, 1, "ahoy", interrupted=True)


def test_the_rest_of_a_text_overlaps_the_known_part() -> None:
    rest = open_block_from(WRITING, [_piece(10, "!"), _piece(4, " there")], 6)
    assert rest == (text(0, 1, " there!", interrupted=True), 4)
    assert open_block_from(WRITING, [_piece(7, "ere")], 6) == (None, 0), "a piece is missing"


@given(st.text(min_size=1), st.data())
def test_a_restarted_journal_keeps_the_longest_text(whole: str, data: st.DataObject) -> None:
    """After a failed flush, the journal writes the text again in other pieces. The earlier pieces may still exist."""
    cuts = st.lists(st.integers(0, len(whole)), max_size=5).map(sorted)
    pieces: list[JournalEntry] = []
    reached = 0
    for end in (data.draw(st.integers(0, len(whole))), len(whole)):
        starts = [0, *(cut for cut in data.draw(cuts) if cut < end), end]
        for start, stop in itertools.pairwise(starts):
            pieces.append(_piece(start, whole[start:stop]))
            reached = max(reached, stop)
    block = _open(WRITING, *data.draw(st.permutations(pieces)))
    assert block is not None
    assert block.text == whole[:reached]


def test_a_log_is_read_on_where_no_tick_is_missing() -> None:
    seen = ReplicaLog().extended([_tick(4), _tick(5)])
    assert (seen.last, seen.continues) == (5, False), "what was before is not known"
    more = seen.extended([_tick(6, 0, _piece(4, " there"))])
    assert (more.last, more.continues) == (6, True)
    assert list(more.entries(TURN, more.new)) == [_piece(4, " there")]
    assert list(more.extended([]).entries(TURN, more.extended([]).new)) == []
    assert not seen.extended([_tick(7)]).continues, "tick 6 was deleted before it was read"
    assert not ReplicaLog().extended([]).continues, "its replica keeps no log"


def test_of_a_log_only_that_is_kept_which_is_not_stored() -> None:
    seen = ReplicaLog().extended([_tick(1, 0, _piece(0, "ahoy")), _tick(2, 0, _piece(4, ","))])
    more = seen.extended([_tick(3, 1, _piece(5, " you"))])
    assert [tick.number for tick in more.ticks] == [2, 3]
    assert list(more.entries(TURN)) == [_piece(4, ","), _piece(5, " you")]
    assert list(more.entries(TURN, more.new)) == [_piece(5, " you")]
    rest = more.extended([_tick(4, 3, _piece(9, "!")), _tick(5, 4)])
    assert [tick.number for tick in rest.ticks] == [4, 5]
    assert list(rest.entries(TURN, rest.new)) == [_piece(9, "!")], "what is new is not known, though it is stored"
    assert [tick.number for tick in rest.extended([]).ticks] == [5]
