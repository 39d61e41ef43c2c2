"""Postgres fails over: the primary dies, its standby is promoted, and both stand in DATABASE_URL."""

import os
import signal
from pathlib import Path

import pytest

from tests.faults.fifty_turns import fifty_turns, finish
from tests.faults.postgres import own_pair

pytestmark = pytest.mark.timeout(300)


async def test_a_promoted_standby_goes_on_with_every_turn(tmp_path: Path) -> None:
    async with own_pair(tmp_path) as pair, fifty_turns(pair.url, tmp_path) as site:
        os.kill(pair.primary.pid, signal.SIGQUIT)
        await pair.promote()
        await finish(site)
