"""A turn and its requests leave no objects that only the garbage collector could free."""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from tests.support.http_client import Client
from tests.support.http_server import Server
from turnstream.api.http.connection import Connection
from turnstream.engine.recorder import Recorder
from turnstream.engine.reply import Reply
from turnstream.stream.live import LiveView

pytestmark = pytest.mark.asyncio(loop_scope="session")

OURS = {Connection, RequestResponseCycle, LiveView, Recorder, Reply}


@contextmanager
def uncollected() -> Iterator[list[Any]]:
    """Yields the list of the objects that only the garbage collector would free. The collector keeps these objects in
    the list.
    """
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


async def test_reference_counts_free_a_turn_and_its_requests(server: Server, api: Client) -> None:
    before = len(server.uvicorn.server_state.connections)
    with uncollected() as garbage:
        chat = await api.chat()
        await api.ask(chat)
        await api.ask(chat)
        await api.aclose()
        while len(server.uvicorn.server_state.connections) > before:  # noqa: ASYNC110, uvicorn has no event
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        gc.collect()
        left = [type(each).__name__ for each in garbage if type(each) in OURS]
    assert left == []
