"""The benchmark of attacks reports functions that hold the loop, and rejects undefined outcomes."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.bench.chats import HELD_TARGET
from tests.bench.hostile import Attacked, Measured, check_watch, holds_in, rows
from tests.bench.load import LoadResult, Times
from tests.bench.long_attacks import Outcome
from tests.bench.scenarios import FaultError
from tests.bench.watched_server import ON_PURPOSE, ProvenWatch
from turnstream.extensions.watches import loop_watch

HEADER = "a header of 12 MB"
CALM = LoadResult(
    completed=50,
    failed=0,
    deltas=15_000,
    delta_events=15_000,
    bytes=0,
    lost=0,
    repeated=0,
    disordered=0,
    foreign=0,
    resumes=0,
    resets=0,
    ended_204=0,
    replay_events=0,
    postponed=0,
    wall_seconds=6.0,
    cpu_seconds=1.0,
    first_delta=None,
    opening=None,
    delta=Times(count=15_000, p50=0.2, p99=4.0, max=50.0),
    mirror=None,
    replay=None,
    rejoin=None,
    steady_seconds=0.0,
    steady=None,
    first_failure="",
)
ALONE = Measured(CALM, {"app.a": 4.0}, most_memory=16.0, memory=16.0, attacked={})


def attacked(*outcomes: Outcome, holds: Sequence[str] = ()) -> Measured:
    return replace(ALONE, holds=holds_in(holds), attacked={HEADER: Attacked(outcomes, 1.0)})


def held(where: str, seconds: float) -> str:
    return json.dumps({"event": "loop.held", "seconds": 9.0, "processor_seconds": seconds, "where": where})


def test_the_longest_blocker_of_the_loop_is_named_and_is_the_figure_of_the_trial() -> None:
    lines = [held("app.a", 0.012), held("app.b", 0.077), '{"event": "other"}', held("app.b", 0.03)]
    table = rows(ALONE, attacked(431, holds=lines))
    assert table["longest hold of the event loop, ms"] == (4.0, 77.0, HELD_TARGET)
    assert table["`app.b`, ms"] == (None, 77.0, HELD_TARGET)
    assert table["`app.a`, ms"] == (4.0, 12.0, HELD_TARGET)


@pytest.mark.parametrize("outcome", [200, 500, "failed"])
def test_an_attack_that_ends_in_another_way_than_is_defined_fails_the_trial(outcome: Outcome) -> None:
    rows(ALONE, attacked(431, 429, 503))  # temporary refusals, after which the attack retries
    with pytest.raises(FaultError, match=f"{HEADER}: .*{outcome}"):
        rows(ALONE, attacked(431, outcome))


def test_a_word_that_a_calm_stream_lost_fails_the_trial() -> None:
    with pytest.raises(FaultError, match="1 lost"):
        rows(ALONE, replace(attacked(431), load=replace(CALM, lost=1)))


async def test_a_server_whose_log_names_no_hold_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    log, found, loop = list[str](), asyncio.Event(), asyncio.get_running_loop()

    class Log:
        def warning(self, event: str, **members: Any) -> None:
            log.append(json.dumps({"event": event, **members}))
            if max(holds_in(log).values()) >= ON_PURPOSE / 2:
                loop.call_soon_threadsafe(found.set)

    for name, value in {"PAUSE": 0.002, "LIMIT": 0.01, "_LOGGED": 0.0, "log": Log()}.items():
        monkeypatch.setattr(loop_watch, name, value)
    with pytest.raises(FaultError, match="does not name"):
        check_watch(log)
    with ProvenWatch():
        await found.wait()
    check_watch(log)
