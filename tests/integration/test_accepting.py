"""How many connections the server accepts in one iteration of its event loop. Under load, an iteration is slow."""

import asyncio
import socket
from contextlib import ExitStack

import uvloop

from turnstream.cli.serve import watched


async def iterations_until_accepted(listeners: list[socket.socket], clients: int) -> int:
    loop, accepted, everybody = asyncio.get_running_loop(), 0, asyncio.Event()

    def connected() -> asyncio.Protocol:
        nonlocal accepted
        accepted += 1
        if accepted == clients:
            everybody.set()
        return asyncio.Protocol()

    with ExitStack() as stack:
        servers = [await loop.create_server(connected, sock=each, backlog=100) for each in listeners]
        for _ in range(clients):  # clients connect while the loop is blocked
            stack.enter_context(socket.create_connection(listeners[0].getsockname()))
        iterations = 0
        while not everybody.is_set():
            iterations += 1
            await asyncio.sleep(0)
        for server in servers:
            server.close()
    return iterations


def test_many_connections_are_accepted_in_one_iteration_of_the_loop() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        alone, often = [
            runner.run(iterations_until_accepted(listeners, 32)) for listeners in ([bound()], watched(bound()))
        ]
    assert alone >= 32
    assert often <= 8


def bound() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    return listener
