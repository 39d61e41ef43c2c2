"""Attacks by other owners beside calm streams: the longest hold of the event loop, and the latency of the calm streams.

The trial runs all attacks at once. `python -m tests.bench.hostile [WORD]…` runs only the attacks whose names contain
one of the words, one after another.
"""

import asyncio
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from threading import Event, Thread
from typing import NamedTuple

import httpx2
import psutil

from tests.bench.adversary import adversary
from tests.bench.archive_attacks import ATTACKER
from tests.bench.candidates import Server
from tests.bench.chats import HELD_TARGET, INSERT_TURNS
from tests.bench.database import bench_database, new_database
from tests.bench.load import Load, LoadResult, Times
from tests.bench.long_attacks import CHAT_TURNS, LONG_ATTACKS, SAID, Outcome
from tests.bench.processes import raise_file_limit, resident_bytes
from tests.bench.provider import fake_provider
from tests.bench.scenarios import RATE, FaultError, faultless, warm_up
from tests.bench.trials import Rows, Site
from tests.bench.watched_server import ON_PURPOSE
from turnstream.domain.identity import OF_A_PERSON, Identity
from turnstream.domain.turns import TurnRequest
from turnstream.kit.ids import new_id
from turnstream.storage.database import connect
from turnstream.storage.owners.tokens import Tokens
from turnstream.storage.row_security import embedded_api_url
from turnstream.storage.rows import to_json

_MEGABYTE = 1_000_000
_SETTINGS = {"TURNSTREAM_MAX_UPLOAD_BYTES": "20000000"}
_LIMIT = 4  # maximum seconds for a measurement, as a multiple of the planned seconds
_FOR_A_MOMENT = frozenset({429, 503})
_TRIES = 30  # tries of an attack that gets temporary refusals
_NAMED = 5  # functions with the longest holds that the report names


class Attacked(NamedTuple):
    outcomes: Sequence[Outcome]
    seconds: float


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of a measurement. `holds` maps functions to their longest hold of the event loop, in milliseconds of
    processor time, longest first. `most_memory` is the peak growth of the server, and `memory` its growth at the end.
    `command_memory` is the peak of an operator's command that read the attackers' data. Memory is in megabytes.
    """

    load: LoadResult
    holds: Mapping[str, float]
    most_memory: float
    memory: float
    attacked: Mapping[str, Attacked]
    command_memory: float = 0.0

    def longest(self) -> float:
        return max(self.holds.values(), default=0.0)

    def undefined(self) -> str:
        """Returns the attacks that had an outcome other than their defined outcomes."""
        faults = [
            f"{name}: {outcomes}"
            for name, (outcomes, _) in self.attacked.items()
            if not set(outcomes) <= {*LONG_ATTACKS[name].outcomes, *_FOR_A_MOMENT}
        ]
        return "; ".join(faults)


@dataclass(frozen=True, slots=True)
class Target:
    """A server, the attacked chat, and the tokens of both owners."""

    server: Server
    log: Path
    calm: str
    attacker: str
    chat: str
    attackers: ProcessPoolExecutor

    def measured(self, load: Load, names: Sequence[str] = ()) -> Measured:
        process, log_before = self.server.process, self.log.stat().st_size
        with _memory(process) as memory, self.server.start(load) as running:
            running.wait_until_attached()
            attacked, command_memory = self._attacked(names) if names else ({}, 0.0)
            result = running.result()
        with self.log.open(encoding="utf-8") as log:
            log.seek(log_before)
            holds = holds_in(log)
        before, after = memory[0], resident_bytes(process)
        grown, kept = (max(memory) - before) / _MEGABYTE, (after - before) / _MEGABYTE
        return Measured(result, holds, grown, kept, attacked, command_memory)

    def _attacked(self, names: Sequence[str]) -> tuple[Mapping[str, Attacked], float]:
        url = f"http://127.0.0.1:{self.server.port}"
        return self.attackers.submit(_attack, names, url, self.attacker, self.chat).result()


def hostile(chats: int, seconds: int) -> Callable[[Site], Rows]:
    """Measures `chats` calm streams of `seconds` seconds, alone and beside all attacks."""

    def run(site: Site) -> Rows:
        # Tokens need a database of their own: once a database has a token, a server rejects requests without one, and
        # the other trials send no token.
        with new_database(site.database.url) as database, _target(replace(site, database=database)) as target:
            load = _calm(target, chats, seconds)
            alone, attacked = target.measured(load), target.measured(load, list(LONG_ATTACKS))
        return rows(alone, attacked)

    return run


def _calm(target: Target, chats: int, seconds: int) -> Load:
    return Load(f"deltas={RATE * seconds} rate={RATE}", chats, token=target.calm, limit_seconds=seconds * _LIMIT)


@contextmanager
def _target(site: Site) -> Iterator[Target]:
    wall = {"TURNSTREAM_API_DATABASE_URL": asyncio.run(embedded_api_url(site.database.url))}
    with (
        adversary(site.folder) as settings,
        site.served(settings | _SETTINGS | wall, module="tests.bench.watched_server") as server,
        # A new process for each measurement: getrusage reports the peak of all commands of a process.
        ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), _begin, (site.database.url,), max_tasks_per_child=1
        ) as attackers,
    ):
        warm_up(server)
        log = site.folder / "turnstream.log"
        check_watch(log.read_text(encoding="utf-8").splitlines())
        calm, attacker, chat = asyncio.run(_prepared(site.database.url))
        yield Target(server, log, calm, attacker, chat, attackers)


async def _prepared(url: str) -> tuple[str, str, str]:
    chat, request = new_id(), to_json(TurnRequest("claude-sonnet-5-5"))
    async with connect(url, size=2) as database:
        await database.rows(INSERT_TURNS, chat=chat, owner=ATTACKER, turns=CHAT_TURNS, request=request, words=SAID)
        tokens = Tokens(database)
        calm, attacker = [await tokens.create(owner, Identity(owner, OF_A_PERSON)) for owner in ("calm", ATTACKER)]
    return calm, attacker, str(chat)


@contextmanager
def _memory(process: psutil.Process) -> Iterator[list[int]]:
    """Yields the resident bytes of the process, sampled ten times a second."""
    seen, over = [resident_bytes(process)], Event()

    def watch() -> None:
        while not over.wait(0.1):
            seen.append(resident_bytes(process))

    watcher = Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


def check_watch(log: Iterable[str]) -> None:
    """Raises FaultError if the log of the server misses the holds of the event loop that the server makes on purpose at
    its start. If the watch did not work, every attack would pass. The watch starts to measure within a hold, so its
    figure is too small.
    """
    if max(holds_in(log).values(), default=0.0) < ON_PURPOSE / 2:
        raise FaultError("The log of the server does not name what held its event loop.")


def holds_in(log: Iterable[str]) -> Mapping[str, float]:
    """Returns the longest hold of each function in a server's log, in milliseconds, longest first."""
    lines = [json.loads(line) for line in log if '"loop.held"' in line]
    longest: dict[str, float] = {}
    for line in sorted(lines, key=lambda line: -line["processor_seconds"]):
        longest.setdefault(line["where"], line["processor_seconds"] * 1000)
    return longest


