"""HTTP client for a turnstream server: makes calls, some with retries, and follows streams over many connections."""

import asyncio
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Set
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

import httpx2

from turnstream_client.assembler import ENDS, Assembler
from turnstream_client.errors import ConnectionLost, NotTurnstream, RequestRejected, ServerUnreachable
from turnstream_client.events import ConnectionEvent, Json, ServerEvent, event_of
from turnstream_client.sse import FrameParser, StreamFrame

# Times are in seconds.
_HEARTBEAT: Final = 15.0  # assumed if the server sends no heartbeat header
_MISSED: Final = 3  # missed heartbeats after which a stream counts as dead
_RESPONSE_TIMEOUT: Final = 20.0
_CONNECT_TIMEOUT: Final = 10.0
_LONGEST_PAUSE: Final = 5.0
_RETRY_FOR: Final = 30.0
_RETRY_CANCEL_FOR: Final = 5.0  # short, because a person waits after Ctrl-C
_ID_LENGTH: Final = 36
# These statuses mean that the server is restarting or overloaded, or that a proxy cannot reach it.
_TRANSIENT: Final = frozenset({408, 425, 429, 502, 503, 504})


class Backoff:
    """Computes the pauses between tries, in seconds. Pauses grow, and have a random part so that clients do not all
    return at once.
    """

    def __init__(self, first: float = 1.0) -> None:
        self.first = first
        self._tries = 0

    def reset(self) -> None:
        self._tries = 0

    def next(self, at_least: float | None = None) -> float:
        pause = min(_LONGEST_PAUSE, self.first * 1.6**self._tries)
        self._tries += 1
        return max(pause, at_least or 0.0) * random.uniform(1.0, 1.5)  # noqa: S311, a pause is no secret


