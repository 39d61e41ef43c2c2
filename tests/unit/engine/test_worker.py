"""The time of the next run of a turn after its earlier runs have failed."""

from uuid import UUID

from turnstream.engine.worker import FailedRuns, Isolation

ADA, BEN = UUID(int=1), UUID(int=2)


def test_a_turn_that_fails_again_and_again_is_run_ever_more_seldom() -> None:
    failed, now = FailedRuns(1.0), 100.0
    assert failed.may_run(ADA, now)
    pauses = []
    for _ in range(12):
        pauses.append(failed.note(ADA, now))
        assert not failed.may_run(ADA, now + pauses[-1] - 0.5)
        now += pauses[-1]
        assert failed.may_run(ADA, now)
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    assert failed.note(BEN, now) == 1


def test_a_turn_that_has_ended_is_forgotten() -> None:
    failed = FailedRuns(1.0)
    failed.note(ADA, 0.0)
    failed.note(BEN, 0.0)
    failed.keep({BEN})
    assert failed.may_run(ADA, 0.0)
    assert not failed.may_run(BEN, 0.0)


SUSPECTS = tuple(map(UUID, (f"{number:032x}" for number in range(1, 8))))


def test_nothing_begins_beside_a_suspect_for_a_while_and_for_longer_after_more_deaths() -> None:
    for deaths, seconds in ((2, 3.0), (3, 6.0), (4, 12.0), (30, 60.0)):
        isolation = Isolation(100.0)
        assert isolation.begin(SUSPECTS[:1], deaths, 100.0) == seconds
        assert isolation.holds(SUSPECTS, 100.0 + seconds - 0.1)
        assert not isolation.holds(SUSPECTS, 100.0 + seconds)
        assert not isolation.holds(SUSPECTS[1:], 100.0), "it has ended"


def test_a_busy_replica_takes_suspects_with_pauses_and_an_idle_one_at_once() -> None:
    isolation = Isolation(100.0)
    assert [isolation.room(now, is_idle=False) for now in (100.0, 102.9, 103.0)] == [0, 0, 1]
    assert isolation.room(100.0, is_idle=True) == 1
    isolation.begin(SUSPECTS[:1], 2, 103.0)
    assert [isolation.room(now, is_idle=False) for now in (106.0, 108.9, 109.0)] == [0, 0, 2]


def test_a_process_that_outlives_suspects_takes_twice_as_many_until_there_are_none() -> None:
    isolation, taken = Isolation(0.0), []
    for now in (0.0, 6.0, 12.0):
        taken.append(isolation.room(now, is_idle=True))
        isolation.begin(SUSPECTS[: taken[-1]], 2, now)
    isolation.end()
    assert [*taken, isolation.room(18.0, is_idle=True)] == [1, 2, 4, 1]
