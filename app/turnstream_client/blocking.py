"""A client for programs without an event loop: its calls block, and do the same as the calls of `AsyncClient`."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, TypeVar

from turnstream_client.assembler import Assembler
from turnstream_client.errors import ClientClosed
from turnstream_client.events import Json, ServerEvent
from turnstream_client.http import AsyncClient, StreamFollower

Result = TypeVar("Result")


class Client:
    """Runs an `AsyncClient` on an event loop in a thread of its own. Any thread may call the client. After `close`,
    every call raises ClientClosed.
    """

    def __init__(self, server: str, token: str | None = None) -> None:
        self._lock = threading.Lock()  # held while work is scheduled: `close` cancels all earlier work
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="turnstream-client", daemon=True)
        self._thread.start()
        try:
            self._client = self._run(_opened(server, token))
        except BaseException:
            self._stop()
            raise

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the client, and stops the streams that other threads are reading."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            ending = asyncio.run_coroutine_threadsafe(_close(self._client), self._loop)
        ending.result()
        self._stop()

    def chats(self, limit: int) -> list[Json]:
        return self._run(self._client.chats(limit))

    def search(self, words: str, limit: int) -> list[Json]:
        return self._run(self._client.search(words, limit))

    def models(self) -> list[Json]:
        return self._run(self._client.models())

    def path(self, chat: str, limit: int, through: str | None = None) -> Json:
        return self._run(self._client.path(chat, limit, through))

    def siblings(self, chat: str, turn: str) -> list[Json]:
        return self._run(self._client.siblings(chat, turn))

    def post_turn(
        self, chat: str | None, text: str, model: str | None = None, key: str | None = None, options: Json | None = None
    ) -> Json:
        return self._run(self._client.post_turn(chat, text, model, key, options))

    def regenerate(self, chat: str, turn: str, options: Json | None = None, key: str | None = None) -> Json:
        return self._run(self._client.regenerate(chat, turn, options, key))

    def fork(self, chat: str, key: str | None = None) -> Json:
        return self._run(self._client.fork(chat, key))

    def upload(self, data: bytes) -> Json:
        return self._run(self._client.upload(data))

    def turn(self, chat: str, turn: str) -> Json:
        return self._run(self._client.turn(chat, turn))

    def answer_call(self, chat: str, turn: str, action: Json, key: str | None = None) -> Json:
        return self._run(self._client.answer_call(chat, turn, action, key))

    def cancel(self, chat: str, turn: str) -> Json:
        return self._run(self._client.cancel(chat, turn))

    def cancel_call(self, chat: str, turn: str, tool_use_id: str) -> Json:
        return self._run(self._client.cancel_call(chat, turn, tool_use_id))

    def answer(self, chat: str, turn: str) -> Assembler:
        return self._run(self._client.answer(chat, turn))

    def follow(
        self, chat: str, turn: str, cursor: str | None = None, *, caught_up: bool = False
    ) -> Iterator[ServerEvent]:
        return self._events(self._client.follow(chat, turn, cursor, caught_up=caught_up))

    def follow_chat(self, chat: str, cursor: str | None = None, *, caught_up: bool = False) -> Iterator[ServerEvent]:
        return self._events(self._client.follow_chat(chat, cursor, caught_up=caught_up))

    def feed(self, cursor: str | None = None) -> Iterator[ServerEvent]:
        return self._events(self._client.feed(cursor))

    def _events(self, follower: StreamFollower) -> Iterator[ServerEvent]:
        """Requests one event at a time from the loop; events that are not requested yet stay in the connection."""
        events = follower.events()
        try:
            with suppress(ClientClosed):
                while (event := self._run(_next(events))) is not None:
                    yield event
        finally:
            with suppress(ClientClosed):
                self._run(events.aclose())

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        with self._lock:
            if self._is_closed:
                work.close()
                raise ClientClosed
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise ClientClosed from None
        except BaseException:  # includes KeyboardInterrupt, after which nobody waits for the work
            future.cancel()
            raise

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _opened(server: str, token: str | None) -> AsyncClient:
    return AsyncClient(server, token)


async def _next(events: AsyncGenerator[ServerEvent, None]) -> ServerEvent | None:
    return await anext(events, None)


async def _close(client: AsyncClient) -> None:
    work = asyncio.all_tasks() - {asyncio.current_task()}
    for task in work:
        task.cancel()
    await asyncio.gather(*work, return_exceptions=True)
    await client.aclose()
