"""When a turn whose runs fail is run again."""

from uuid import UUID

from app.engine.worker import FailedRuns

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
