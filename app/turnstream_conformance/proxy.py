"""Probes a proxy between a server and its clients. One process acts as the client and as the origin, so that one clock
measures both.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import httpx2

from turnstream_conformance.origin import STREAM, Request, Response, origin
from turnstream_conformance.report import Check, Failed, Report
from turnstream_conformance.wire import Event, Parser

_PATH = "/api/conformance/"
_DELTAS = 20
_PAUSE = 0.1  # seconds between two deltas
_LATE = 0.5  # seconds after which a delta counts as delayed
_PATIENCE = 20.0  # maximum seconds for an answer whose time is not checked
_SIDE_BY_SIDE = 12  # streams; a browser opens six per server, and a person may have several windows
_LONG_CURSOR = 6_000  # characters of the cursor of a chat with a hundred open turns
_LARGE_BODY = 4_000_000  # bytes; the server accepts slightly more
_HEADERS = {
    "Authorization": "Bearer of-the-kit",
    "Last-Event-ID": "1-5-120",
    "Idempotency-Key": "7f3a",
    "Accept": "text/event-stream",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}
_ENCODINGS = {"Accept-Encoding": "gzip, deflate, br, zstd"}


@dataclass(slots=True)
class Origin:
    """The server behind the proxy. For each probe it records the requests, the time of each delta, and clients that
    left.
    """

    idle: float
    duration: float
    heartbeat: float
    requests: dict[str, list[Request]] = field(default_factory=dict)
    sent: dict[str, list[float]] = field(default_factory=dict)
    gone: dict[str, asyncio.Event] = field(default_factory=dict)

    async def handle(self, request: Request, response: Response) -> None:
        if not request.path.startswith(_PATH):  # a health check by the proxy
            await response.json(200, {})
            return
        probe = request.path.removeprefix(_PATH).partition("/")[0]
        self.requests.setdefault(probe, []).append(request)
        match probe:
            case "204":
                await response.whole(204, {})
            case "401" | "503":
                headers = {"Retry-After": "7"} if probe == "503" else {"WWW-Authenticate": "Bearer"}
                await response.json(int(probe), {"title": "Scripted", "status": int(probe)}, headers)
            case "body" | "request" | "ready":
                await response.json(200, {"bytes": len(request.body)})
            case _:
                await response.start(200, {**STREAM, "Turnstream-Heartbeat": f"{self.heartbeat:g}"})
                await response.send(b"retry: 1000\n\n")
                await self._stream(probe, response)

    async def _stream(self, probe: str, response: Response) -> None:
        match probe:
            case "deltas" | "posted" | "cached":
                times = self.sent.setdefault(probe, [])
                for number in range(_DELTAS):
                    await asyncio.sleep(_PAUSE)
                    times.append(time.monotonic())
                    await response.send(_delta(number).frame())
                await response.end()
            case "cut":
                await response.send(_delta(0).frame())
            case "idle":
                await self._until_gone(probe, response, self.idle)
                await response.end()
            case "duration":
                end = time.monotonic() + self.duration
                while (left := end - time.monotonic()) > 0:
                    await asyncio.sleep(min(self.heartbeat, left))
                    await response.send(b": ping\n\n")
                await response.end()
            case _:  # the stream stays open until its client leaves
                await self._until_gone(probe, response, _PATIENCE)

    async def _until_gone(self, probe: str, response: Response, seconds: float) -> None:
        try:
            await asyncio.wait_for(response.gone(), seconds)
        except TimeoutError:
            return
        self.gone.setdefault(probe, asyncio.Event()).set()


def _delta(number: int) -> Event:
    return Event(f"1-3-{number + 1}", "block_delta", {"index": 0, "offset": number, "text": "潮"})


@dataclass(frozen=True, slots=True)
class Probes:
    """The checks of a proxy at `client.base_url`, in front of `origin`."""

    client: httpx2.AsyncClient
    origin: Origin

    def checks(self) -> list[Check]:
        rows: list[tuple[str, str, Callable[[], Awaitable[str]]]] = [
            ("S5", "the first bytes come at once", partial(self.first_bytes, "first")),
            ("S5", "each delta is passed on at once", partial(self.deltas, "GET", "deltas")),
            ("S17", "each delta of a POST's answer, too", partial(self.deltas, "POST", "posted")),
            ("S8", "streams are not compressed, and keep their headers", self.headers),
            ("S4", "204, 401 and 503 are passed on as they are", self.refusals),
            ("C1", "cursors and other headers arrive, and the path as it is", self.request),
            ("T5", f"a cursor of {_LONG_CURSOR:,} characters arrives", self.long_cursor),
            ("C9", f"a body of {_LARGE_BODY:,} bytes arrives", self.large_body),
            ("S2", "no answer comes from a cache", self.cached),
            ("C4", "a body that is cut off is not completed", self.cut),
            ("S16", "the origin learns that a client has gone", self.gone),
            ("S5", f"{_SIDE_BY_SIDE} streams are open side by side", self.side_by_side),
            ("C5", "silence ends no stream", self.idle),
            ("S5", "comments keep a stream alive", self.duration),
        ]
        return [Check(promise, rule, examine) for rule, promise, examine in rows]

    @asynccontextmanager
    async def _stream(self, probe: str, method: str = "GET") -> AsyncIterator[httpx2.Response]:
        timeout = httpx2.Timeout(_PATIENCE, read=None)
        async with asyncio.timeout(_PATIENCE + self.origin.idle + self.origin.duration):
            request = self.client.stream(method, _PATH + probe, headers=_HEADERS | _ENCODINGS, timeout=timeout)
            async with request as response:
                if response.status_code != 200:
                    raise Failed(f"The stream was answered with {response.status_code}.")
                yield response

    async def first_bytes(self, probe: str) -> str:
        start = time.monotonic()
        async with self._stream(probe) as response:
            try:
                async with asyncio.timeout(_PATIENCE / 2):
                    await anext(response.aiter_raw())
            except TimeoutError:
                raise Failed(f"No byte came within {_PATIENCE / 2:g} s.") from None
        taken = time.monotonic() - start
        if taken > 2 * _LATE:
            raise Failed(f"The first bytes came after {taken:.1f} s.")
        return f"after {taken * 1000:.0f} ms"

    async def deltas(self, method: str, probe: str) -> str:
        parser, arrived = Parser(), dict[str, float]()
        async with self._stream(probe, method) as response:
            async for chunk in response.aiter_raw():
                now = time.monotonic()
                arrived |= {event.id: now for event in parser.feed(chunk) if event.id}
        sent = self.origin.sent[probe]
        if list(arrived) != [_delta(number).id for number in range(_DELTAS)]:
            raise Failed(f"{len(arrived)} of {_DELTAS} events came as they were sent.")
        return _delays([came - went for came, went in zip(arrived.values(), sent, strict=True)])

    async def headers(self) -> str:
        async with self._stream("headers") as response:
            headers = response.headers
        wrong = [f"{name}: {headers[name]}" for name in ("content-encoding", "content-length") if name in headers]
        for name, value in {**STREAM, "Turnstream-Heartbeat": f"{self.origin.heartbeat:g}"}.items():
            # nginx interprets this header itself, and does not pass it on.
            if name != "X-Accel-Buffering" and headers.get(name) != value:
                wrong.append(f"{name}: {headers.get(name)} in place of {value}")
        if wrong:
            raise Failed(f"The answer has {'; '.join(wrong)}.")
        return ""

    async def refusals(self) -> str:
        for status in (204, 401, 503):
            response = await self.client.get(f"{_PATH}{status}")
            kept = {"503": "retry-after", "401": "www-authenticate"}.get(str(status))
            if response.status_code != status or (kept and kept not in response.headers):
                raise Failed(f"{status} became {response.status_code}, {kept}: {response.headers.get(kept or '')}.")
            if status != 204 and response.headers.get("content-type") != "application/problem+json":
                raise Failed(f"The body of {status} was replaced by {response.headers.get('content-type')}.")
        return ""

    async def request(self) -> str:
        target = f"{_PATH}request/a%20b%2Fc"
        await self.client.get(f"{target}?cursor=1-5-120", headers=_HEADERS)
        (seen,) = self.origin.requests["request"]
        got = {name: seen.headers.get(name.lower()) for name in _HEADERS}
        wrong = [f"{name}: {got[name]}" for name, value in _HEADERS.items() if got[name] != value]
        wrong += [] if seen.path == target else [f"the path {seen.path} in place of {target}"]
        wrong += [] if seen.query == {"cursor": "1-5-120"} else [f"the query {seen.query}"]
        if wrong:
            raise Failed(f"The origin got {'; '.join(wrong)}.")
        return ""

    async def long_cursor(self) -> str:
        response = await self.client.get(f"{_PATH}204", headers={"Last-Event-ID": "1" * _LONG_CURSOR})
        if response.status_code != 204:
            raise Failed(f"The request was answered with {response.status_code}.")
        return ""

    async def large_body(self) -> str:
        response = await self.client.post(f"{_PATH}body", content=b"x" * _LARGE_BODY)
        if response.status_code != 200 or response.json() != {"bytes": _LARGE_BODY}:
            raise Failed(f"The request was answered with {response.status_code}.")
        return ""

    async def cached(self) -> str:
        for _ in range(2):
            async with self._stream("cached") as response:
                await anext(response.aiter_raw())
        count = len(self.origin.requests["cached"])
        if count != 2:
            raise Failed(f"Of two equal requests {count} came to the origin.")
        return ""

    async def cut(self) -> str:
        try:
            async with self._stream("cut") as response:
                async for _ in response.aiter_raw():
                    pass
        except httpx2.RemoteProtocolError:
            return ""
        raise Failed("The client got a complete body, although the origin had not sent its end.")

    async def gone(self) -> str:
        event = self.origin.gone.setdefault("gone", asyncio.Event())
        async with self._stream("gone") as response:
            await anext(response.aiter_raw())
        start = time.monotonic()
        try:
            await asyncio.wait_for(event.wait(), _PATIENCE / 2)
        except TimeoutError:
            raise Failed(f"The connection to the origin stayed open for {_PATIENCE / 2:g} s.") from None
        return f"after {(time.monotonic() - start) * 1000:.0f} ms"

    async def side_by_side(self) -> str:
        times = await asyncio.gather(*(self.first_bytes(f"beside-{number}") for number in range(_SIDE_BY_SIDE)))
        return f"the last {times[-1]}"

    async def idle(self) -> str:
        return await self._lives("idle", self.origin.idle, "of silence")

    async def duration(self) -> str:
        return await self._lives("duration", self.origin.duration, "with comments")

    async def _lives(self, probe: str, seconds: float, how: str) -> str:
        start = time.monotonic()
        try:
            async with self._stream(probe) as response:
                async for _ in response.aiter_raw():
                    pass
            is_cut = False
        except httpx2.TransportError:
            is_cut = True
        lived = time.monotonic() - start
        if is_cut or lived < seconds:
            raise Failed(f"The stream was cut after {lived:.1f} s {how}.")
        return f"not cut in {lived:.1f} s"


def _delays(delays: list[float]) -> str:
    """Describes the longest delay of a delta. Raises Failed if a delta came late."""
    worst = max(delays)
    if worst > _LATE:
        late = sum(delay > _LATE for delay in delays)
        raise Failed(f"{late} of {len(delays)} deltas came late, one by {worst:.1f} s.")
    return f"at most {worst * 1000:.0f} ms later"


@asynccontextmanager
async def _to(url: str, token: str | None = None) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=_PATIENCE, limits=limits) as client:
        yield client


async def _ready(client: httpx2.AsyncClient) -> None:
    """Waits for a limited time until the proxy forwards a request. A proxy may check its origin before it forwards."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        with suppress(httpx2.TransportError):
            if (await client.get(f"{_PATH}ready")).status_code == 200:
                return
        await asyncio.sleep(_PAUSE)


async def examine(url: str, host: str, port: int, idle: float, duration: float, heartbeat: float) -> Report:
    """Checks the proxy at `url`, which forwards requests to the kit at `host` and `port`."""
    behind = Origin(idle, duration, heartbeat)
    async with origin(behind.handle, host, port), _to(url) as client:
        await _ready(client)
        results = await asyncio.gather(*(check.run() for check in Probes(client, behind).checks()))
    return Report(f"proxy {url}", results)
