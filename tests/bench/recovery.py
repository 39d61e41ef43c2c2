"""The time from `kill -9` until readers get new text, with a restart of the server, and with a takeover."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from tests.bench.candidates import Server
from tests.bench.processes import metric
from tests.bench.reader import PATIENCE, Reader, begin_turn, check_whole, stored_texts
from tests.bench.scenarios import RATE, FaultError, warm_up
from tests.bench.trials import SELDOM, Rows, Site

TURNS = 20
DELTAS = 3 * RATE
BEFORE = RATE // 2  # deltas that every reader receives before the kill
TAKEOVER_TARGET = 2.0
# The provider restarts its plan for each call, so a continued answer would repeat its beginning.
RETRY = {"TURNSTREAM_RECOVERY": "retry"}


@dataclass(frozen=True, slots=True)
class Death:
    """The times of the signal and of the exit of the process, by the clock of `time.monotonic`."""

    began: float
    over: float


def recovery(kills: int) -> Callable[[Site], Rows]:
    def run(site: Site) -> Rows:
        restarted, ready = restarts(site, kills)
        taken_over = takeovers(site, kills)
        return {
            "server started again at its address: first new delta, s": (*summary(restarted), None),
            "of this until the new process is ready, s": (*summary(ready), None),
            "second replica takes over: first new delta, s": (*summary(taken_over), TAKEOVER_TARGET),
        }

    return run


def summary(seconds: Sequence[float]) -> tuple[float, float]:
    return statistics.median(seconds), max(seconds)


def restarts(site: Site, kills: int) -> tuple[list[float], list[float]]:
    """Returns how long the readers waited, and the times until the new process was ready."""
    waited, ready = [], []
    with ExitStack() as stack:
        server = stack.enter_context(site.served(RETRY))
        for _ in range(kills):
            warm_up(server)
            with watched_turns(owner=server, readers_at=server.port) as readers:
                death = kill(server, readers)
                server = stack.enter_context(site.served(RETRY, port=server.port))
                ready.append(time.monotonic() - death.began)
            waited += waited_for_news(readers, death)
    return waited, ready


def takeovers(site: Site, kills: int) -> list[float]:
    waited = []
    with site.served(RETRY | SELDOM) as survivor:
        warm_up(survivor)
        for _ in range(kills):
            with site.served(RETRY) as owner:
                warm_up(owner)
                with watched_turns(owner=owner, readers_at=survivor.port) as readers:
                    death = kill(owner, readers)
                waited += waited_for_news(readers, death)
    return waited


@contextmanager
def watched_turns(owner: Server, readers_at: int) -> Iterator[list[Reader]]:
    """Yields readers of turns in mid-text. Afterwards, checks that each reader has the complete text."""
    chats = [f"{number:03d}" for number in range(TURNS)]
    with ThreadPoolExecutor(TURNS) as pool:
        messages = [f"plan deltas={DELTAS} rate={RATE} chat={chat}" for chat in chats]
        readers = [Reader(readers_at, path) for path in pool.map(partial(begin_turn, owner.port), messages)]
        following = [pool.submit(reader.follow) for reader in readers]
        wait_until_in_mid_text(readers, owner)
        yield readers
        for each in following:
            each.result()
    for reader, chat in zip(readers, chats, strict=True):
        check_whole(reader, stored_texts(readers_at, reader.path), chat, DELTAS)


def wait_until_in_mid_text(readers: Sequence[Reader], owner: Server) -> None:
    until = time.monotonic() + PATIENCE
    while min(reader.tokens for reader in readers) < BEFORE and time.monotonic() < until:
        time.sleep(0.01)
    if (running := metric(owner.port, "turnstream_turns_running")) != TURNS:
        raise FaultError(f"{running:.0f} of {TURNS} turns run on the server that shall be killed")


def kill(server: Server, readers: Sequence[Reader]) -> Death:
    began = time.monotonic()
    server.process.kill()
    server.process.wait()
    death = Death(began, time.monotonic())
    for reader in readers:
        reader.watch_for_new(death.over)
    return death


def waited_for_news(readers: Sequence[Reader], death: Death) -> list[float]:
    news = [reader.new_at for reader in readers if reader.new_at is not None]
    if len(news) < len(readers):
        raise FaultError("a turn had ended when its server was killed")
    return [new_at - death.began for new_at in news]
