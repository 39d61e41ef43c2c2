"""The check of a soak run reports memory or tables that grow in healthy servers, and turns that ran twice."""

import pytest

from tests.faults.churn import Measured, Size

MB = 1_000_000
SAMPLES = range(60)


def measured(memory: float = 0.0, table: float = 0.0, rows: float = 0.0, second_runs: int = 0) -> Measured:
    """Returns measurements that grow by these amounts per sample: the server's bytes, and a table's bytes and rows."""
    return Measured(
        second_runs=second_runs,
        seconds=[5.0 * at for at in SAMPLES],
        memory={8000: [int(100 * MB + at * memory + (at % 3) * MB) for at in SAMPLES]},
        tables={"turns": [Size(int(5 * MB + at * table), int(100 + at * rows), 0) for at in SAMPLES]},
    )


@pytest.mark.parametrize(
    ("soak", "found"),
    [
        (measured(), []),
        (measured(memory=0.1 * MB), []),
        (measured(table=MB, rows=20), []),
        (measured(memory=0.5 * MB), ["the server at 8000 has grown by 19.5 MB"]),
        (measured(table=MB), ["the table turns went from"]),
        (measured(second_runs=2), ["2 turns ran again, though nothing died"]),
    ],
)
def test_growth_and_second_runs_are_violations(soak: Measured, found: list[str]) -> None:
    violations = [*soak.violations()]
    assert len(violations) == len(found)
    assert all(violation.startswith(start) for violation, start in zip(violations, found, strict=True))
