"""Patroni switches over and fails over under fifty running turns."""

from pathlib import Path

import pytest

from tests.faults.fifty_turns import fifty_turns, finish
from tests.faults.patroni import patroni

pytestmark = [pytest.mark.timeout(300), pytest.mark.needs("Patroni", "etcd")]


async def test_fifty_turns_continue_through_a_switchover_and_a_failover(tmp_path: Path) -> None:
    async with patroni(tmp_path) as cluster, fifty_turns(cluster.url, tmp_path) as site:
        first = await cluster.until_whole()
        await cluster.switch_over(first)
        for gate in ("before the call", "end of text"):
            site.model.open(gate)
        second = await cluster.until_whole()
        assert second is not first
        await second.kill()
        site.model.open("effect")
        await cluster.until(lambda roles: roles == {first.name: "leader"})
        await finish(site)
