"""Arrivals at twice the capacity of one server: the refusals and their latency, the accepted turns, and the time to
recovery. The owners have the default limits of a server. Another owner sends probes.

`python -m tests.bench.overload [SECONDS]` prints the figures for arrivals that last so long.
"""

import asyncio
import http.client
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from tests.bench.candidates import Server
from tests.bench.database import bench_database, new_database
from tests.bench.load import Load, LoadResult, Times
from tests.bench.processes import raise_file_limit
from tests.bench.provider import fake_provider
from tests.bench.report import shown
from tests.bench.scenarios import FaultError, wait_until_idle, warm_up
from tests.bench.trials import Rows, Site
from turnstream.config import Settings
from turnstream.domain.identity import OF_A_PERSON, Identity
from turnstream.storage.database import connect
from turnstream.storage.owners.tokens import Tokens

SECONDS = 120
_OWNERS = 20
_PLAN = "deltas=10 rate=50"
_FIRST_RATE, _TRIED_SECONDS = 25, 4  # turns a second; doubled until the server completes less than half of them
_FACTOR = 2
_PROBES, _PAUSE = 20, 0.25  # probes before the arrivals; seconds between two probes
_IN_A_ROW = 3  # consecutive fast probes that count as recovery
_PATIENCE = 120.0  # seconds after the arrivals in which the accepted turns and the probes must end
_DEFAULTS = {
    f"TURNSTREAM_{name.upper()}": str(Settings.model_fields[name].default)
    for name in ("owner_running_turns", "owner_streams")
}


@dataclass(frozen=True, slots=True)
class Probe:
    """A turn of the other owner. `first_token` is in milliseconds, or None after a refusal."""

    began: float
    first_token: float | None


@dataclass(frozen=True, slots=True)
class Overloaded:
    """The outcome of a trial. `over` is the end of the arrivals, by the clock of the probes."""

    seconds: int
    capacity: float
    rate: float
    load: LoadResult
    over: float
    before: Sequence[Probe]
    probes: Sequence[Probe]


def overload(seconds: int) -> Callable[[Site], Rows]:
    def run(site: Site) -> Rows:
        # Tokens need a database of their own: once a database has a token, a server rejects requests without one, and
        # the other trials send no token.
        with new_database(site.database.url) as database:
            own = replace(site, database=database)
            with own.served(_DEFAULTS) as server:
                warm_up(server)
                *tokens, other = asyncio.run(_tokens(database.url))
                return rows(_measured(own, server, ",".join(tokens), other, seconds))

    return run


async def _tokens(url: str) -> Sequence[str]:
    """Creates tokens for the owners of the arrivals, and for one more owner."""
    async with connect(url, size=2) as database:
        tokens, owners = Tokens(database), [f"owner {number}" for number in range(_OWNERS + 1)]
        return [await tokens.create(owner, Identity(owner, OF_A_PERSON)) for owner in owners]


def _measured(site: Site, server: Server, tokens: str, other: str, seconds: int) -> Overloaded:
    capacity = _capacity(site, server, tokens)
    rate = _FACTOR * capacity
    before = [_probe(server.port, other) for _ in range(_PROBES)]
    with ThreadPoolExecutor(1) as pool, server.start(_arrivals(tokens, rate, seconds)) as running:
        over = time.monotonic() + seconds
        probing = pool.submit(_probed, server.port, other, over, slowest(before))
        return Overloaded(seconds, capacity, rate, running.result(), over, before, probing.result())


def _capacity(site: Site, server: Server, tokens: str) -> float:
    """Returns the turns that the server completes per second when more turns arrive than it can run."""
    best, rate = 0.0, _FIRST_RATE
    while True:
        result = server.run(_arrivals(tokens, rate, _TRIED_SECONDS))
        wait_until_idle(site.provider)
        ended = result.completed / result.wall_seconds
        best = max(best, ended)
        if ended < rate / 2:
            return best
        rate *= 2


def _arrivals(tokens: str, rate: float, seconds: int) -> Load:
    limit = seconds + _PATIENCE
    chats = round(rate * seconds)
    return Load(_PLAN, chats, ramp_seconds=seconds, limit_seconds=limit, single=True, token=tokens, refusals=True)


# --- the other owner -------------------------------------------------------------------------------------------------


