"""`python -m tests.faults.soak MINUTES SITES`: random schedules of faults on several sites, beside a churn without any.

The seeds of schedules that fail are kept, with the logs of their servers. The end reports both.
"""

import asyncio
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic
from traceback import format_exception

from tests.faults.churn import churn
from tests.faults.schedules import problems_of_schedule, site_in
from tests.support.other_postgres import use_other_postgres

_SEEDS = Path(__file__).with_name("seeds.txt")


class Tally:
    def __init__(self) -> None:
        self.tried = 0
        self.failed: list[int] = []

    def add(self, seed: int, problems: Sequence[str]) -> None:
        self.tried += 1
        if problems:
            self.failed.append(seed)
            with _SEEDS.open("a") as seeds:
                seeds.write(f"{seed}\n")
            print(*problems, sep="\n")
        print(f"{self.tried} schedules, {len(self.failed)} violations (seed {seed})", flush=True)


async def schedules(folder: Path, until: float, tally: Tally, migrating: asyncio.Lock) -> None:
    """A schedule that fails leaves a site in an unknown state, so the next one has a new site."""
    while monotonic() < until:
        place = Path(tempfile.mkdtemp(dir=folder))
        place.chmod(0o711)
        async with AsyncExitStack() as owned:
            async with migrating:  # Alembic has one environment in a process
                site = await owned.enter_async_context(site_in(place))
            problems: Sequence[str] = ()
            while monotonic() < until and not problems:
                seed = random.randrange(1_000_000)
                try:
                    problems = await problems_of_schedule(site, seed)
                except (TimeoutError, ExceptionGroup) as error:
                    problems = [*format_exception(error), f"The logs are in {place}."]
                tally.add(seed, problems)


async def soak(minutes: float, sites: int, folder: Path) -> int:
    """How many violations there were."""
    until, tally, migrating = monotonic() + minutes * 60, Tally(), asyncio.Lock()
    async with asyncio.TaskGroup() as group:
        calm = group.create_task(churn(folder / "churn", until))
        for _ in range(sites):
            group.create_task(schedules(folder, until, tally, migrating))
    violations = [*calm.result().violations()]
    print(f"{tally.tried} schedules, {len(tally.failed)} failed: {tally.failed}", *calm.result().report(), sep="\n")
    print(*(f"violation: {each}" for each in violations), sep="\n")
    return len(tally.failed) + len(violations)


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop what was started, as after Ctrl-C
    use_other_postgres()
    folder = Path(tempfile.mkdtemp(prefix="turnstream-soak-"))
    folder.chmod(0o711)
    (folder / "churn").mkdir(mode=0o711)
    failed = asyncio.run(soak(float(sys.argv[1]), int(sys.argv[2]), folder))
    if not failed:
        shutil.rmtree(folder)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
