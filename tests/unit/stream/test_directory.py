import gc
from contextlib import ExitStack
from dataclasses import replace

import pytest

from tests.support.turns import CHAT, TURN, text, turn_of
from turnstream.domain.turns import Turn
from turnstream.kit.ids import new_id
from turnstream.stream.directory import Directory
from turnstream.stream.live import LiveView


def _attempt(number: int) -> LiveView:
    return LiveView(turn_of(attempt=number))


def test_a_turn_that_runs_here_is_found_for_its_owner_only() -> None:
    directory, view = Directory(), _attempt(1)
    with directory.host(view, "ada"):
        assert directory.here() == [view]
        assert directory.running(TURN) is view
        assert directory.running_for("ada", CHAT, TURN) is view
        assert directory.running_for("eve", CHAT, TURN) is None
        assert directory.running_for("ada", new_id(), TURN) is None
        assert directory.view(view.turn) is view
        assert directory.is_fed(view)
    assert directory.here() == []
    assert directory.running(TURN) is None
    assert directory.running_for("ada", CHAT, TURN) is None
    assert not directory.is_fed(view)


def test_readers_of_a_turn_that_runs_elsewhere_share_one_view_while_there_are_any() -> None:
    directory = Directory()
    view = directory.view(turn_of())
    assert directory.view(turn_of()) is view
    assert directory.mirrored() == [view]
    assert directory.is_fed(view)
    del view
    gc.collect()
    assert directory.mirrored() == []


def test_an_ended_turn_is_not_mirrored() -> None:
    directory = Directory()
    view = directory.view(turn_of(status="complete"))
    assert directory.mirrored() == []
    assert not directory.is_fed(view)
    other = directory.view(replace(turn_of(), id=new_id()))
    other.adopt(replace(other.turn, status="complete"), None)
    assert directory.mirrored() == []


def test_readers_of_a_mirror_move_to_the_view_of_a_turn_that_is_claimed_here() -> None:
    directory = Directory()
    mirror, view = directory.view(turn_of(status="queued", attempt=0)), _attempt(1)
    with directory.host(view, "ada"):
        assert not directory.is_fed(mirror)
        assert directory.view(mirror.turn) is view
        assert directory.mirrored() == []


def test_a_view_is_never_older_than_the_turn_that_it_is_asked_for() -> None:
    directory = Directory()
    late = directory.view(turn_of(attempt=1))
    newer = turn_of(attempt=2)
    assert directory.view(newer) is late
    assert late.attempt == 2
    assert late.provisional, "its open text may be in the journal"
    assert directory.view(turn_of(attempt=1)) is late
    assert late.attempt == 2


@pytest.mark.parametrize(
    "later",
    [replace(turn_of(), status="complete"), replace(turn_of(), blocks=(text(),))],
    ids=["ended", "longer"],
)
def test_a_mirror_that_is_late_shows_no_less_than_the_rows(later: Turn) -> None:
    directory = Directory()
    mirror = directory.view(turn_of())
    assert directory.view(later) is mirror
    assert mirror.turn == later
    assert directory.view(turn_of()).turn == later


def test_a_view_that_lost_its_claim_is_not_the_view_of_the_turn() -> None:
    directory, lost = Directory(), _attempt(1)
    with directory.host(lost, "ada"):
        view = directory.view(turn_of(attempt=2))
        assert view is not lost
        assert directory.is_fed(view)
        assert directory.is_fed(lost), "its readers are notified when its writer stops"
        assert directory.mirrored() == [view]


def test_a_turn_that_is_claimed_here_again_outlives_the_end_of_the_first_run() -> None:
    directory, first, second = Directory(), _attempt(1), _attempt(2)
    with ExitStack() as hosting:
        hosting.enter_context(directory.host(first, "ada"))
        with directory.host(second, "ada"):
            hosting.close()
            assert directory.running(TURN) is second
            assert directory.running_for("ada", CHAT, TURN) is second
    assert directory.running(TURN) is None


def test_a_turn_that_is_claimed_here_again_may_also_end_first() -> None:
    directory, first, second = Directory(), _attempt(1), _attempt(2)
    with directory.host(first, "ada"):
        with directory.host(second, "ada"):
            pass
        assert directory.running(TURN) is None
