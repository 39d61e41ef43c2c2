"""turnstream's own HTTP API, as one who talks to it sees it. What goes wrong is told in sentences for a person."""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx2
import msgspec

from app.terminal.assembler import ENDS, Json
from app.terminal.errors import Lost, Refused, ServerUnreachable

# Seconds. The server sends a comment every 15 s: a stream that is silent for longer than this is dead.
_SILENCE: Final = 40.0
_ANSWER: Final = 20.0
_CONNECT: Final = 10.0
_LONGEST_PAUSE: Final = 5.0
_PATIENCE: Final = 30.0
_HURRY: Final = 5.0
_WHOLE_ID: Final = 36  # characters
# A server that is being restarted, has too much to do, or that a proxy has lost sight of.
_PASSING: Final = frozenset({408, 425, 429, 502, 503, 504})


class Backoff:
    """Pauses between tries, in seconds: longer each time, and not the same for two clients of one server."""

    def __init__(self, first: float = 1.0) -> None:
        self.first = first
        self._tries = 0

    def reset(self) -> None:
        self._tries = 0

    def next(self, at_least: float | None = None) -> float:
        pause = min(_LONGEST_PAUSE, self.first * 1.6**self._tries)
        self._tries += 1
        return max(pause, at_least or 0.0) * random.uniform(1.0, 1.5)  # noqa: S311, a pause is no secret


class Client:
    """`server` is a URL. Every call raises Lost or Refused."""

    def __init__(self, server: str, token: str | None = None) -> None:
        self.server = server.rstrip("/")
        try:
            self._http = httpx2.AsyncClient(
                base_url=self.server,
                headers={"Authorization": f"Bearer {token}"} if token else {},
                timeout=httpx2.Timeout(_ANSWER, connect=_CONNECT),
            )
        except httpx2.InvalidURL as error:
            raise Refused(0, f"{server} is not the URL of a server: {error}") from None
        self._met = False

    async def aclose(self) -> None:
        await self._http.aclose()

    async def chats(self, limit: int) -> list[Json]:
        """The newest `limit` chats, last changed first."""
        found: list[Json] = []
        async for page in self._pages("/api/chats", min(limit, 200)):
            found += page["chats"]
            if len(found) >= limit:
                break
        return found[:limit]

    async def find_chat(self, prefix: str) -> Json:
        """The one chat whose id begins so."""
        if len(prefix) == _WHOLE_ID:
            return await self._call("GET", f"/api/chats/{prefix}")
        found = []
        async for page in self._pages("/api/chats", 200):
            found += [chat for chat in page["chats"] if chat["id"].startswith(prefix.lower())]
        if len(found) == 1:
            chat: Json = found[0]
            return chat
        what = f"{len(found)} chats have an id that begins" if found else "no chat has an id that begins"
        raise Refused(404, f"{what} with {prefix}; /list shows them, and so does `turnstream chat --list`")

    async def path(self, chat: str, limit: int) -> Json:
        """The newest `limit` turns of the chat, oldest first; `next` says whether there are older ones."""
        return await self._call("GET", f"/api/chats/{chat}/turns", params={"limit": limit})

    async def post_turn(
        self, chat: str | None, text: str, model: str | None, key: str, options: Json | None = None
    ) -> Json:
        """The exchange. It is the same one however often it is posted with this `key`, so a lost answer is asked for
        again. `options` are further members of the request.
        """
        body: Json = {"blocks": [{"type": "text", "text": text}], **(options or {})}
        body |= {"model": model} if model else {}
        path = f"/api/chats/{chat}/turns" if chat else "/api/turns"
        return await self._insist("POST", path, _PATIENCE, json=body, headers={"Idempotency-Key": key})

    async def turn(self, chat: str, turn: str) -> Json:
        return await self._insist("GET", f"/api/chats/{chat}/turns/{turn}", _PATIENCE)

    async def act(self, chat: str, turn: str, action: Json, key: str) -> Json:
        """The turn, with the answer to a call that waits; stored once however often it is posted with this `key`."""
        path, body = f"/api/chats/{chat}/turns/{turn}/actions", {"actions": [action]}
        return await self._insist("POST", path, _PATIENCE, json=body, headers={"Idempotency-Key": key})

    async def cancel(self, chat: str, turn: str) -> Json:
        return await self._insist("POST", f"/api/chats/{chat}/turns/{turn}/cancel", _HURRY)

    @asynccontextmanager
    async def stream(
        self, chat: str, turn: str, cursor: str | None
    ) -> AsyncIterator[AsyncIterator[httpx2.ServerSentEvent] | None]:
        """The events after `cursor` until the connection ends; None when there is nothing left."""
        path = f"/api/chats/{chat}/turns/{turn}/stream"
        headers = {"Last-Event-ID": cursor} if cursor else {}
        timeout = httpx2.Timeout(_SILENCE, connect=_CONNECT)
        with self._told():
            async with self._http.sse(path, headers=headers, timeout=timeout, max_event_size=None) as source:
                self._met = True
                if source.response.status_code == 204:
                    yield None
                    return
                if source.response.status_code != 200:
                    await source.response.aread()
                    _check(source.response)
                if not source.response.headers.get("content-type", "").startswith("text/event-stream"):
                    raise self._stranger(source.response)
                yield aiter(source)

    # --- one call --------------------------------------------------------------------------------------------------

    async def _pages(self, path: str, limit: int) -> AsyncIterator[Json]:
        page = await self._call("GET", path, params={"limit": limit})
        yield page
        while page["next"]:
            page = await self._call("GET", path, params={"limit": limit, "before": page["next"]})
            yield page

    async def _insist(self, method: str, path: str, patience: float, **words: Any) -> Json:
        """Tries again for `patience` seconds. A server that was never met is not waited for."""
        clock, backoff = asyncio.get_running_loop().time, Backoff(0.3)
        give_up = clock() + patience
        while True:
            try:
                return await self._call(method, path, **words)
            except Lost as error:
                pause = backoff.next(error.after)
                never_met = isinstance(error, ServerUnreachable) and not self._met
                if never_met or clock() + pause > give_up:
                    raise
            await asyncio.sleep(pause)

    async def _call(self, method: str, path: str, **words: Any) -> Json:
        with self._told():
            response = await self._http.request(method, path, **words)
        self._met = True
        _check(response)
        try:
            data: Json = msgspec.json.decode(response.content)
        except ValueError:
            raise self._stranger(response) from None
        return data

    def _stranger(self, response: httpx2.Response) -> Refused:
        return Refused(response.status_code, f"{self.server} answers, but not as turnstream does")

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except httpx2.UnsupportedProtocol:
            raise Refused(0, f"{self.server} is not the URL of a server: it begins with http:// or https://") from None
        except httpx2.ConnectError:
            raise ServerUnreachable(
                f"no server answers at {self.server}; start one with `turnstream serve`, or name one with --server URL"
            ) from None
        except httpx2.RequestError as error:
            self._met = True
            raise Lost(f"the connection to {self.server} was lost ({type(error).__name__})") from None


