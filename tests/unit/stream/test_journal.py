"""What is read back from the journal, whatever order its pieces were written in."""

import itertools
from collections.abc import Sequence
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from app.domain.blocks import Block
from app.domain.turns import Turn
from app.storage.database import Row
from app.storage.runs.journal import open_block_from
from tests.support.turns import begun, sealed, text, turn_of, voided


def _row(start: int, content: str, attempt: int = 1, index: int = 0) -> dict[str, Any]:
    return {
        "attempt": attempt,
        "index": index,
        "start": start,
        "round": 1,
        "type": "text",
        "tool_use_id": None,
        "name": None,
        "text": content,
    }


def _open(turn: Turn, *rows: dict[str, Any]) -> Block | None:
    stored = sorted(rows, key=lambda row: (row["attempt"], row["index"], row["start"]))
    block, _ = open_block_from(turn, cast("Sequence[Row]", stored))
    return block


WRITING = turn_of(rounds=[begun()])


def test_pieces_are_put_together() -> None:
    assert _open(WRITING, _row(0, "ahoy"), _row(4, " there")) == text(0, 1, "ahoy there", interrupted=True)


def test_nothing_is_open_where_nothing_was_written_or_no_round_is_unsealed() -> None:
    assert _open(WRITING) is None
    assert _open(turn_of(rounds=[sealed()]), _row(0, "ahoy")) is None
    assert _open(turn_of(rounds=[voided()]), _row(0, "ahoy")) is None


def test_journal_entries_of_closed_blocks_and_voided_rounds_are_ignored() -> None:
    assert _open(turn_of(text(), rounds=[begun()]), _row(0, "ahoy")) is None
    again = turn_of(rounds=[voided(1), begun(1, attempt=2)], attempt=2)
    assert _open(again, _row(0, "draft")) is None
    assert _open(again, _row(0, "draft"), _row(0, "final", attempt=2)) == text(0, 1, "final", 2, interrupted=True)


def test_text_without_its_beginning_is_no_text() -> None:
    assert _open(WRITING, _row(4, " there")) is None


def test_text_ends_where_a_piece_is_missing() -> None:
    assert _open(WRITING, _row(0, "ahoy"), _row(9, "re")) == text(0, 1, "ahoy", interrupted=True)


def test_the_rest_of_a_text_begins_in_what_is_known() -> None:
    def rest(known: int, *rows: dict[str, Any]) -> tuple[Block | None, int]:
        return open_block_from(WRITING, cast("Sequence[Row]", rows), known)

    assert rest(6, _row(4, " there"), _row(10, "!")) == (text(0, 1, " there!", interrupted=True), 4)
    assert rest(6, _row(7, "ere")) == (None, 0), "a piece is missing"


@given(st.text(min_size=1), st.data())
def test_a_journal_that_was_begun_anew_keeps_the_longest_text(whole: str, data: st.DataObject) -> None:
    """After a flush that failed all is written again, in other pieces than before; the old ones may still be there."""
    cuts = st.lists(st.integers(0, len(whole)), max_size=5).map(sorted)
    rows: dict[int, dict[str, Any]] = {}
    reached = 0
    for end in (data.draw(st.integers(0, len(whole))), len(whole)):
        starts = [0, *(cut for cut in data.draw(cuts) if cut < end), end]
        for start, stop in itertools.pairwise(starts):
            rows[start] = _row(start, whole[start:stop])
            reached = max(reached, stop)
    block = _open(WRITING, *rows.values())
    assert block is not None
    assert block.text == whole[:reached]