class AsyncClient:
    """`server` is a URL. The parameters `chat` and `turn` of all methods are ids. Every method may raise
    ConnectionLost or RequestRejected.
    """

    def __init__(self, server: str, token: str | None = None) -> None:
        self.server = server.rstrip("/")
        try:
            self._http = httpx2.AsyncClient(
                base_url=self.server,
                headers={"Authorization": f"Bearer {token}"} if token else {},
                timeout=httpx2.Timeout(_RESPONSE_TIMEOUT, connect=_CONNECT_TIMEOUT),
            )
        except httpx2.InvalidURL as error:
            raise RequestRejected(
                0, f"{server} is not the URL of a server ({error}); write it as http://HOST:PORT or https://HOST"
            ) from None
        self._has_connected = False

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._http.aclose()

    async def chats(self, limit: int) -> list[Json]:
        """Returns up to `limit` chats, the most recently changed chat first."""
        found: list[Json] = []
        async for page in self._pages("/api/chats", min(limit, 200)):
            found += page["chats"]
            if len(found) >= limit:
                break
        return found[:limit]

    async def find_chat(self, prefix: str) -> Json:
        """Returns the chat whose id begins with `prefix`. Raises RequestRejected if none or several match."""
        if len(prefix) == _ID_LENGTH:
            return await self._call("GET", f"/api/chats/{prefix}")
        found: list[Json] = []
        async for page in self._pages("/api/chats", 200):
            found += [chat for chat in page["chats"] if chat["id"].startswith(prefix.lower())]
        if len(found) == 1:
            return found[0]
        matches = f"{len(found)} chats have" if found else "no chat has"
        remedy = "/list at the prompt and the option --list show the ids"
        raise RequestRejected(404, f"{matches} an id that begins with {prefix}; {remedy}")

    async def search(self, words: str, limit: int) -> list[Json]:
        """Returns up to `limit` chats that contain the words, each with an `excerpt`."""
        found: list[Json] = (await self._call("GET", "/api/chats", params={"q": words, "limit": limit}))["chats"]
        return found

    async def models(self) -> list[Json]:
        found: list[Json] = (await self._call("GET", "/api/models"))["models"]
        return found

    async def path(self, chat: str, limit: int, through: str | None = None) -> Json:
        """Returns a page with the last `limit` turns of a path, oldest first; `next` is set if the path has older
        turns. The path leads to the newest turn of the chat, or to the newest descendant of the turn `through`.
        """
        params = {"limit": limit, **({"through": through} if through else {})}
        return await self._call("GET", f"/api/chats/{chat}/turns", params=params)

    async def siblings(self, chat: str, turn: str) -> list[Json]:
        """Returns all turns that have the same parent as `turn`, including `turn` itself."""
        found: list[Json] = (await self._call("GET", f"/api/chats/{chat}/turns/{turn}/siblings"))["turns"]
        return found

    async def post_turn(
        self, chat: str | None, text: str, model: str | None = None, key: str | None = None, options: Json | None = None
    ) -> Json:
        """Posts a message, and returns the user turn and the assistant turn. If `chat` is None, the message begins a
        new chat. `options` are other members of the body, such as `parent_id`, `on_busy` or `blocks`. `key` is the
        idempotency key, by default a new key, which makes a retry safe.
        """
        body: Json = {"blocks": [{"type": "text", "text": text}], **(options or {})}
        body |= {"model": model} if model else {}
        return await self._post(f"/api/chats/{chat}/turns" if chat else "/api/turns", body, key)

    async def regenerate(self, chat: str, turn: str, options: Json | None = None, key: str | None = None) -> Json:
        """Starts another answer to the same message, and returns the user turn and the assistant turn. `options` are
        members of the body, such as `model`.
        """
        return await self._post(f"/api/chats/{chat}/turns/{turn}/regenerate", options or {}, key)

    async def fork(self, chat: str, key: str | None = None) -> Json:
        """Copies the path to the newest turn of the chat into a new chat."""
        turns = (await self.path(chat, 1))["turns"]
        if not turns:
            raise RequestRejected(404, "this chat has no turn yet that could be copied")
        return await self._post(f"/api/chats/{chat}/turns/{turns[-1]['id']}/fork", {"into": "chat"}, key)

    async def upload(self, data: bytes) -> Json:
        """Stores an image, a PDF or a text. Blocks refer to it by the returned `id`. Equal bytes are stored once."""
        return await self._retry("POST", "/api/uploads", _RETRY_FOR, content=data)

    async def turn(self, chat: str, turn: str) -> Json:
        return await self._retry("GET", f"/api/chats/{chat}/turns/{turn}", _RETRY_FOR)

    async def answer_call(self, chat: str, turn: str, action: Json, key: str | None = None) -> Json:
        """Answers a waiting call and returns the turn."""
        return await self._post(f"/api/chats/{chat}/turns/{turn}/actions", {"actions": [action]}, key)

    async def grants(self, chat: str) -> list[Json]:
        """Returns the stored approvals of a chat."""
        found: list[Json] = (await self._call("GET", f"/api/chats/{chat}/grants"))["grants"]
        return found

    async def revoke_grant(self, chat: str, grant: str) -> Json:
        return await self._call("DELETE", f"/api/chats/{chat}/grants/{grant}")

    async def queue(self, chat: str) -> list[Json]:
        """Returns the messages of a chat that no model call has received."""
        found: list[Json] = (await self._call("GET", f"/api/chats/{chat}/queue"))["entries"]
        return found

    async def change_queued(self, chat: str, entry: str, version: str, **changes: object) -> Json:
        """Edits (`blocks`), moves (`after`) or converts (`kind`) a waiting message. The server refuses with
        409 if the message was delivered already, or if its version is no longer `version`.
        """
        return await self._call("PATCH", f"/api/chats/{chat}/queue/{entry}", json={"version": version, **changes})

    async def withdraw(self, chat: str, entry: str, version: str) -> Json:
        """Removes a message from the queue for ever. The server refuses in the same cases as for `change_queued`."""
        return await self._call("DELETE", f"/api/chats/{chat}/queue/{entry}?version={version}")

    async def cancel(self, chat: str, turn: str) -> Json:
        return await self._retry("POST", f"/api/chats/{chat}/turns/{turn}/cancel", _RETRY_CANCEL_FOR)

    async def cancel_call(self, chat: str, turn: str, tool_use_id: str) -> Json:
        """Stops a background call. The turn continues with the result of the stopped call."""
        call = quote(tool_use_id, safe="")
        return await self._retry("POST", f"/api/chats/{chat}/turns/{turn}/calls/{call}/cancel", _RETRY_CANCEL_FOR)

    async def schedules(self) -> list[Json]:
        """Returns the owner's schedules, followed by the owner's triggers. Only triggers have a `path`."""
        schedules = (await self._call("GET", "/api/schedules"))["schedules"]
        return [*schedules, *(await self._call("GET", "/api/triggers"))["triggers"]]

    async def change_schedule(self, method: str, each: Json | None, body: Json | None = None, call: str = "") -> Json:
        """Creates a schedule (POST without `each`), or changes the schedule or trigger `each`: replaces it (PUT),
        deletes it (DELETE), or posts to the path `call` below it (POST).
        """
        path = (
            "/api/schedules" if each is None else f"/api/{'triggers' if 'path' in each else 'schedules'}/{each['id']}"
        )
        return await self._call(method, path + call, json=body)

    def follow(self, chat: str, turn: str, cursor: str | None = None, *, caught_up: bool = False) -> "StreamFollower":
        """Follows the events of a turn after `cursor`, up to the last event. With `caught_up`, each connection sends a
        notice of this name after the stored events.
        """
        path = f"/api/chats/{chat}/turns/{turn}/stream"
        return StreamFollower(self, path + "?caught_up=true" * caught_up, ENDS, cursor)

    def follow_chat(self, chat: str, cursor: str | None = None, *, caught_up: bool = False) -> "StreamFollower":
        """Follows the events of a chat and of its turns after `cursor`, until the chat is deleted. `caught_up` works as
        in `follow`.
        """
        path = f"/api/chats/{chat}/stream"
        return StreamFollower(self, path + "?caught_up=true" * caught_up, frozenset({"chat_deleted"}), cursor)

    def feed(self, cursor: str | None = None) -> "StreamFollower":
        """Follows the changes in all chats of the owner after `cursor`, until the caller closes the stream."""
        return StreamFollower(self, "/api/stream", frozenset(), cursor)

    async def answer(self, chat: str, turn: str) -> Assembler:
        """Follows a turn until it ends or waits for a person, and returns the assembled turn."""
        page = await self.turn(chat, turn)
        state = Assembler.of(page)
        is_settled = state.waits or state.end is not None
        if not is_settled:
            async with aclosing(self.follow(chat, turn, page["cursor"]).events()) as events:
                async for event in events:
                    state.apply(event.name, event.data)
                    is_settled = state.waits or state.end is not None
                    if is_settled:
                        break
        # If the stream had no event to send, the turn has ended, and its JSON has the end.
        return state if is_settled else Assembler.of(await self.turn(chat, turn))

    @asynccontextmanager
    async def stream(self, path: str, cursor: str | None) -> AsyncIterator[AsyncIterator[StreamFrame] | None]:
        """Yields an iterator over the events after `cursor` on one connection, or None if the stream has no more
        events.
        """
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": cursor} if cursor else {})}
        # A stream has no read timeout here: `_frames` computes the longest silence from the heartbeat of the stream.
        timeout = httpx2.Timeout(_RESPONSE_TIMEOUT, connect=_CONNECT_TIMEOUT, read=None)
        with self._errors_translated():
            async with asyncio.timeout(_RESPONSE_TIMEOUT):
                request = self._http.build_request("GET", path, headers=headers, timeout=timeout)
                response = await self._http.send(request, stream=True)
            async with aclosing(response):
                self._has_connected = True
                if response.status_code == 204:
                    yield None
                    return
                if response.status_code != 200:
                    await response.aread()
                    _raise_for_status(response)
                if not response.headers.get("content-type", "").startswith("text/event-stream"):
                    raise self._not_turnstream(response)
                yield _frames(response)

    # --- one call --------------------------------------------------------------------------------------------------

    async def _pages(self, path: str, limit: int) -> AsyncIterator[Json]:
        page = await self._call("GET", path, params={"limit": limit})
        yield page
        while page["next"]:
            page = await self._call("GET", path, params={"limit": limit, "before": page["next"]})
            yield page

    async def _post(self, path: str, body: Json, key: str | None) -> Json:
        key = key or str(uuid4())
        try:
            return await self._retry("POST", path, _RETRY_FOR, json=body, headers={"Idempotency-Key": key})
        except ConnectionLost as error:
            error.key = key
            raise

    async def _retry(self, method: str, path: str, seconds: float, **request: Any) -> Json:
        """Makes a call, and repeats it for up to `seconds` if it fails. If no server listens and none has ever
        answered, the first failure is raised, so that a wrong address fails at once.
        """
        clock, backoff = asyncio.get_running_loop().time, Backoff(0.3)
        deadline = clock() + seconds
        while True:
            try:
                return await self._call(method, path, **request)
            except ConnectionLost as error:
                pause = backoff.next(error.retry_after)
                never_connected = isinstance(error, ServerUnreachable) and not self._has_connected
                if never_connected or clock() + pause > deadline:
                    raise
            await asyncio.sleep(pause)

    async def _call(self, method: str, path: str, **request: Any) -> Json:
        with self._errors_translated():
            response = await self._http.request(method, path, **request)
        self._has_connected = True
        _raise_for_status(response)
        try:
            data: Json = json.loads(response.content)
        except ValueError:
            raise self._not_turnstream(response) from None
        return data

    def _not_turnstream(self, response: httpx2.Response) -> NotTurnstream:
        return NotTurnstream(response.status_code, f"{self.server} does not answer like a turnstream server")

    @contextmanager
    def _errors_translated(self) -> Iterator[None]:
        try:
            yield
        except httpx2.UnsupportedProtocol:
            raise RequestRejected(
                0, f"{self.server} is not the URL of a server; it must begin with http:// or https://"
            ) from None
        except httpx2.ConnectError:
            raise ServerUnreachable(f"no server answers at {self.server}") from None
        except TimeoutError:
            raise ConnectionLost(f"{self.server} has gone silent") from None
        except httpx2.RequestError as error:
            self._has_connected = True
            raise ConnectionLost(f"the connection to {self.server} was lost ({type(error).__name__})") from None