def _begin(database_url: str) -> None:
    """Gives the attackers' process a lower priority than the clients and the provider of the calm streams."""
    os.nice(10)
    os.environ["DATABASE_URL"] = database_url  # for the commands that the attacks run


class _RefusedError(Exception):
    """Raised when the server refuses a request temporarily, so that a retry may succeed."""


def _check(answer: httpx2.Response) -> None:
    if answer.status_code in _FOR_A_MOMENT:
        raise _RefusedError(answer.status_code)


def _attack(names: Sequence[str], url: str, token: str, chat: str) -> tuple[Mapping[str, Attacked], float]:
    """Returns the outcomes of each attack, and the peak memory of the largest command, in megabytes."""

    def one(name: str) -> Attacked:
        begun, outcomes = time.monotonic(), set[Outcome]()
        with httpx2.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            trust_env=False,
            timeout=300,
            event_hooks={"response": [_check]},
        ) as client:
            for _ in range(_TRIES):
                try:
                    outcomes.update(LONG_ATTACKS[name].run(client, chat))
                    break
                except _RefusedError as refused:
                    outcomes.add(refused.args[0])
                    time.sleep(1)
        return Attacked(sorted(outcomes, key=str), time.monotonic() - begun)

    with ThreadPoolExecutor(len(names)) as pool:
        attacked = dict(zip(names, pool.map(one, names), strict=True))
    return attacked, getrusage(RUSAGE_CHILDREN).ru_maxrss * 1024 / _MEGABYTE


def rows(alone: Measured, attacked: Measured) -> Rows:
    """Returns the figures. Raises FaultError if a calm stream has a fault, or an attack an undefined outcome."""
    if fault := attacked.undefined():
        raise FaultError(fault)
    before, during = faultless(alone.load).delta, faultless(attacked.load).delta
    assert before is not None
    assert during is not None
    named = list(attacked.holds.items())[:_NAMED]
    return {
        "added latency p50, ms": (before.p50, during.p50, None),
        "added latency p99, ms": (before.p99, during.p99, None),
        "added latency, longest, ms": (before.max, during.max, None),
        "longest hold of the event loop, ms": (alone.longest(), attacked.longest(), HELD_TARGET),
        **{f"`{where}`, ms": (alone.holds.get(where), held, HELD_TARGET) for where, held in named},
        "server memory, MB more meanwhile": (alone.most_memory, attacked.most_memory, None),
        "server memory, MB more at the end": (alone.memory, attacked.memory, None),
        "memory of the largest command, MB": (None, attacked.command_memory, None),
        **{
            f"{name}: {', '.join(map(str, outcomes))}; s": (None, seconds, None)
            for name, (outcomes, seconds) in attacked.attacked.items()
        },
    }


def main() -> None:
    raise_file_limit()
    words = sys.argv[1:]
    print("| attack | outcomes | held | where | delay p99 | longest | memory | command |")
    print("|---|---|---:|---|---:|---:|---:|---:|")
    with ExitStack() as owned:
        folder = Path(owned.enter_context(tempfile.TemporaryDirectory()))
        site = Site(owned.enter_context(fake_provider(folder)), owned.enter_context(bench_database(folder)), folder)
        target = owned.enter_context(_target(site))
        load = _calm(target, chats=50, seconds=6)
        for name in ("none", *(name for name in LONG_ATTACKS if not words or any(word in name for word in words))):
            measured = target.measured(load, [name] if name in LONG_ATTACKS else [])
            outcomes = [str(each) for attack in measured.attacked.values() for each in attack.outcomes]
            if measured.load.faults:
                outcomes.append(f"calm streams: {measured.load.describe_faults()}")
            where, delay = next(iter(measured.holds), ""), measured.load.delta or Times(0, 0, 0, 0)
            figures = f"{measured.longest():.0f} ms | {where} | {delay.p99:.0f} ms | {delay.max:.0f} ms"
            memory = f"+{measured.most_memory:.0f} MB | {measured.command_memory:.0f} MB"
            print(f"| {name} | {', '.join(outcomes)} | {figures} | {memory} |", flush=True)


if __name__ == "__main__":
    main()