def _probed(port: int, token: str, over: float, fast: float) -> Sequence[Probe]:
    """Sends probes until recovery. `fast` is the latency of a fast probe in milliseconds."""
    probes = list[Probe]()
    while recovered_at(probes, over, fast) is None and time.monotonic() < over + _PATIENCE:
        probes.append(_probe(port, token))
        time.sleep(_PAUSE)
    return probes


def _probe(port: int, token: str) -> Probe:
    began = time.monotonic()
    body = msgspec.json.encode({"blocks": [{"type": "text", "text": f"plan {_PLAN} chat=zzz"}]})
    headers = {
        "Content-Type": "application/json",
        "Accept": "text/event-stream",
        "Authorization": f"Bearer {token}",
    }
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE)) as connection:
        connection.request("POST", "/api/turns", body, headers)
        response = connection.getresponse()
        while line := response.readline():
            if line == b"event: block_delta\n":
                return Probe(began, (time.monotonic() - began) * 1000)
    return Probe(began, None)


def slowest(probes: Sequence[Probe]) -> float:
    """Returns the latency of the slowest probe. Raises FaultError if a probe was refused."""
    times = first_tokens(probes)
    if len(times) < len(probes):
        raise FaultError("a turn was refused before the arrivals")
    return max(times)


def first_tokens(probes: Sequence[Probe]) -> Sequence[float]:
    return [probe.first_token for probe in probes if probe.first_token is not None]


def recovered_at(probes: Sequence[Probe], over: float, fast: float) -> float | None:
    """Returns the start of the first of several consecutive fast probes, in seconds after the arrivals, or None."""
    behind = [probe for probe in probes if probe.began >= over]
    for place in range(len(behind) - _IN_A_ROW + 1):
        times = first_tokens(behind[place : place + _IN_A_ROW])
        if len(times) == _IN_A_ROW and max(times) <= fast:
            return behind[place].began - over
    return None


# --- figures ---------------------------------------------------------------------------------------------------------


def rows(it: Overloaded) -> Rows:
    """Returns the figures. Raises FaultError if a text is incomplete."""
    load, fast = it.load, slowest(it.before)
    if load.lost or load.repeated or load.disordered or load.foreign or load.resets:
        raise FaultError(load.describe_faults())
    refused, named = [sum(counts) for counts in zip((0, 0), *load.refused.values(), strict=True)]
    meanwhile = first_tokens([probe for probe in it.probes if probe.began < it.over])
    of_meanwhile = sum(probe.began < it.over for probe in it.probes)
    return {
        "capacity, turns a second": (it.capacity, None),
        "arrivals a second": (it.rate, None),
        "accepted": (load.completed, None),
        "refused": (refused, None),
        **{f"refused as `{reason}`": (count, None) for reason, (count, _) in load.refused.items()},
        "refusals with `Retry-After`, %": (named / refused * 100 if refused else None, 100.0),
        "neither accepted nor refused": (load.failed, 0.0),
        **_times("accepted messages, until the answer begins", load.accepted),
        **_times("refusals", load.refusal),
        **_times("accepted messages, first token", load.first_delta),
        "another owner before, first token, p50, ms": (statistics.median(first_tokens(it.before)), None),
        "another owner before, longest, ms": (fast, None),
        "another owner meanwhile, first token, p50, ms": (statistics.median(meanwhile) if meanwhile else None, None),
        "another owner meanwhile, longest, ms": (max(meanwhile, default=None), None),
        "another owner meanwhile, refused, %": (100 * (1 - len(meanwhile) / of_meanwhile), None),
        "until a first token is as fast as before, s": (recovered_at(it.probes, it.over, fast), None),
        "until the last accepted turn has ended, s": (load.wall_seconds - it.seconds, None),
        "lost texts": (load.lost, 0.0),
    }


def _times(what: str, times: Times | None) -> Rows:
    return {} if times is None else {f"{what}, p50, ms": (times.p50, None), f"{what}, p99, ms": (times.p99, None)}


def main() -> None:
    raise_file_limit()
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    with ExitStack() as owned:
        folder = Path(owned.enter_context(tempfile.TemporaryDirectory()))
        site = Site(owned.enter_context(fake_provider(folder)), owned.enter_context(bench_database(folder)), folder)
        for measure, (figure, target) in overload(seconds)(site).items():
            print(f"| {measure} | {shown(figure)} | {shown(target)} |")


if __name__ == "__main__":
    main()
