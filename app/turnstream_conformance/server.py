"""The promises of a server, as far as they can be examined from outside, with any model."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast
from uuid import uuid4

import httpx2

from turnstream_conformance.report import Check, Failed, Report, Skipped
from turnstream_conformance.wire import ENDS, Disorder, Event, Json, Parser, assemble, difference

# Short, and with characters that languages count differently. The demo obeys the command, a model understands it.
MESSAGE = "/say The tide 🌊 comes in 🌊, and the tide goes out. É voilà. 🌊"
_CURSORS = 25  # of one turn, from each of which the rest is read
_LONGEST_DELTA = 131_072
_SOON = 2.0  # seconds
_LONG = 40  # times the message, for an answer that is stopped


@dataclass(frozen=True, slots=True)
class Exchanged:
    """A message that was posted, and the addresses of the turn that answers it."""

    chat: str
    user: str
    url: str

    @property
    def stream(self) -> str:
        return f"{self.url}/stream"


@dataclass(slots=True)
class ServerChecks:
    """A server as one owner sees it. An answer may take `patience` seconds. `chats` are deleted at the end."""

    client: httpx2.AsyncClient
    message: str
    patience: float
    has_token: bool
    chats: list[str] = field(default_factory=list)

    # --- requests ----------------------------------------------------------------------------------------------------

    async def json(self, method: str, path: str, expect: int, **request: Any) -> Json:
        """The JSON of an answer. A stream that is answered in its place is not read."""
        async with asyncio.timeout(self.patience), self.client.stream(method, path, **request) as response:
            if response.status_code != expect:
                raise Failed(f"{method} {path} was answered with {response.status_code}, not {expect}.")
            body = await response.aread()
        return cast("Json", json.loads(body)) if body else {}

    async def chat(self) -> str:
        chat = await self.json("POST", "/api/chats", 201, json={"title": "turnstream conformance"})
        self.chats.append(f"/api/chats/{chat['id']}")
        return self.chats[-1]

    async def post(self, times: int = 1) -> Exchanged:
        """Posts the message, so many `times` over where the answer is to take long."""
        chat = await self.chat()
        body = {"blocks": [{"type": "text", "text": " ".join([self.message] * times)}]}
        new = await self.json("POST", f"{chat}/turns", 201, json=body)
        return Exchanged(chat, *(f"{chat}/turns/{new[turn]['id']}" for turn in ("user_turn", "assistant_turn")))

    @property
    def body(self) -> Json:
        return {"blocks": [{"type": "text", "text": self.message}]}

    @asynccontextmanager
    async def open(
        self, path: str, cursor: str | None = None, method: str = "GET", key: str | None = None
    ) -> AsyncIterator[tuple[httpx2.Response, Parser, AsyncGenerator[Event, None]]]:
        """A stream. With POST it is the answer to the message, with the idempotency `key`."""
        headers = {"Accept": "text/event-stream", "Accept-Encoding": "gzip, br, zstd"}
        headers |= {"Last-Event-ID": cursor} if cursor else {}
        headers |= {"Idempotency-Key": key} if key else {}
        body = self.body if method == "POST" else None
        async with (
            asyncio.timeout(self.patience),
            self.client.stream(method, path, headers=headers, json=body) as response,
        ):
            if response.status_code not in {200, 201}:
                raise Failed(f"{method} {path} was answered with {response.status_code}.")
            parser = Parser()
            async with aclosing(_events(response, parser)) as events:
                yield response, parser, events

    async def read(self, path: str, cursor: str | None = None, most: int | None = None) -> list[Event]:
        """The events after the cursor, to the end, or as many as `most` with an id."""
        found: list[Event] = []
        async with self.open(path, cursor) as (_, _, events):
            async for event in events:
                found += [event] if event.name else []
                if most is not None and sum(each.id is not None for each in found) == most:
                    break
        return found

    async def ended(self) -> tuple[Exchanged, list[Event], Json]:
        """A turn that has ended: its events as they came live, and its JSON."""
        new = await self.post()
        events = await self.read(new.stream)
        return new, events, await self.json("GET", new.url, 200)

    # --- turns -------------------------------------------------------------------------------------------------------

    async def cuts(self) -> str:
        """S1, S2: the turn is read in portions of three events, while it runs."""
        new = await self.post()
        events: list[Event] = []
        ids: list[str] = []
        while not (events and events[-1].name in ENDS):
            events += await self.read(new.stream, ids[-1] if ids else None, most=3)
            ids = [event.id for event in events if event.id]
            if len(set(ids)) != len(ids):
                raise Failed("An event came twice.")
        _check_same(events, await self.json("GET", new.url, 200))
        return f"{len(ids)} events over {len(ids) // 3 + 1} connections"

    async def every_cursor(self) -> str:
        new, events, turn = await self.ended()
        numbered = [event for event in events if event.id]
        step = max(1, len(numbered) // _CURSORS)
        for place in range(0, len(numbered) - 1, step):
            _check_same(numbered[: place + 1] + await self.read(new.stream, numbered[place].id), turn)
        return f"{len(range(0, len(numbered) - 1, step))} of {len(numbered)} cursors"

    async def nothing_left(self) -> str:
        new, events, turn = await self.ended()
        if turn["cursor"] != events[-1].id:
            raise Failed(f"The turn's cursor is {turn['cursor']}, the id of its last event {events[-1].id}.")
        await self.json("GET", new.stream, 204, headers={"Last-Event-ID": turn["cursor"]})
        await self.json("GET", new.stream, 204, params={"cursor": turn["cursor"]})
        return ""

    async def first_bytes(self) -> str:
        new, start = await self.post(), time.monotonic()
        async with self.open(new.stream) as (response, _, events):
            await anext(events)
            taken = time.monotonic() - start
            heartbeat = response.headers.get("turnstream-heartbeat", "")
        if taken > _SOON:
            raise Failed(f"They came after {taken:.1f} s.")
        if not heartbeat.replace(".", "", 1).isdecimal():
            raise Failed(f"Turnstream-Heartbeat is {heartbeat!r}, not a number of seconds.")
        return f"after {taken * 1000:.0f} ms, with a heartbeat of {heartbeat} s"

    async def comments(self) -> str:
        chat, start = await self.chat(), time.monotonic()
        async with self.open(f"{chat}/stream") as (response, parser, events):
            limit = float(response.headers.get("turnstream-heartbeat", 15)) + _SOON
            with suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    while not parser.comments:
                        await anext(events)
        if not parser.comments:
            raise Failed(f"No comment came within {limit:g} s.")
        return f"after {time.monotonic() - start:.1f} s"

    async def from_json(self) -> str:
        new = await self.post()
        await self.read(new.stream, most=4)
        page = await self.json("GET", new.url, 200)
        rest = [] if page["status"] in ENDS.values() else await self.read(new.stream, page["cursor"])
        _check_same(rest, await self.json("GET", new.url, 200), page)
        return f"the turn was {page['status']}, with {len(rest)} events to come"

    async def headers(self) -> str:
        new = await self.post()
        async with self.open(new.stream) as (response, _, _):
            headers = response.headers
        wanted = {"cache-control": "no-store, no-transform", "x-accel-buffering": "no"}
        wrong = [f"{name}: {headers.get(name)}" for name, value in wanted.items() if headers.get(name) != value]
        wrong += [f"{name}: {headers[name]}" for name in ("content-encoding", "content-length") if name in headers]
        if not headers.get("content-type", "").startswith("text/event-stream"):
            wrong.append(f"content-type: {headers.get('content-type')}")
        if wrong:
            raise Failed(f"The answer has {'; '.join(wrong)}.")
        return ""

    async def order(self) -> str:
        """S10, S11, S14, S15."""
        _, events, turn = await self.ended()
        names = [event.name for event in events]
        if sum(name in ENDS for name in names) != 1 or names[-1] not in ENDS:
            raise Failed(f"The last events were {', '.join(names[-3:])}.")
        if names[0] != "turn_start":
            raise Failed(f"The first event was {names[0]}.")
        longest = max((len(event.data["text"]) for event in events if event.name == "block_delta"), default=0)
        if longest > _LONGEST_DELTA:
            raise Failed(f"A delta has {longest:,} code points.")
        is_open = False
        for event in events:
            if is_open and event.name in {"block_start", "round_stop", *ENDS}:
                raise Failed(f"{event.name} came while a block was open.")
            is_open = event.name == "block_start" or (is_open and event.name not in {"block_stop", "reset"})
        _check_same([event for event in events if event.id], turn)
        return f"{len(events)} events, {sum(event.id is None for event in events)} notices"

    async def code_points(self) -> str:
        _, events, _ = await self.ended()
        deltas = [event for event in events if event.name == "block_delta"]
        if not any(ord(character) > 0xFFFF for event in deltas[:-1] for character in event.data["text"]):
            raise Skipped("the answer came in one piece, or has no character outside of the basic plane; try --message")
        return ""  # the offsets were compared when the events were assembled

    async def without_readers(self) -> str:
        new = await self.post()
        await self.read(new.stream, most=1)
        end = time.monotonic() + self.patience
        while (turn := await self.json("GET", new.url, 200))["status"] not in ENDS.values():
            if time.monotonic() > end:
                raise Failed(f"After {self.patience:g} s the turn is {turn['status']}.")
            await asyncio.sleep(0.2)
        return str(turn["status"])

    async def posted(self) -> str:
        chat, key = await self.chat(), str(uuid4())
        read: list[list[Event]] = []
        for _ in range(2):
            async with self.open(f"{chat}/turns", method="POST", key=key) as (_, _, stream):
                read.append([event async for event in stream if event.name])
        first, again = (events[0].data["turn"] for events in read)
        if first != again:
            raise Failed("Repeated with its Idempotency-Key, the message was answered by another turn.")
        turn = await self.json("GET", f"{chat}/turns/{first}", 200)
        for events in read:
            _check_same(events, turn)
        return ""

    async def refusals(self) -> str:
        new, _, _ = await self.ended()
        await self.json("GET", new.stream, 400, headers={"Last-Event-ID": "no cursor"})
        await self.json("GET", f"{new.user}/stream", 409)
        await self.json("GET", f"{new.chat}/turns/{uuid4()}/stream", 404)
        if self.has_token:
            await self.json("GET", new.stream, 401, headers={"Authorization": "Bearer of-nobody"})
        return "400, 409, 404" + (", 401" if self.has_token else "")

    async def cancelled(self) -> str:
        new = await self.post(_LONG)
        await self.read(new.stream, most=4)
        await self.json("POST", f"{new.url}/cancel", 202)
        events = await self.read(new.stream)
        _check_end(events, "cancelled")
        _check_same(events, await self.json("GET", new.url, 200))
        return ""

    async def deleted(self) -> str:
        new = await self.post(_LONG)
        found: list[Event] = []
        async with self.open(new.stream) as (_, _, events):
            found.append(await anext(events))
            await self.json("DELETE", new.chat, 200)
            self.chats.remove(new.chat)
            found += [event async for event in events if event.name]
        _check_end(found, "deleted")
        await self.json("GET", new.stream, 404)
        return ""

    # --- streams of chats and of the owner ---------------------------------------------------------------------------

    async def of_a_chat(self) -> str:
        chat = await self.chat()
        async with self.open(f"{chat}/stream") as (_, _, live):
            new = await self.json("POST", f"{chat}/turns", 201, json=self.body)
            turn, events = new["assistant_turn"]["id"], list[Event]()
            async for event in live:
                events += [event] if event.name else []
                if event.name in ENDS and event.data["turn"] == turn:
                    break
        stored = await self.json("GET", f"{chat}/turns/{turn}", 200)
        _check_same([event for event in events if event.data.get("turn") == turn], stored)
        names = [event.name for event in events]
        if names[0] != "chat" or names.count("turn") != 2:
            raise Failed(f"The stream began with {names[0]} and had {names.count('turn')} new turns, not 2.")
        places = [place for place, event in enumerate(events) if event.id]
        for place in places[:: max(1, len(places) // 5)]:
            rest = events[: place + 1]
            async with self.open(f"{chat}/stream", events[place].id) as (_, _, again):
                while rest[-1].name not in ENDS:
                    event = await anext(again)
                    rest += [event] if event.name else []
            _check_same([event for event in rest if event.data.get("turn") == turn], stored)
        return f"{len(events)} events"

    async def refusals_of_chats(self) -> str:
        chat = await self.chat()
        await self.json("GET", f"{chat}/stream", 400, headers={"Last-Event-ID": "no cursor"})
        await self.json("GET", f"/api/chats/{uuid4()}/stream", 404)
        await self.json("GET", "/api/stream", 400, headers={"Last-Event-ID": "no cursor"})
        return "400, 404"

    async def feed(self) -> str:
        seen: list[str] = []
        async with self.open("/api/stream") as (_, _, events):
            first = await anext(events)
            while not first.id and not first.name:  # a comment
                first = await anext(events)
            if not first.id or first.name:
                raise Failed(f"The feed began with {first.name or 'nothing'}, not with an id alone.")
            new = await self.post()
            chat, turn = new.chat.rpartition("/")[2], new.url.rpartition("/")[2]
            async for event in events:
                if event.name == "turn" and event.data["turn"] == turn:
                    seen.append(event.data["status"])
                    if seen[-1] in ENDS.values():
                        break
            await self.json("DELETE", new.chat, 200)
            self.chats.remove(new.chat)
            async for event in events:
                if event.name == "chat_deleted" and event.data["id"] == chat:
                    break
        if any(one == other for one, other in pairwise(seen)):
            raise Failed(f"A state was sent twice in a row: {', '.join(seen)}.")
        return ", ".join([*seen, "deleted"])

    def checks(self) -> list[Check]:
        rows: Sequence[tuple[str, str, Callable[[], Awaitable[str]]]] = [
            ("S1", "cuts while a turn runs lose nothing, and repeat nothing", self.cuts),
            ("S3", "the id of any event stays valid", self.every_cursor),
            ("S4", "after the last event nothing is left", self.nothing_left),
            ("S5", "the first bytes come at once", self.first_bytes),
            ("S5", "a silent stream is kept alive by comments", self.comments),
            ("S7", "JSON goes on as a stream", self.from_json),
            ("S8", "headers keep proxies from holding events back", self.headers),
            ("S10", "a turn that is stopped ends its stream", self.cancelled),
            ("S10", "a chat that is deleted is not found", self.deleted),
            ("S11", "events come in order, one end comes last", self.order),
            ("S13", "offsets count code points", self.code_points),
            ("S16", "a turn goes on without readers", self.without_readers),
            ("S17", "a POST may answer with the stream, and be repeated", self.posted),
            ("S18", "streams that cannot be are refused", self.refusals),
            ("T1", "the stream of a chat has its turns, from any cursor", self.of_a_chat),
            ("T6", "streams of chats that cannot be are refused", self.refusals_of_chats),
            ("F2", "the feed sends what becomes of chats and turns", self.feed),
        ]
        return [Check(promise, rule, examine) for rule, promise, examine in rows]


async def _events(response: httpx2.Response, parser: Parser) -> AsyncGenerator[Event, None]:
    """The events of a body; one without id and name for bytes that are none, so that a reader sees comments."""
    async for chunk in response.aiter_raw():
        events = list(parser.feed(chunk))
        for event in events or [Event(None, "", {})]:
            yield event


def _check_same(events: Sequence[Event], stored: Json, begun: Json | None = None) -> None:
    """Raises Failed unless the events, after what `begun` holds, make the turn as it is stored."""
    try:
        blocks, _ = assemble(events, begun["blocks"] if begun else ())
    except (Disorder, KeyError, IndexError) as error:
        raise Failed(f"The events do not fit: {error}.") from None
    if wrong := difference(blocks, stored["blocks"]):
        raise Failed(f"In what was assembled, {wrong}.")


def _check_end(events: Sequence[Event], stop_reason: str) -> None:
    end = events[-1]
    if end.name == "turn_complete":
        raise Skipped("the answer was complete too early; try a longer --message")
    if (end.name, end.data.get("stop_reason")) != ("turn_cancelled", stop_reason):
        raise Failed(f"The stream ended with {end.name}, {end.data.get('stop_reason')}; it should be {stop_reason}.")


async def examine(url: str, token: str | None, message: str, patience: float) -> Report:
    """Examines a server with chats of its own, which are deleted at the end."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    timeout = httpx2.Timeout(patience)
    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=timeout) as client:
        server = ServerChecks(client, message, patience, token is not None)
        try:
            results = await asyncio.gather(*(check.run() for check in server.checks()))
        finally:
            for chat in server.chats:
                await client.delete(chat)
    return Report(f"server {url}", results)
