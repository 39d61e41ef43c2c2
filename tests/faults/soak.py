"""`python -m tests.faults.soak MINUTES SITES`: random schedules of faults on several sites, beside a churn without
faults.

Each site has a process of its own, and so has the churn. The seeds of failed schedules are kept, with the logs of their
servers. A report at the end covers the schedules and the churn.
"""

import asyncio
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from time import monotonic
from traceback import format_exception

from tests.faults.churn import churn
from tests.faults.schedules import problems_of_schedule, site_in
from tests.support.other_postgres import use_other_postgres
from turnstream.telemetry import configure_logging

_SEEDS = Path(__file__).with_name("seeds.txt")


@dataclass
class Tally:
    """Counts the schedules that one site has tried, and keeps the seeds of failed schedules."""

    number: int
    tried: int = 0
    failed: list[int] = field(default_factory=list)

    def add(self, seed: int, problems: Sequence[str]) -> None:
        self.tried += 1
        if problems:
            self.failed.append(seed)
            with _SEEDS.open("a") as seeds:
                seeds.write(f"{seed}\n")
            print(*problems, sep="\n")
        print(f"site {self.number}: {self.tried} schedules, {len(self.failed)} violations (seed {seed})", flush=True)


async def schedules(folder: Path, until: float, tally: Tally) -> None:
    """Runs schedules. A failed schedule leaves its site in an unknown state, so the next schedule gets a new site."""
    while monotonic() < until:
        place = Path(tempfile.mkdtemp(dir=folder))
        place.chmod(0o711)
        async with site_in(place) as site:
            problems: Sequence[str] = ()
            while monotonic() < until and not problems:
                seed = random.randrange(1_000_000)
                try:
                    problems = await problems_of_schedule(site, seed)
                except ExceptionGroup as error:
                    problems = [*format_exception(error), f"The logs are in {place}."]
                tally.add(seed, problems)


def run_site(folder: Path, until: float, number: int, tallies: "SimpleQueue[Tally]") -> None:
    random.seed()
    tally = Tally(number)
    asyncio.run(schedules(folder, until, tally))
    tallies.put(tally)


def soak(minutes: float, sites: int, folder: Path) -> int:
    """Runs the soak. Returns the number of violations."""
    until, context = monotonic() + minutes * 60, get_context("fork")
    tallies: SimpleQueue[Tally] = context.SimpleQueue()
    processes = [
        context.Process(target=run_site, name=f"site {number}", args=(folder, until, number, tallies))
        for number in range(1, sites + 1)
    ]
    for process in processes:
        process.start()
    try:
        calm = asyncio.run(churn(folder / "churn", until))
        for process in processes:
            process.join()
    finally:
        for process in processes:
            process.terminate()
    ended = [tallies.get() for process in processes if process.exitcode == 0]
    failed = [seed for tally in ended for seed in tally.failed]
    violations = [*calm.violations(), *(f"{process.name} broke off" for process in processes if process.exitcode)]
    print(f"{sum(tally.tried for tally in ended)} schedules, {len(failed)} failed: {failed}", *calm.report(), sep="\n")
    print(*(f"violation: {each}" for each in violations), sep="\n")
    return len(failed) + len(violations)


def main() -> None:
    # Both signals stop the started processes. A program that a shell runs in the background ignores SIGINT by default.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    use_other_postgres()
    configure_logging("error")  # warnings would be frequent, because servers often wait for Postgres
    folder = Path(tempfile.mkdtemp(prefix="turnstream-soak-"))
    folder.chmod(0o711)
    (folder / "churn").mkdir(mode=0o711)
    failed = soak(float(sys.argv[1]), int(sys.argv[2]), folder)
    if not failed:
        shutil.rmtree(folder)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
