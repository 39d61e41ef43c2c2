"""How long a server's event loop is held by each attack of `tests/support/attacks.py`, and how far its memory grows.

`python -m tests.bench.hostile` prints a row for each attack. The attacker is a process of its own; another owner
follows an answer of which a word comes every 20 ms. Processor time is that of the event loop between two of its
iterations, which does not depend on what else the machine does; the wait does.
"""

import asyncio
import multiprocessing
import os
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx2
import structlog

from app.llm.models.catalog import ProviderModels
from app.llm.provider import ModelRequest, Part
from app.llm.scripted import ScriptedProvider, message_of, text
from app.storage.embedded.server import embedded_postgres
from tests.support.attacks import ATTACKS
from tests.support.http_client import Client
from tests.support.http_server import Server, serving

_TICK = 0.002
_WORD = 0.02
_MEGABYTE = 1_000_000


class _Talker(ScriptedProvider):
    """Speaks until it is `silent`."""

    def __init__(self) -> None:
        super().__init__([])
        self.silent = asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Part], None]:
        start, opened, word, *rest = message_of(text("word "))
        yield start
        yield opened
        while not self.silent.is_set():
            yield word
            await asyncio.sleep(_WORD)
        for step in rest:
            yield step


@dataclass
class _Watch:
    """The worst of what was measured since the last `reset`."""

    held: float = 0.0
    gap: float = 0.0
    memory: int = 0

    def reset(self) -> None:
        self.held, self.gap, self.memory = 0.0, 0.0, _resident()

    async def tick(self) -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(_TICK)
            self.held = max(self.held, time.thread_time() - before)
            self.memory = max(self.memory, _resident())

    async def follow(self, client: Client, path: str) -> None:
        async with client.follow(path) as events:
            before = time.perf_counter()
            async for _ in events:
                now = time.perf_counter()
                self.gap, before = max(self.gap, now - before), now


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _attack(name: str, url: str, token: str) -> Sequence[int]:
    headers = {"Authorization": f"Bearer {token}"}
    with httpx2.Client(base_url=url, headers=headers, trust_env=False, timeout=120) as client:
        return ATTACKS[name].run(client)


async def _measure(server: Server, talker: _Talker, attackers: ProcessPoolExecutor) -> None:
    loop, watch = asyncio.get_running_loop(), _Watch()
    bob = Client(server.url, None, await server.token("bob"), "bob")
    turn = await bob.say(await bob.chat(), model="talker")
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(watch.tick()), group.create_task(watch.follow(bob, turn.stream_url))]
        await asyncio.sleep(1)
        print("| attack | answers | held, processor time | longest wait | memory |\n|---|---|---|---|---|")
        for name in (None, *ATTACKS):
            watch.reset()
            before, statuses = _resident(), set[int]()
            if name is None:
                await asyncio.sleep(3)
            else:
                token = await server.token(f"ada {name}")
                statuses = set(await loop.run_in_executor(attackers, _attack, name, server.url, token))
            grown = (watch.memory - before) / _MEGABYTE
            figures = f"{watch.held * 1000:.0f} ms | {watch.gap * 1000:.0f} ms | +{grown:.0f} MB"
            print(f"| {name or 'none'} | {', '.join(map(str, sorted(statuses))) or '-'} | {figures} |", flush=True)
            await asyncio.sleep(1)
        talker.silent.set()
        await tasks[1]
        tasks[0].cancel()
    await bob.aclose()


async def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    talker = _Talker()
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        url = await stack.enter_async_context(embedded_postgres(Path(folder)))
        offers = [ProviderModels(talker, ["talker"])]
        server = await stack.enter_async_context(serving(url, offers=offers))
        attackers = stack.enter_context(ProcessPoolExecutor(1, multiprocessing.get_context("spawn")))
        await _measure(server, talker, attackers)


if __name__ == "__main__":
    asyncio.run(main())