async def _frames(response: httpx2.Response) -> AsyncIterator[StreamFrame]:
    """Yields the events of a response body. Raises TimeoutError if no byte arrives for several heartbeats."""
    silence = _MISSED * float(response.headers.get("turnstream-heartbeat", _HEARTBEAT))
    chunks, parser = response.aiter_bytes(), FrameParser()
    while True:
        async with asyncio.timeout(silence):
            chunk = await anext(chunks, None)
        if chunk is None:
            return
        for frame in parser.feed(chunk):
            yield frame


def _raise_for_status(response: httpx2.Response) -> None:
    if response.is_success:
        return
    status = response.status_code
    code = request_id = None
    try:
        problem = json.loads(response.content)
        detail = str(problem.get("detail") or problem["title"])
        code, request_id = problem.get("code"), problem.get("request_id")
    except (ValueError, AttributeError, KeyError):  # not a problem document
        detail = f"the server answered {status} {response.reason_phrase}"
    if status in _TRANSIENT:
        after = response.headers.get("retry-after", "")
        raise ConnectionLost(detail, float(after) if after.isdecimal() else None)
    if status == 401:
        detail = f"the server needs a token: {detail.rstrip('.')}"
    raise RequestRejected(status, detail, code, request_id)


# --- streams --------------------------------------------------------------------------------------------


