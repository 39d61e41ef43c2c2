"""Three replicas on a Postgres with a standby, while turns run and readers change replicas. Replicas are killed,
stopped or frozen, and may have wrong clocks. Postgres is frozen, locked or read-only, cuts its sessions, crashes, and
fails over.

The seed of a schedule, FAULTS_SEED, is printed. `make soak` draws schedules one after another and keeps the failed
seeds in seeds.txt. Each run of this test tries these seeds again.
"""

import asyncio
import os
import random
from pathlib import Path
from time import monotonic
from typing import cast

import pytest

from tests.faults.churn import churn
from tests.faults.processes import Process
from tests.faults.schedules import Replica, Site, problems_of_schedule, site_in
from tests.support.effort import FULL

_NEW = 5 if FULL else 2
SEEDS = Path(__file__).with_name("seeds.txt")


@pytest.mark.timeout(1800)  # a halted schedule fails long before; a loaded machine needs minutes for a good one
async def test_under_random_faults_every_turn_ends_and_every_reader_is_complete(tmp_path: Path) -> None:
    """Tries the seeds that have failed once, and new seeds."""
    seeds = [*map(int, SEEDS.read_text().split()), *(random.randrange(1_000_000) for _ in range(_NEW))]
    if "FAULTS_SEED" in os.environ:
        seeds = [int(os.environ["FAULTS_SEED"])]
    async with site_in(tmp_path) as site:
        for seed in seeds:
            print(f"seed {seed}, lease {site.lease:.1f} s")
            problems = await problems_of_schedule(site, seed)
            assert not problems, "\n".join(problems)


async def test_a_replica_that_gets_no_turn_is_waited_for_until_all_have_ended(tmp_path: Path) -> None:
    class Idle(Replica):
        async def _has_turns(self) -> bool:
            asked.set()
            return False

    asked, last_turn = asyncio.Event(), asyncio.Event()
    shows = asyncio.create_task(last_turn.wait())
    replica = Idle(cast("Site", None), 1.0, 0, tmp_path / "log")
    stale = asyncio.create_task(replica.become_stale(shows))
    await asked.wait()
    assert not stale.done()
    last_turn.set()
    await stale


async def test_a_server_that_ended_before_anybody_knew_of_it_is_dead() -> None:
    ended = await asyncio.create_subprocess_exec("true")
    await ended.wait()
    assert Process(ended.pid).dead.is_set()


@pytest.mark.timeout(300)
async def test_the_first_visits_of_a_churn_find_nothing(tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    measured = await churn(tmp_path, until=monotonic())
    assert measured.visits > 0
    assert (measured.problems, measured.second_runs) == ([], 0)