def _check(response: httpx2.Response) -> None:
    if response.is_success:
        return
    status, detail = response.status_code, _detail(response)
    if status in _PASSING:
        after = response.headers.get("retry-after", "")
        raise Lost(detail, float(after) if after.isdecimal() else None)
    if status == 401:
        detail = (
            f"the server wants to know who you are: {detail}. Make a token where it runs with"
            " `turnstream tokens create NAME`, then set TURNSTREAM_TOKEN or give --token"
        )
    raise Refused(status, detail)


def _detail(response: httpx2.Response) -> str:
    """The sentence of a problem document; for other answers what can be said."""
    try:
        problem = msgspec.json.decode(response.content)
        return str(problem.get("detail") or problem["title"])
    except (ValueError, AttributeError, KeyError):
        return f"the server answered {response.status_code} {response.reason_phrase}"


# --- the events of a turn ---


# Events of our own, told between the server's: the connection is there, and it is gone.
CONNECTED: Final = "connected"
DISCONNECTED: Final = "disconnected"


@dataclass(frozen=True, slots=True)
class ServerEvent:
    name: str
    data: Json


class TurnFollower:
    """`cursor` is the id of the last event that was handed on. Who stops listening may begin again where that was."""

    def __init__(self, client: Client, chat: str, turn: str, cursor: str | None = None) -> None:
        self.cursor = cursor
        self._client = client
        self._chat = chat
        self._turn = turn

    async def events(self) -> AsyncGenerator[ServerEvent, None]:
        """Until the turn has ended, however long its server is away. Raises Refused."""
        backoff = Backoff()
        while True:
            lost = Lost("the server closed the stream")
            try:
                async with self._client.stream(self._chat, self._turn, self.cursor) as stream:
                    if stream is None:
                        return
                    yield ServerEvent(CONNECTED, {})
                    async for event in stream:
                        if event.retry is not None:
                            backoff.first = event.retry / 1000
                        self.cursor = event.id or self.cursor
                        if event.data:
                            backoff.reset()
                            yield ServerEvent(event.event, msgspec.json.decode(event.data))
                            if event.event in ENDS:
                                return
            except Lost as error:
                lost = error
            pause = backoff.next(lost.after)
            yield ServerEvent(DISCONNECTED, {"reason": str(lost), "seconds": pause})
            await asyncio.sleep(pause)