class StreamFollower:
    """Reads the events of one stream over any number of connections. `cursor` is the id of the last event that was
    yielded. A reader that has stopped may call `events` again, which continues after this event.
    """

    def __init__(self, client: AsyncClient, path: str, ends: Set[str], cursor: str | None) -> None:
        self.cursor = cursor
        self._client = client
        self._path = path
        self._ends = ends

    def __aiter__(self) -> AsyncIterator[ServerEvent]:
        return self.events()

    async def events(self) -> AsyncGenerator[ServerEvent, None]:
        """Yields events up to the last event of the stream. Reconnects for ever. Raises RequestRejected."""
        backoff = Backoff()
        while True:
            lost = ConnectionLost("the server closed the stream")
            try:
                async with self._client.stream(self._path, self.cursor) as stream:
                    if stream is None:
                        return
                    yield ServerEvent(ConnectionEvent.OPENED, {})
                    async for event in stream:
                        if event.retry is not None:
                            backoff.first = event.retry / 1000
                        self.cursor = event.id or self.cursor
                        if event.data:
                            backoff.reset()
                            yield event_of(event.event, json.loads(event.data), event.id or None)
                            if event.event in self._ends:
                                return
            except ConnectionLost as error:
                lost = error
            pause = backoff.next(lost.retry_after)
            yield ServerEvent(ConnectionEvent.LOST, {"reason": lost.reason, "seconds": pause})
            await asyncio.sleep(pause)
