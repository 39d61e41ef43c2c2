"""A program may run a server in an event loop of its own, beside other servers of the same process."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from tests.support.http_client import Client, words_of
from tests.support.http_server import serving

_SECONDS = 60
_CHATS = 5


def answers(database_url: str, together: Barrier) -> list[str]:
    """Runs a server in a new loop, while the other server runs, and returns its answers."""

    async def run() -> list[str]:
        async with serving(database_url) as server, Client(server.url) as api:
            await asyncio.to_thread(together.wait, _SECONDS)
            said = await asyncio.gather(*[api.ask(await api.chat()) for _ in range(_CHATS)])
            await asyncio.to_thread(together.wait, _SECONDS)
            return [words_of(each.assistant) for each in said]

    return asyncio.run(run())


def test_each_of_two_servers_has_its_own_loop(database_url: str, other_database_url: str) -> None:
    together = Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(answers, url, together) for url in (database_url, other_database_url)]
        assert [each.result() for each in running] == [["Hello."] * _CHATS] * 2
