"""`make scoreboard` compares turnstream, two servers without storage, and peers from package registries. All servers
have the same provider, and the same load, which checks each delta. Writes `docs/benchmarks`.
"""

import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import psutil
from rich.console import Console

from tests.bench.board import DATA, write_board
from tests.bench.candidates import Server, served
from tests.bench.capacity import highest_passing
from tests.bench.contestants import PEER_STARTS, CannotInstallError, Contestant, of_this_tree
from tests.bench.database import bench_database
from tests.bench.interrupted import Killed, after_cuts
from tests.bench.load import Load, LoadResult
from tests.bench.processes import (
    StartError,
    cpu_seconds,
    family,
    free_port,
    raise_file_limit,
    resident_bytes,
    wait_until_calm,
    waited_seconds,
)
from tests.bench.provider import FakeProvider, fake_provider
from tests.bench.report import machine
from tests.bench.scenarios import PROMPT_MS, RATE, faultless, wait_until_idle

console = Console(stderr=True, highlight=False)
Figures = dict[str, float]


@click.command()
@click.option("--repetitions", default=3, show_default=True)
@click.option("--peers/--no-peers", "with_peers", default=True, show_default=True)
@click.option("--capacity/--no-capacity", "with_capacity", default=True, help="Search for the most streams of a core.")
@click.option("--write/--no-write", default=True, show_default=True)
def main(repetitions: int, with_peers: bool, with_capacity: bool, write: bool) -> None:
    raise_file_limit()
    with ExitStack() as owned:
        folder = Path(owned.enter_context(tempfile.TemporaryDirectory(prefix="scoreboard-")))
        provider = owned.enter_context(fake_provider(folder))
        contestants = [*of_this_tree(owned.enter_context(bench_database(folder)))]
        missing = {}
        for name, start in PEER_STARTS.items() if with_peers else ():
            try:
                contestants.append(owned.enter_context(start(folder)))
            except CannotInstallError as error:
                missing[name] = str(error)
        seen: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        faults: dict[str, list[str]] = defaultdict(list)
        for repetition in range(repetitions):
            for each in contestants if repetition % 2 == 0 else reversed(contestants):
                for figures in measured(each, provider, folder, faults[each.title], with_capacity):
                    console.print(f"{each.title}: {figures}")
                    for measure, value in figures.items():
                        seen[each.title][measure].append(value)
                if write:  # an interrupted run keeps the figures it has so far
                    begun = [one for one in contestants if seen[one.title]]
                    result = as_json(begun, seen, faults, missing, repetition + 1)
                    DATA.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
                    write_board()


def as_json(
    contestants: list[Contestant],
    seen: dict[str, dict[str, list[float]]],
    faults: dict[str, list[str]],
    missing: dict[str, str],
    repetitions: int,
) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "repetitions": repetitions,
        "not installed": missing,
        "contestants": [
            {
                "name": each.title,
                "configuration": each.about,
                "versions": each.versions,
                "figures": {
                    measure: [round(f(values), 3) for f in (statistics.median, min, max)]
                    for measure, values in seen[each.title].items()
                },
                "faults": sorted(set(faults[each.title])),
            }
            for each in contestants
        ],
    }


def measured(
    it: Contestant, provider: FakeProvider, folder: Path, faults: list[str], with_capacity: bool
) -> Iterator[Figures]:
    """Yields the figures of each step. A failed step has no figures and is added to `faults`."""
    try:
        yield from under_loads(it, provider, folder, faults, with_capacity)
    except (StartError, psutil.Error) as fault:
        note_fault(faults, f"{fault!r}")
    try:
        yield killed(it, provider, folder)
    except Exception as fault:  # noqa: BLE001
        note_fault(faults, f"kill -9: {fault!r}")


def under_loads(
    it: Contestant, provider: FakeProvider, folder: Path, faults: list[str], with_capacity: bool
) -> Iterator[Figures]:
    with served(it.candidate, provider.url, folder) as server:
        server.run(Load("deltas=50 rate=100", chats=5, ramp_seconds=0.1, single=it.single))
        wait_until_calm(server.process)
        steps: list[tuple[str, Callable[[], Figures]]] = [
            ("idle streams", lambda: idle(it, server)),
            ("turns", lambda: turns(it, server)),
            ("cuts", lambda: after_cuts(server.dialect, server.port)),
            ("50 streams", lambda: streams(it, server, 50)),
            ("200 streams", lambda: streams(it, server, 200)),
        ]
        if with_capacity:
            steps.append(("capacity", lambda: capacity(it, server, provider)))
        for name, step in steps:
            try:
                yield step()
            except Exception as fault:  # noqa: BLE001, of a server under measurement
                note_fault(faults, f"{name}: {fault!r}")
            wait_until_idle(provider)
        yield {"waited for its CPU, %": 100 * waited_seconds(server.process) / cpu_seconds(server.process)}


