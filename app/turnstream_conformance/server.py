"""Checks the promises of a server from outside, with any model."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar, cast
from uuid import uuid4

import httpx2

from turnstream_conformance.report import Check, Failed, Report, Skipped
from turnstream_conformance.wire import ENDS, Disorder, Event, Json, Parser, assemble, difference

# The message is short, and has characters that programming languages count differently. The demo model executes the
# command `/say`, and a real model understands it.
MESSAGE = "/say The tide 🌊 comes in 🌊, and the tide goes out. É voilà. 🌊"
_CURSORS = 25  # cursors of one turn from which the rest of the turn is read
_LONGEST_DELTA = 131_072
_SOON = 2.0  # seconds
_AT_ONCE = 0.25  # seconds: a faster answer may arrive in one piece
_LATER = 4  # repetitions of the message, for an answer whose readers leave and return
_LONG = 40  # repetitions of the message, for an answer that a check stops
_ANSWERS = 3  # time limit for a check, in multiples of the patience
_CUTS = 3  # connections cut during a background call
_FRUITLESS = 3  # connections in a row without a new event, after which a reader gives up
_MOST_BYTES = 16 * 1024 * 1024  # of one body
_REPLY = {"text", "thinking", "tool_use"}  # types of blocks that a model writes
_T = TypeVar("_T")
_NOTICES = {"status", "tool_progress", "tool_output", "access_ended", "retry"}


@dataclass(frozen=True, slots=True)
class Exchanged:
    """A posted message, and the addresses of the turn that answers it."""

    chat: str
    user: str
    url: str

    @property
    def stream(self) -> str:
        return f"{self.url}/stream"


@dataclass(slots=True)
class ServerChecks:
    """The checks of a server, as one owner sees the server. An answer may take `patience` seconds. `chats` are deleted
    after the checks.
    """

    client: httpx2.AsyncClient
    message: str
    patience: float
    has_token: bool
    background: str | None = None  # a message that makes the model call a background tool
    chats: list[str] = field(default_factory=list)

    # --- requests ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _answer(self, method: str, path: str, **request: Any) -> AsyncIterator[httpx2.Response]:
        """Yields the response. If the server is busy, sends the request again after the time in `Retry-After`, as C7
        demands. Each POST has an idempotency key, so that a repetition has no second effect.
        """
        if method == "POST":
            request["headers"] = {"Idempotency-Key": str(uuid4()), **request.get("headers", {})}
        end = time.monotonic() + self.patience
        while True:
            async with self.client.stream(method, path, **request) as response:
                wait = response.headers.get("retry-after", "")
                if response.status_code != 503 or not wait.isdecimal() or time.monotonic() + int(wait) > end:
                    yield response
                    return
            await asyncio.sleep(int(wait))

    async def json(self, method: str, path: str, *expect: int, **request: Any) -> Json:
        """Returns the JSON of a response whose status is in `expect`. Raises Failed for any other status, without
        reading the body.
        """
        async with asyncio.timeout(self.patience), self._answer(method, path, **request) as response:
            if response.status_code not in expect:
                wanted = " or ".join(map(str, expect))
                raise Failed(f"{method} {path} was answered with {response.status_code}, not {wanted}.")
            body = b"".join([chunk async for chunk in _bounded(response)])
        return cast("Json", json.loads(body)) if body else {}

    async def chat(self) -> str:
        chat = await self.json("POST", "/api/chats", 201, json={"title": "turnstream conformance"})
        self.chats.append(f"/api/chats/{chat['id']}")
        return self.chats[-1]

    def body(self, times: int = 1, more: str = "") -> Json:
        return {"blocks": [{"type": "text", "text": " ".join([self.message] * times) + more}]}

    async def post(self, times: int = 1, more: str = "") -> Exchanged:
        """Posts the message, repeated `times` times for a long answer, followed by `more`."""
        return await self.post_body(self.body(times, more))

    async def post_body(self, body: Json) -> Exchanged:
        chat = await self.chat()
        new = await self.json("POST", f"{chat}/turns", 201, json=body)
        return Exchanged(chat, *(f"{chat}/turns/{new[turn]['id']}" for turn in ("user_turn", "assistant_turn")))

    @asynccontextmanager
    async def open(
        self, path: str, cursor: str | None = None, *, posted: Json | None = None, key: str | None = None
    ) -> AsyncIterator[tuple[httpx2.Response, Parser, AsyncGenerator[Event, None]]]:
        """Opens a stream by a GET or, if `posted` is given, by a POST of this message with the idempotency `key`."""
        method = "GET" if posted is None else "POST"
        headers = {"Accept": "text/event-stream", "Accept-Encoding": "gzip"}
        headers |= {"Last-Event-ID": cursor} if cursor else {}
        headers |= {"Idempotency-Key": key} if key else {}
        async with (
            asyncio.timeout(self.patience),
            self._answer(method, path, headers=headers, json=posted) as response,
        ):
            if response.status_code not in {200, 201}:
                raise Failed(f"{method} {path} was answered with {response.status_code}.")
            parser = Parser()
            async with aclosing(_events(response, parser)) as events:
                yield response, parser, events

    async def read(self, path: str, cursor: str | None = None, most: int | None = None) -> list[Event]:
        """Reads the events after `cursor`, to the end of the stream or until `most` events with an id have come."""
        found: list[Event] = []
        async with self.open(path, cursor) as (_, _, events):
            async for event in events:
                found += [event] if event.name else []
                if most is not None and sum(each.id is not None for each in found) == most:
                    break
        return found

    async def read_on(
        self, path: str, portion: int, last_portion: bool = False, cursor: str | None = None
    ) -> list[list[Event]]:
        """Reads a turn to its end, and returns the events of each connection. Every connection is cut after `portion`
        events, or only the first connection with `last_portion`.
        """
        found: list[list[Event]] = []
        seen: set[str] = set()
        fruitless = 0
        while not (found and found[-1] and found[-1][-1].name in ENDS):
            found.append(await self.read(path, cursor, None if last_portion and cursor else portion))
            ids = [event.id for event in found[-1] if event.id]
            fruitless = fruitless + 1 if seen.issuperset(ids) else 0
            if fruitless == _FRUITLESS:
                raise Failed(
                    f"{fruitless} connections in a row had no new event after the cursor {cursor}, and no end."
                )
            seen.update(ids)
            cursor = ids[-1] if ids else cursor
        return found

    async def whole(self, url: str) -> Json:
        """Returns the turn as JSON after its end. Raises Failed unless the turn is complete."""
        end = time.monotonic() + self.patience
        while (turn := await self.json("GET", url, 200))["status"] not in ENDS.values():
            if time.monotonic() > end:
                raise Failed(f"After {self.patience:g} s the turn is {turn['status']}.")
            await asyncio.sleep(0.2)
        if turn["status"] != "complete":
            raise Failed(f"The turn ended as {turn['status']}; it should be complete.")
        return turn

    async def ended(self, times: int = 1) -> tuple[Exchanged, list[Event], Json]:
        """Posts a message, and returns its turn after the end: the addresses, the events of the live stream, and the
        JSON.
        """
        new = await self.post(times)
        events = await self.read(new.stream)
        return new, events, await self.json("GET", new.url, 200)

    # --- turns -------------------------------------------------------------------------------------------------------

    async def cuts(self) -> str:
        """Reads a running turn in portions of three events."""
        new = await self.post()
        connections = await self.read_on(new.stream, 3)
        events = [event for each in connections for event in each]
        _check_same(events, await self.json("GET", new.url, 200))
        return f"{sum(event.id is not None for event in events)} events over {len(connections)} connections"

    async def side_by_side(self) -> str:
        """Compares concurrent answers with the expected answers, which are known only for the demo model."""
        news = await _all(*(self.post(more=f" {number}") for number in range(4)))
        read = await _all(*(self.read(new.stream) for new in news))
        turns = await _all(*(self.json("GET", new.url, 200) for new in news))
        if not self.message.startswith("/say ") or "\n" in self.message or turns[0].get("model") != "demo":
            raise Skipped("only the answers of the demo to a message that begins with /say are known")
        for number, (events, turn) in enumerate(zip(read, turns, strict=True)):
            known = [{"type": "text", "text": f"{self.message.removeprefix('/say ').strip()} {number}"}]
            for blocks in (turn["blocks"], assemble(events)[0]):
                if wrong := difference(blocks, known):
                    raise Failed(f"In the answer to message {number}, {wrong}.")
        return f"{len(turns)} answers"

    async def readers_at_once(self) -> str:
        """Compares readers that start at the beginning, readers that join later, and readers that return."""
        new = await self.post(_LATER)

        async def joining(after: int) -> list[Event]:
            await self.read(new.stream, most=after)
            return await self.read(new.stream)

        async def resuming(after: int) -> list[Event]:
            return [event for each in await self.read_on(new.stream, after, last_portion=True) for event in each]

        readers = [self.read(new.stream), self.read(new.stream), joining(4), joining(9), resuming(6), resuming(12)]
        read = await _all(*readers)
        turn = await self.json("GET", new.url, 200)
        for events in read:
            _check_same(events, turn)
        return f"{len(read)} readers"

    async def ids(self) -> str:
        new = await self.post()
        for portion, last_portion in ((2, False), (1, True)):
            connections = await self.read_on(new.stream, portion, last_portion)
            ids = [event.id for each in connections for event in each if event.id]
            for before, after in pairwise(ids):
                if _position(after) <= _position(before):
                    raise Failed(f"The id {after} came after {before}; each must be larger than the one before.")
        return ""

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
        new, start = await self.post(_LONG), time.monotonic()
        async with self.open(new.stream) as (response, _, events):
            await _next(events)
            taken = time.monotonic() - start
            heartbeat = response.headers.get("turnstream-heartbeat", "")
        await self.read(new.stream, most=4)
        status = (await self.json("GET", new.url, 200))["status"]
        if status in ENDS.values() and time.monotonic() - start > _AT_ONCE:
            raise Failed(f"The turn was {status} before its fourth event came.")
        await self.json("POST", f"{new.url}/cancel", 202, 200)
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
                        await _next(events)
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
        """Checks the promises S10, S11 and S15."""
        _, events, turn = await self.ended()
        _check_order(events)
        if turn["status"] != ENDS[events[-1].name]:
            raise Failed(f"The last event was {events[-1].name}, but the turn is {turn['status']}.")
        _check_same(events, turn)
        return f"{len(events)} events"

    async def notices(self) -> str:
        _, events, turn = await self.ended()
        if wrong := [event.name for event in events if event.id and event.name in _NOTICES]:
            raise Failed(f"The notice {wrong[0]} has an id.")
        if wrong := [event.name for event in events if not event.id and event.name not in _NOTICES]:
            raise Failed(f"{wrong[0]} has no id.")
        _check_same([event for event in events if event.id], turn)
        return f"{sum(event.id is None for event in events)} notices"

    async def code_points(self) -> str:
        _, events, turn = await self.ended()
        _check_same(events, turn)
        deltas = [event for event in events if event.name == "block_delta"]
        if not any(ord(character) > 0xFFFF for event in deltas[:-1] for character in event.data["text"]):
            raise Skipped("the answer came in one piece, or has no character outside of the basic plane; try --message")
        return ""

    async def without_readers(self) -> str:
        """One reader leaves a stream, and another reader leaves the response to its POST. The turns of both readers are
        compared with turns whose readers stay, unless the model varies its answers.
        """
        left, chat = await self.post(_LATER), await self.chat()
        await self.read(left.stream, most=1)
        async with self.open(f"{chat}/turns", posted=self.body(_LATER)) as (_, _, events):
            posted = (await _named(events)).data["turn"]
        turns = await _all(self.whole(left.url), self.whole(f"{chat}/turns/{posted}"))
        stayed = [turn["blocks"] for _, _, turn in await _all(self.ended(_LATER), self.ended(_LATER))]
        if difference(stayed[0], stayed[1]):
            return "complete"
        for turn in turns:
            if wrong := difference(turn["blocks"], stayed[0]):
                raise Failed(f"In a turn whose reader left, {wrong}.")
        return "complete, with the same text"

    async def posted(self) -> str:
        chat, key = await self.chat(), str(uuid4())
        read: list[list[Event]] = []
        for _ in range(2):
            async with self.open(f"{chat}/turns", posted=self.body(), key=key) as (_, _, stream):
                read.append([event async for event in stream if event.name])
            if not read[-1] or read[-1][0].name != "turn_start":
                raise Failed("The answer to the POST did not begin with turn_start.")
        first, again = (events[0].data["turn"] for events in read)
        if first != again:
            raise Failed("Repeated with its Idempotency-Key, the message was answered by another turn.")
        turn = await self.json("GET", f"{chat}/turns/{first}", 200)
        for events in read:
            _check_same(events, turn)
            if events[-1].name not in ENDS:
                raise Failed(f"The answer to the POST ended with {events[-1].name}.")
        return ""

    async def one_effect(self) -> str:
        chat, key = await self.chat(), {"Idempotency-Key": str(uuid4())}

        async def send() -> str:
            new = await self.json("POST", f"{chat}/turns", 201, json=self.body(), headers=key)
            return str(new["assistant_turn"]["id"])

        ids = {*(await _all(*(send() for _ in range(4)))), await send()}
        turns = (await self.json("GET", f"{chat}/turns", 200))["turns"]
        if len(ids) != 1 or len(turns) != 2:
            raise Failed(
                f"Five posts with one Idempotency-Key made {len(ids)} answers and {len(turns)} turns, not 1 and 2."
            )
        return ""

    async def busy(self) -> str:
        new = await self.post(_LONG)
        await self.read(new.stream, most=1)
        answer = await self.json("POST", f"{new.chat}/turns", 409, 201, json=self.body())
        turns = (await self.json("GET", f"{new.chat}/turns", 200))["turns"]
        ended = (await self.json("POST", f"{new.url}/cancel", 202, 200))["status"] == "complete"
        if ended:
            raise Skipped("the answer was complete too early; try a longer --message")
        if "assistant_turn" in answer:
            raise Failed("A message after an answer that is being written was accepted.")
        if len(turns) != 2:
            raise Failed(f"After a message that was refused the chat has {len(turns)} turns, not 2.")
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
        begun = await self.read(new.stream, most=6)
        if (await self.json("POST", f"{new.url}/cancel", 202, 200))["status"] == "complete":
            raise Skipped("the answer was complete too early; try a longer --message")
        events = await self.read(new.stream)
        _check_end(events, "cancelled")
        turn = await self.json("GET", new.url, 200)
        _check_same(events, turn)
        seen, kept = ("".join(block["text"] for block in blocks) for blocks in (assemble(begun)[0], turn["blocks"]))
        if turn["status"] != "cancelled" or not kept.startswith(seen):
            raise Failed(f"The turn is {turn['status']}, with {len(kept)} characters; {len(seen)} were sent before.")
        return ""

    async def deleted(self) -> str:
        new = await self.post(_LONG)
        found: list[Event] = []
        async with self.open(new.stream) as (_, _, events):
            found.append(await _named(events))
            if (await self.json("GET", new.url, 200))["status"] in ENDS.values():
                raise Skipped("the answer was complete too early; try a longer --message")
            await self.json("DELETE", new.chat, 200)
            self.chats.remove(new.chat)
            found += [event async for event in events if event.name]
        _check_end(found, "deleted")
        for address in (new.stream, new.url, new.chat):
            await self.json("GET", address, 404)
        return ""

    # --- calls in the background -------------------------------------------------------------------------------------

    async def in_the_background(self) -> str:
        """Compares a reader that stays with a reader that is cut during a background call. If a turn works on the call,
        also checks the stream of that turn.
        """
        message = self.background or await self._message_with_a_call()
        new = await self.post_body({"blocks": [{"type": "text", "text": message}]})
        stayed, cut = await _all(self._stay_while_a_call_runs(new), self._cut_while_a_call_runs(new))
        if cut.job is None:
            has_job = any(event.name == "tool_progress" and "job" in event.data for event in stayed.events)
            if has_job and stayed.seconds > _AT_ONCE:
                raise Failed("A call ran in the background, and was never in the `jobs` of the turn's JSON.")
            raise Skipped("the model called no tool in the background, or the call ended at once")
        if not cut.cuts:
            raise Skipped("the call ended too early; try a slower tool")
        turn = await self.json("GET", new.url, 200)
        _check_order(stayed.events)
        for events in (stayed.events, cut.events):
            _check_same(events, turn)
            _check_call(events, cut.job)
        told = _notices_of(cut.job, stayed.events)
        if stayed.seconds > _SOON and not told:
            raise Failed("A reader that stayed got no tool_progress with the job of the call.")
        if turn["jobs"]:
            raise Failed(f"The turn is {turn['status']}, and still has a job in `jobs`.")
        children = [notice.data["job"].get("child") for notice in (*told, *_notices_of(cut.job, cut.events))]
        if child := next(filter(None, children), None):
            await self._check_child(child)
        return f"of the kind {cut.job['kind']}, with {cut.cuts} cuts in {stayed.seconds:.1f} s"

    async def _message_with_a_call(self) -> str:
        """Returns a message that makes the model call a background tool. The demo model executes the command, and many
        models understand it.
        """
        for tool in (await self.json("GET", "/api/tools", 200, 404)).get("tools", ()):
            required = set(tool["input_schema"].get("required", ()))
            if tool.get("background") and tool["approval"] == "never" and required <= {"task"}:
                given = dict.fromkeys(required, " ".join([self.message] * _LONG))
                return f"/call {tool['name']} {json.dumps(given, ensure_ascii=False)}"
        raise Skipped("needs a tool in the background, or --background with a message that lets the model call one")

    async def _stay_while_a_call_runs(self, new: Exchanged) -> "WatchedCall":
        events, start, seconds = list[Event](), time.monotonic(), 0.0
        async with self.open(new.stream) as (_, _, stream):
            async for event in stream:
                events += [event] if event.name else []
                if event.name == "round_stop":
                    start = time.monotonic()
                elif event.name == "block_start" and event.data["type"] == "tool_result":
                    seconds = time.monotonic() - start
        return WatchedCall(None, events, 0, seconds)

    async def _cut_while_a_call_runs(self, new: Exchanged) -> "WatchedCall":
        """Reads as a client that is cut after each notice about the call, and then after every second event."""
        start = time.monotonic()
        while not (turn := await self.json("GET", new.url, 200))["jobs"]:
            if turn["status"] in ENDS.values():
                return WatchedCall(None)
            if time.monotonic() - start > self.patience:
                raise Failed(f"After {self.patience:g} s the turn is {turn['status']}, and no call is in its `jobs`.")
            await asyncio.sleep(0.05)
        job, cuts, events = turn["jobs"][0], 0, list[Event]()
        while turn["jobs"] and cuts < _CUTS:
            if any(_is_decided(action) and action["tool_use_id"] == job["tool_use_id"] for action in turn["actions"]):
                raise Failed(f"A person is asked for the call {job['tool_use_id']}, which runs in the background.")
            looked, found = time.monotonic(), list[Event]()
            shown = {each["tool_use_id"] for each in turn.get("preliminary", ())}
            wanted = {"tool_progress", *(["tool_output"] if job["tool_use_id"] in shown else [])}
            async with self.open(new.stream, _last_id(events)) as (_, _, stream):
                while not wanted <= _notices_about(job, found):
                    found.append(await _named(stream))
                    if found[-1].name in ENDS or _place_of_result(job, found) is not None:
                        break
            events += found
            if missing := wanted - _notices_about(job, found):
                if time.monotonic() - looked > _AT_ONCE:
                    raise Failed(f"A reader that came while the call ran got no {' and no '.join(sorted(missing))}.")
                break
            cuts += 1
            turn = await self.json("GET", new.url, 200)
        if not events or events[-1].name not in ENDS:
            rest = await self.read_on(new.stream, 2, cursor=_last_id(events))
            events += [event for each in rest for event in each]
        return WatchedCall(job, events, cuts)

    async def _check_child(self, child: Json) -> None:
        """Checks the turn that worked on the call: the turn has ended, its stream is correct, and its chat is in no
        list.
        """
        url = f"/api/chats/{child['chat']}/turns/{child['turn']}"
        turn = await self.json("GET", url, 200)
        if turn["status"] not in ENDS.values():
            raise Failed(f"The call has ended, and the turn that works on it is {turn['status']}.")
        events = [event for each in await self.read_on(f"{url}/stream", 3) for event in each]
        _check_order(events)
        _check_same(events, turn)
        if child["chat"] in {chat["id"] for chat in (await self.json("GET", "/api/chats", 200))["chats"]}:
            raise Failed("The chat of the turn that works on the call is in the list of chats.")

    # --- streams of chats and of the owner ---------------------------------------------------------------------------

    async def of_a_chat(self) -> str:
        chat = await self.chat()
        async with self.open(f"{chat}/stream") as (_, _, live):
            new = await self.json("POST", f"{chat}/turns", 201, json=self.body())
            turn = new["assistant_turn"]["id"]
            events = await _until_the_end(live, turn)
        stored = await self.json("GET", f"{chat}/turns/{turn}", 200)
        _check_same([event for event in events if event.data.get("turn") == turn], stored)
        names = [event.name for event in events]
        if names[0] != "chat" or names.count("turn") != 2:
            raise Failed(f"The stream began with {names[0]} and had {names.count('turn')} new turns, not 2.")
        asked = next(event.data for event in events if event.name == "turn" and event.data["role"] == "user")
        if wrong := difference(asked["blocks"], self.body()["blocks"]):
            raise Failed(f"In the message, {wrong}.")
        places = [place for place, event in enumerate(events[:-1]) if event.id]
        for place in places[:: max(1, len(places) // 5)]:
            async with self.open(f"{chat}/stream", events[place].id) as (_, _, again):
                rest = events[: place + 1] + await _until_the_end(again, turn)
            _check_same([event for event in rest if event.data.get("turn") == turn], stored)
            if (count := [event.name for event in rest].count("turn")) != 2:
                raise Failed(f"From the cursor {events[place].id} on there were {count} new turns in all, not 2.")
        return f"{len(events)} events"

    async def from_page(self) -> str:
        """Checks T3: the stream of a chat continues after the events that a page of the chat contains."""
        first, _, _ = await self.ended()
        page = await self.json("GET", f"{first.chat}/turns", 200)
        new = await self.json("POST", f"{first.chat}/turns", 201, json=self.body())
        turn = new["assistant_turn"]["id"]
        async with self.open(f"{first.chat}/stream", page["cursor"]) as (_, _, live):
            events = await _until_the_end(live, turn)
        turns = [event.data["turn"] for event in events if "turn" in event.data]
        if unknown := [id for id in turns if id not in {turn, new["user_turn"]["id"]}]:
            raise Failed(f"After the page an event of the turn {unknown[0]} came, which the page has.")
        _check_same(
            [event for event in events if event.data.get("turn") == turn],
            await self.json("GET", f"{first.chat}/turns/{turn}", 200),
        )
        return ""

    async def refusals_of_chats(self) -> str:
        chat, other = await self.chat(), await self.post()
        async with self.open(f"{other.chat}/stream") as (_, _, events):
            while (event := await _named(events)).name != "turn_start":
                pass
        cursor = event.id
        for foreign in ("no cursor", cursor or ""):
            await self.json("GET", f"{chat}/stream", 400, headers={"Last-Event-ID": foreign})
        await self.json("GET", f"/api/chats/{uuid4()}/stream", 404)
        return "400, 404"

    async def feed(self) -> str:
        seen: list[str] = []
        async with self.open("/api/stream") as (_, parser, events):
            first = await _next(events)
            while not first.id and not first.name and not parser.comments:
                first = await _next(events)
            if not first.id or first.name:
                raise Failed(f"The feed began with {first.name or 'nothing'}, not with an id alone.")
            new = await self.post()
            chat, turn = new.chat.rpartition("/")[2], new.url.rpartition("/")[2]
            is_listed = False
            while not (seen and seen[-1] in ENDS.values()):
                event = await _named(events)
                is_listed |= event.name == "chat" and event.data["id"] == chat
                seen += [event.data["status"]] if event.name == "turn" and event.data["turn"] == turn else []
            await self.json("DELETE", new.chat, 200)
            self.chats.remove(new.chat)
            while (event := await _named(events)).name != "chat_deleted" or event.data["id"] != chat:
                pass
        if not is_listed:
            raise Failed("The new chat was not sent.")
        if any(one == other for one, other in pairwise(seen)):
            raise Failed(f"A state was sent twice in a row: {', '.join(seen)}.")
        return ", ".join([*seen, "deleted"])

    async def refusals_of_the_feed(self) -> str:
        await self.json("GET", "/api/stream", 400, headers={"Last-Event-ID": "no cursor"})
        return "400"

    def checks(self) -> list[Check]:
        rows: Sequence[tuple[str, str, Callable[[], Awaitable[str]]]] = [
            ("S1", "cuts while a turn runs lose nothing, and repeat nothing", self.cuts),
            ("S1", "turns side by side have their own words", self.side_by_side),
            ("S1", "readers at once, and those that join late, miss nothing", self.readers_at_once),
            ("S2", "ids grow, over all connections", self.ids),
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
            ("S14", "notices have no id, and events have one", self.notices),
            ("S16", "a turn goes on without readers", self.without_readers),
            ("S17", "a POST may answer with the stream, and be repeated", self.posted),
            ("S18", "streams that cannot be are refused", self.refusals),
            ("S21", "posts with one key have one effect", self.one_effect),
            ("S24", "a call in the background has one result, whatever the cuts", self.in_the_background),
            ("B1", "a message to a busy branch is refused", self.busy),
            ("T1", "the stream of a chat has its turns, from any cursor", self.of_a_chat),
            ("T3", "a page of turns goes on as a stream", self.from_page),
            ("T6", "streams of chats that cannot be are refused", self.refusals_of_chats),
            ("F2", "the feed sends what becomes of chats and turns", self.feed),
            ("F6", "a feed from what is no cursor is refused", self.refusals_of_the_feed),
        ]
        return [Check(promise, rule, examine) for rule, promise, examine in rows]


@dataclass(frozen=True, slots=True)
class WatchedCall:
    """A background call as one reader saw it. `cuts` counts the connections that were cut, `seconds` is the time from
    the end of the round to the result of the call, and `job` is from the JSON of the turn.
    """

    job: Json | None
    events: Sequence[Event] = ()
    cuts: int = 0
    seconds: float = 0.0


async def _bounded(response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    """Yields the decompressed body. Raises Failed if the body is too long."""
    count = 0
    async for chunk in response.aiter_bytes():
        count += len(chunk)
        if count > _MOST_BYTES:
            raise Failed(f"The answer has more than {_MOST_BYTES:,} bytes.")
        yield chunk


async def _all(*checks: Awaitable[_T]) -> list[_T]:
    """Runs all checks at the same time, and returns their results. Raises the first error after all have ended."""
    results = await asyncio.gather(*checks, return_exceptions=True)
    if errors := [result for result in results if isinstance(result, BaseException)]:
        raise errors[0]
    return cast("list[_T]", results)


async def _next(events: AsyncIterator[Event]) -> Event:
    async for event in events:
        return event
    raise Failed("The stream ended before the events that were to come.")


async def _named(events: AsyncIterator[Event]) -> Event:
    """Returns the next event that has a name, and skips comments."""
    while not (event := await _next(events)).name:
        pass
    return event


async def _until_the_end(events: AsyncIterator[Event], turn: str) -> list[Event]:
    """Returns the events of a chat until the turn has ended."""
    found = [await _named(events)]
    while found[-1].name not in ENDS or found[-1].data["turn"] != turn:
        found.append(await _named(events))
    return found


async def _events(response: httpx2.Response, parser: Parser) -> AsyncGenerator[Event, None]:
    """Yields the events of a body. A chunk without a complete event, such as a comment, yields a nameless event."""
    async for chunk in _bounded(response):
        events = list(parser.feed(chunk))
        for event in events or [Event(None, "", {})]:
            yield event


def _check_same(events: Sequence[Event], stored: Json, begun: Json | None = None) -> None:
    """Raises Failed unless the events, applied to the turn `begun`, result in the blocks of the stored turn."""
    try:
        blocks, _ = assemble(events, begun["blocks"] if begun else ())
    except (Disorder, KeyError, IndexError) as error:
        raise Failed(f"The events do not fit: {error}.") from None
    if wrong := difference(blocks, stored["blocks"]):
        raise Failed(f"In what was assembled, {wrong}.")


def _position(cursor: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in cursor.split("-"))
    except ValueError:
        raise Failed(f"The id {cursor!r} is not numbers with hyphens between them.") from None


def _check_order(events: Sequence[Event]) -> None:
    """Raises Failed unless rounds and blocks open and close in order, and the last event alone ends the turn."""
    names = [event.name for event in events]
    if sum(name in ENDS for name in names) != 1 or names[-1] not in ENDS:
        raise Failed(f"The last events were {', '.join(names[-3:])}; one end must come last.")
    if names[0] != "turn_start":
        raise Failed(f"The first event was {names[0]}.")
    is_open, blocks = False, 0
    in_round: bool | None = False  # None after a reset: the client cannot know
    for event in events:
        if is_open and event.name in {"block_start", "round_start", "round_stop", *ENDS}:
            raise Failed(f"{event.name} came while a block was open.")
        match event.name:
            case "round_start" | "round_stop":
                if in_round is (event.name == "round_start"):
                    raise Failed(f"{event.name} came while {'a' if in_round else 'no'} round was open.")
                in_round = event.name == "round_start"
            case "block_start":
                if event.data["index"] != blocks:
                    raise Failed(f"Block {event.data['index']} began where block {blocks} was next.")
                if in_round is False and event.data["type"] in _REPLY:
                    raise Failed(f"A block of the type {event.data['type']} began outside of a round.")
                is_open, blocks = True, blocks + 1
            case "block_delta" | "block_stop":
                if not is_open:
                    raise Failed(f"{event.name} came while no block was open.")
                is_open = event.name == "block_delta"
                if len(event.data.get("text", "")) > _LONGEST_DELTA and is_open:
                    raise Failed(f"A delta has {len(event.data['text']):,} code points.")
            case "reset":
                is_open, in_round, blocks = False, None, event.data["index"]
            case "turn_complete" if in_round:
                raise Failed("The turn was complete while a round was open.")
            case _:
                pass


def _last_id(events: Sequence[Event]) -> str | None:
    return next((event.id for event in reversed(events) if event.id), None)


def _is_decided(action: Json) -> bool:
    """Returns whether the call waits for a decision or for a client. A background call must wait for neither of them,
    but it may ask a question.
    """
    return action["type"] in {"client", "approval"}


def _notices_of(job: Json, events: Sequence[Event]) -> list[Event]:
    notices = [event for event in events if event.name == "tool_progress"]
    return [event for event in notices if event.data.get("job", {}).get("id") == job["id"]]


def _notices_about(job: Json, events: Sequence[Event]) -> set[str]:
    """Returns the names of the events about the call."""
    return {event.name for event in events if event.data.get("tool_use_id") == job["tool_use_id"]}


def _place_of_result(job: Json, events: Sequence[Event]) -> int | None:
    for place, event in enumerate(events):
        is_result = (event.name, event.data.get("type")) == ("block_start", "tool_result")
        if is_result and event.data["tool_use_id"] == job["tool_use_id"]:
            return place
    return None


def _check_call(events: Sequence[Event], job: Json) -> None:
    """Raises Failed unless the call has one result, and all notices about the call have no id and come before the
    result.
    """
    place, call = _place_of_result(job, events), job["tool_use_id"]
    if place is None:
        raise Failed(f"The call {call} has no result.")
    if _place_of_result(job, events[place + 1 :]) is not None:
        raise Failed(f"The call {call} has two results.")
    if _notices_of(job, events[place:]):
        raise Failed(f"tool_progress with the job of the call {call} came after its result.")
    if wrong := [event.name for event in events if event.name in _NOTICES and event.id]:
        raise Failed(f"The notice {wrong[0]} has an id.")
    for notice in _notices_of(job, events):
        named = [notice.data["tool_use_id"], *(notice.data["job"][member] for member in ("tool_use_id", "kind"))]
        if named != [call, call, job["kind"]]:
            raise Failed(f"tool_progress names {named} of the job, the JSON {[call, call, job['kind']]}.")


def _check_end(events: Sequence[Event], stop_reason: str) -> None:
    if not events:
        raise Failed(f"The stream had no event; it should end with turn_cancelled, {stop_reason}.")
    end = events[-1]
    if (end.name, end.data.get("stop_reason")) != ("turn_cancelled", stop_reason):
        raise Failed(f"The stream ended with {end.name}, {end.data.get('stop_reason')}; it should be {stop_reason}.")


async def examine(url: str, token: str | None, message: str, patience: float, background: str | None = None) -> Report:
    """Checks a server in new chats, and deletes these chats at the end."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=patience, limits=limits) as client:
        server = ServerChecks(client, message, patience, token is not None, background)
        try:
            results = await asyncio.gather(*(check.run(_ANSWERS * patience) for check in server.checks()))
        finally:
            await asyncio.gather(*(_delete(client, chat, patience) for chat in server.chats))
    return Report(f"server {url}", results)


async def _delete(client: httpx2.AsyncClient, chat: str, patience: float) -> None:
    with suppress(httpx2.HTTPError, TimeoutError):
        async with asyncio.timeout(patience), client.stream("DELETE", chat):
            pass