def note_fault(faults: list[str], fault: str) -> None:
    faults.append(fault[:300])
    console.print(fault[:300], style="red", markup=False)


def idle(it: Contestant, server: Server) -> Figures:
    chats = 100
    before = resident_bytes(server.process)
    with server.start(Load("deltas=10 rate=20 first=4000", chats=chats, single=it.single)) as run:
        assert run.wait_until_attached()
        time.sleep(0.5)
        grown = resident_bytes(server.process) - before
        faultless(run.result())
    return {"memory of an idle server, MB": before / 1e6, "memory of an idle stream, KiB": grown / 1024 / chats}


def turns(it: Contestant, server: Server) -> Figures:
    """Measures turns without concurrency. Ten turns a second are a load that each server can carry."""
    load = Load("deltas=2 rate=50", chats=100, ramp_seconds=10, single=it.single)
    result, server_seconds, store_seconds = run_measured(it, server, load)
    assert result.first_delta is not None
    return {
        "first delta, p50, ms": result.first_delta.p50,
        "first delta, p99, ms": result.first_delta.p99,
        "CPU of a turn, ms": server_seconds / load.chats * 1000,
        "CPU of its database, ms": store_seconds / load.chats * 1000,
    }


def streams(it: Contestant, server: Server, chats: int) -> Figures:
    load = Load(f"deltas={min(200, 20_000 // chats)} rate={RATE}", chats=chats, single=it.single, limit_seconds=60)
    result, server_seconds, _ = run_measured(it, server, load)
    assert result.delta is not None
    return {
        f"CPU of a delta, {chats} streams, µs": server_seconds / result.deltas * 1e6,
        f"added latency, {chats} streams, p50, ms": result.delta.p50,
        f"added latency, {chats} streams, p99, ms": result.delta.p99,
    }


def run_measured(it: Contestant, server: Server, load: Load) -> tuple[LoadResult, float, float]:
    """Returns the result, and the CPU seconds of the server and of its database."""
    server_before, store_before = cpu_seconds(server.process), it.store_seconds()
    result = faultless(server.run(load))
    return result, cpu_seconds(server.process) - server_before, it.store_seconds() - store_before


def capacity(it: Contestant, server: Server, provider: FakeProvider) -> Figures:
    """Searches for the largest number of streams for which 99 per cent of the deltas arrive within 100 ms. Each stream
    has 50 deltas a second.
    """

    def passes(chats: int) -> bool:
        ramp_seconds = chats / 100
        load = Load(f"deltas={int((ramp_seconds + 4) * RATE)} rate={RATE}", chats, ramp_seconds, single=it.single)
        result = server.run(load)
        wait_until_idle(provider)
        return not result.faults and result.steady is not None and result.steady.p99 < PROMPT_MS

    before = cpu_seconds(server.process)
    result = server.run(Load(f"deltas=100 rate={RATE}", chats=20, single=it.single))
    wanted = (cpu_seconds(server.process) - before) / result.deltas * RATE
    start = min(600, max(10, int(0.7 / wanted)))
    return {"streams of a core": highest_passing(passes, start=start, ceiling=1000, probes=9)}


def killed(it: Contestant, provider: FakeProvider, folder: Path) -> Figures:
    port = free_port()
    with ExitStack() as owned:
        server = owned.enter_context(served(it.candidate, provider.url, folder, port=port))
        server.run(Load("deltas=50 rate=100", chats=5, ramp_seconds=0.1, single=it.single))
        trial = Killed(server.dialect, port)
        if not trial.wait_until_in_mid_text():
            raise AssertionError("a turn did not begin")
        processes = family(server.process)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=10)
        trial.note_death(time.monotonic())
        owned.enter_context(served(it.candidate, provider.url, folder, port=port))
        return trial.figures()


if __name__ == "__main__":
    main()
