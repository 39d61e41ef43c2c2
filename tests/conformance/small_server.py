"""A small server that keeps every promise of the kit unless a defect is chosen. A server has at most one defect.

All data is in memory. `/say WORDS` gets these words as the answer. `/call dig {"task": WORDS}` calls an agent in the
background, and the agent's answer is the result.
"""

import asyncio
import json
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal
from uuid import uuid4

from turnstream_conformance.origin import STREAM, Request, Response, origin
from turnstream_conformance.wire import ENDS, Event, Json

TOKEN = "secret"
_PAUSE = 0.004  # seconds between two words
_HEARTBEAT = 0.4
_MANY = 140_000  # characters: more than the longest delta
_SHORT = 0.5  # seconds


@dataclass(slots=True)
class Log:
    """Events, with a signal for new events. `id` returns the cursor after a number of events."""

    kind: Literal["turn", "chat", "feed"]
    id: Callable[[int], str]
    events: list[Event] = field(default_factory=list)
    ended: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    taken: set[int] = field(default_factory=set)
    running: list[Event] = field(default_factory=list)  # the latest notices about a background call

    def append(self, name: str, data: Json, *, is_notice: bool = False) -> None:
        self.events.append(Event(None if is_notice else self.id(len(self.events) + 1), name, data))
        self.wake()

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def place_of(self, cursor: str) -> int | None:
        return next((n for n in range(len(self.events) + 1) if self.id(n) == cursor), None)


@dataclass(slots=True)
class Turn:
    json: Json
    log: Log
    words: list[str] = field(default_factory=list)
    stop: str | None = None
    readers: int = 0
    was_read: bool = False


@dataclass(slots=True)
class Chat:
    id: str
    log: Log
    turns: dict[str, Turn] = field(default_factory=dict)
    keys: dict[str, Json] = field(default_factory=dict)
    is_hidden: bool = False

    @property
    def answers(self) -> list[Turn]:
        return [turn for turn in self.turns.values() if turn.json["role"] == "assistant"]


class SmallServer:
    def __init__(self, defect: str = "") -> None:
        self.defect = defect
        self.chats: dict[str, Chat] = {}
        self.feed = Log("feed", lambda n: f"f{n}")
        self.tasks: set[asyncio.Task[None]] = set()
        self.last_words: list[str] = []
        self.refused: set[tuple[str | None, ...]] = set()

    # --- requests ----------------------------------------------------------------------------------------------------

    async def handle(self, request: Request, response: Response) -> None:
        if request.headers.get("authorization") != f"Bearer {TOKEN}" and self.defect != "any token is good":
            await response.json(401, {})
            return
        match self.defect:
            case "every request is refused once, as of a busy server":
                asked = (request.method, request.path, *map(request.headers.get, ("last-event-id", "idempotency-key")))
                if asked not in self.refused:
                    self.refused.add(asked)
                    await response.json(503, {}, {"Retry-After": "0"})
                    return
            case "every answer is 503":
                await response.json(503, {}, {"Retry-After": "1"})
                return
            case "every answer is 500":
                await response.json(500, {})
                return
            case "every connection is closed at once":
                return
            case "no request is answered":
                await response.gone()
                return
            case "JSON is no JSON" if request.method == "GET" and not request.path.endswith("/stream"):
                await response.whole(200, {"Content-Type": "application/json"}, b"{oops")
                return
            case "JSON is a list" if request.method == "GET" and not request.path.endswith("/stream"):
                await response.json(200, [])
                return
            case "JSON does not end" if request.method == "GET" and not request.path.endswith("/stream"):
                await _flood(response, b" " * 65_536)
                return
            case _:
                pass
        match request.method, request.path.strip("/").split("/")[1:]:
            case "POST", ["chats"]:
                chat_id = uuid4().hex
                chat = Chat(chat_id, Log("chat", lambda n: f"{chat_id}.{n}"))
                self.chats[chat_id] = chat
                chat.log.append("chat", {"id": chat_id})
                if self.defect != "the feed has no chats":
                    self.feed.append("chat", {"id": chat_id})
                await response.json(201, {"id": chat_id})
            case "GET", ["chats"]:
                shown = [{"id": chat.id} for chat in self.chats.values() if not chat.is_hidden]
                await response.json(200, {"chats": shown})
            case "GET", ["tools"]:
                input_schema = {"type": "object", "required": ["task"]}
                tool = {"name": "dig", "input_schema": input_schema, "approval": "never", "background": True}
                await response.json(200, {"tools": [tool]})
            case "GET", ["stream"]:
                first = Event(self.feed.id(len(self.feed.events)), "", {})
                start = b"" if self.defect == "the feed has no first id" else f"id: {first.id}\n\n".encode()
                await self.stream(request, response, self.feed, len(self.feed.events), start)
            case method, ["chats", id, *rest] if id in self.chats:
                await self.of_chat(method, self.chats[id], rest, request, response)
            case _, ["chats", _, "stream"] if self.defect == "a chat of nobody has a stream":
                await response.json(200, {})
            case _:
                await response.json(404, {})

    async def of_chat(self, method: str, chat: Chat, rest: list[str], request: Request, response: Response) -> None:
        match method, rest:
            case "GET", []:
                await response.json(200, {"id": chat.id})
            case "DELETE", []:
                await self.delete(chat)
                await response.json(200, {})
            case "GET", ["stream"]:
                await self.stream(request, response, chat.log, 0)
            case "GET", ["turns"]:
                place = len(chat.log.events)
                place -= 2 if self.defect == "the page of a chat has an old cursor" else 0
                turns = [turn.json for turn in chat.turns.values()]
                await response.json(200, {"turns": turns, "cursor": chat.log.id(place)})
            case "POST", ["turns"]:
                await self.post(chat, request, response)
            case _, ["turns", id, *_] if id not in chat.turns:
                await response.json(200 if self.defect == "an unknown turn has a stream" else 404, {})
            case "GET", ["turns", id]:
                await response.json(200, self.shown(chat.turns[id]))
            case "POST", ["turns", id, "cancel"]:
                turn = chat.turns[id]
                is_open = turn.json["status"] == "running"
                if is_open and self.defect != "a stop is ignored":
                    turn.stop = "cancelled"
                await response.json(202 if is_open else 200, turn.json)
            case "GET", ["turns", id, "stream"]:
                turn = chat.turns[id]
                if turn.json["role"] == "user" and self.defect != "the stream of a user turn is empty":
                    await response.json(409, {})
                    return
                await self.read_turn(turn, request, response)
            case _:
                await response.json(404, {})

    async def delete(self, chat: Chat) -> None:
        stops = {"a deletion is sent as a stop": "cancelled", "readers of a deleted chat wait for ever": "nothing"}
        if self.defect != "a deleted chat is still there":
            self.chats.pop(chat.id)
        if self.defect != "a deleted chat writes on":
            for turn in chat.answers:
                turn.stop = stops.get(self.defect, "deleted")
        if self.defect != "the feed has no deletions":
            self.feed.append("chat_deleted", {"id": chat.id})

    async def post(self, chat: Chat, request: Request, response: Response) -> None:
        key = request.headers.get("idempotency-key")
        known = chat.keys.get(key or "")
        if self.defect == "keys are ignored":
            known = None
        if self.defect == "posts at once with one key are two" and known is None:
            await asyncio.sleep(0.05)  # opens a gap between the lookup of the key and its storage
        if known is None:
            if any(turn.json["status"] == "running" for turn in chat.answers):
                if self.defect == "a refused message is stored":
                    chat.turns[uuid4().hex] = Turn({"role": "user", "status": "complete"}, Log("turn", str))
                if self.defect != "a message to a busy branch is accepted":
                    await response.json(409, {})
                    return
            known = self.exchange(chat, json.loads(request.body)["blocks"])
            if key:
                chat.keys[key] = known
        turn = chat.turns[known["assistant_turn"]["id"]]
        if "event-stream" in request.headers.get("accept", ""):
            await self.read_turn(turn, request, response, is_post=True)
        else:
            await response.json(201, known)

    def exchange(self, chat: Chat, blocks: list[Json]) -> Json:
        """Stores the message and starts its answer."""
        user, answer = uuid4().hex, uuid4().hex
        words = re.findall(r"\s*\S+\s*", blocks[0]["text"].removeprefix("/say ").strip())
        self.last_words = words
        base = {"chat_id": chat.id, "status": "complete"}
        chat.turns[user] = Turn({**base, "id": user, "role": "user", "blocks": blocks}, Log("turn", str))
        open_: Json = {"blocks": [], "jobs": [], "preliminary": [], "actions": []}
        json_ = {**base, "id": answer, "role": "assistant", "status": "running", "model": "demo", **open_}
        turn = chat.turns[answer] = Turn(json_, Log("turn", self.turn_id), words)
        if self.defect != "a chat does not send messages of the user":
            sent = [] if self.defect == "a chat sends messages without their text" else blocks
            chat.log.append("turn", {"turn": user, "role": "user", "blocks": sent})
        chat.log.append("turn", {"turn": answer, "role": "assistant"})
        self.tasks.add(asyncio.create_task(self.answer(chat, turn)))
        return {"user_turn": {"id": user}, "assistant_turn": dict(json_)}

    def turn_id(self, n: int) -> str:
        match self.defect:
            case "ids fall":
                return f"1-{10_000 - n}-0"
            case "ids of ten events sort as text":
                return f"1-{n % 10}-{n}"
            case "ids are no numbers":
                return f"event{n}"
            case _:
                return f"1-{n}-0"

    def shown(self, turn: Turn) -> Json:
        place, shown = len(turn.log.events), dict(turn.json)
        match self.defect:
            case "the JSON has no cursor":
                return shown
            case "the cursor of the JSON is one behind":
                place -= 1
            case "the cursor of the JSON is one ahead" if shown["status"] == "running":
                place += 1
            case "rows lack the last word" if shown["status"] == "complete" and shown["blocks"]:
                text = shown["blocks"][0]["text"]
                shown["blocks"] = [{**shown["blocks"][0], "text": text.rpartition(" ")[0]}]
            case "a turn that ended is running for ever" if shown["status"] == "complete":
                shown["status"] = "running"
            case _:
                pass
        shown["blocks"] = [dict(block) for block in shown["blocks"]]
        return {**shown, "cursor": turn.log.id(place)}

    # --- the answer --------------------------------------------------------------------------------------------------

    async def answer(self, chat: Chat, turn: Turn) -> None:
        """Writes the events of the turn to its stream and to the chat's stream."""
        id, block = turn.json["id"], {"type": "text", "text": ""}

        def send(name: str, data: Json, *, is_notice: bool = False) -> None:
            is_notice = is_notice and self.defect != "notices have ids"
            is_notice |= name == "block_delta" and self.defect == "deltas have no ids"
            turn.log.append(name, data, is_notice=is_notice)
            chat.log.append(name, {**data, "turn": id})

        def report(status: str) -> None:
            for _ in range(2 if self.defect == "the feed sends a state twice" else 1):
                self.feed.append("turn", {"chat": chat.id, "turn": id, "role": "assistant", "status": status})

        report("running")
        if self.defect != "there is no turn_start":
            send("turn_start", {"turn": id, "chat": chat.id, "attempt": 1})
        send("status", {"stage": "streaming"}, is_notice=True)
        send("round_start", {"round": 1})
        if self.defect == "round_stop comes before the first block":
            send("round_stop", {"round": 1, "stop_reason": "end_turn", "usage": {}})
        index = 1 if self.defect == "the first block has the index 1" else 0
        if turn.words[0].startswith("/call"):
            await self.call(turn, "".join(turn.words), send)
            index = len(turn.json["blocks"])
            turn.words[:] = ["Done."]
        send("block_start", {"index": index, "round": 1, "type": "text"})
        turn.json["blocks"].append(block)
        for number, word in enumerate(self.words(turn)):
            await asyncio.sleep(_PAUSE)
            if self.defect == "a turn pauses without readers" and turn.was_read and not turn.readers:
                await asyncio.Event().wait()
            if turn.was_read and not turn.readers and self.defect in _LEFT:
                turn.stop = turn.stop or _LEFT[self.defect]
            if turn.stop:
                break
            offset = self.length(block["text"])
            block["text"] += word
            if self.defect == "words are sent twice" and number == 3:
                send("block_delta", {"index": index, "offset": offset, "text": word})
            sent = word.upper() if self.defect == "rows are not what was sent" and number == 1 else word
            if self.defect != "a delta is not sent" or number != 3:
                send("block_delta", {"index": index, "offset": offset, "text": sent})
        if turn.stop == "nothing":
            return
        if turn.stop == "cancelled" and self.defect == "a stop loses the words":
            block["text"] = ""
        if self.defect != "block_stop is left out":
            send("block_stop", {"index": index, "text": block["text"]} if turn.stop else {"index": index})
        if self.defect != "round_stop comes before the first block":
            send("round_stop", {"round": 1, "stop_reason": "end_turn", "usage": {}})
        if self.defect == "a round is stopped twice":
            send("round_stop", {"round": 1, "stop_reason": "end_turn", "usage": {}})
        self.end(turn, send)
        report(turn.json["status"])

    async def call(self, turn: Turn, message: str, send: Callable[..., None]) -> None:
        """Calls the agent, and sends its answer as the result. Then another round starts."""
        task = json.loads(message[message.index("{") :])["task"]
        use, child = {"id": "c1", "name": "dig"}, Chat(uuid4().hex, Log("chat", str), is_hidden=True)
        child.is_hidden = self.defect != "the chat of an agent is in the list"
        self.chats[child.id] = child
        turn.json["blocks"].append({"type": "tool_use", "text": "{}", "input": {}, **use})
        send("block_start", {"index": 0, "round": 1, "type": "tool_use", **use})
        send("block_delta", {"index": 0, "offset": 0, "text": "{}"})
        send("block_stop", {"index": 0, "input": {}})
        send("round_stop", {"round": 1, "stop_reason": "tool_use", "usage": {}})
        await asyncio.sleep(_SHORT)  # gives readers of the turn time to connect
        agent = self.exchange(child, [{"type": "text", "text": task}])["assistant_turn"]["id"]
        about = {"tool_use_id": "c1", "name": "dig"}
        job = {**about, "id": "j1", "kind": "child", "state": "detached", "child": {"chat": child.id, "turn": agent}}
        notice = {**about, "message": "digs", "job": job}
        if self.defect == "tool_progress names another call":
            notice["job"] = {**job, "tool_use_id": "c2"}
        output = {**about, "text": "half", "data": None}
        if self.defect != "a call in the background is not in the JSON":
            turn.json |= {"jobs": [job], "preliminary": [output]}
        if self.defect == "a call in the background is an action":
            turn.json["actions"] = [{**about, "type": "client"}]
        if self.defect != "who comes later gets no output":
            turn.log.running.append(Event(None, "tool_output", output))
        if self.defect != "who comes later is not informed of a call":
            turn.log.running.append(Event(None, "tool_progress", notice))
        if self.defect != "who stays is not informed of a call":
            send("tool_output", output, is_notice=True)
            send("tool_progress", notice, is_notice=self.defect != "tool_progress has an id")
        log = child.turns[agent].log
        while not log.ended and self.defect != "an agent works on after its call":
            await log.changed.wait()
        if self.defect == "an agent works on after its call":
            await asyncio.sleep(_SHORT)
        turn.log.running.clear()
        turn.json |= {"actions": []} if self.defect == "a call stays in the JSON" else {"jobs": [], "preliminary": []}
        for index in range(1, {"a call has no result": 1, "a call has two results": 3}.get(self.defect, 2)):
            turn.json["blocks"].append({"type": "tool_result", "text": task, "is_error": False, **about})
            send("block_start", {"index": index, "type": "tool_result", "round": 1, **about})
            send("block_delta", {"index": index, "offset": 0, "text": task})
            send("block_stop", {"index": index, "is_error": False})
        if self.defect == "tool_progress comes after the result":
            send("tool_progress", notice, is_notice=True)
        send("round_start", {"round": 2})

    def words(self, turn: Turn) -> list[str]:
        match self.defect:
            case "words are lost":
                return [word for number, word in enumerate(turn.words) if number % 5 != 4]
            case "words are swapped":
                return [*turn.words[1::-1], *turn.words[2:]]
            case "words are of another chat":
                return self.last_words
            case "a delta is too long":
                return [*turn.words, "x" * _MANY]
            case _:
                return turn.words

    def length(self, text: str) -> int:
        match self.defect:
            case "offsets count UTF-16":
                return len(text.encode("utf-16-le")) // 2
            case "offsets count bytes":
                return len(text.encode())
            case _:
                return len(text)

    def end(self, turn: Turn, send: Callable[[str, Json], None]) -> None:
        name = "turn_cancelled" if turn.stop in {"cancelled", "deleted"} else "turn_complete"
        reason = turn.stop if name == "turn_cancelled" else "end_turn"
        if self.defect == "a stop ends as an error" and turn.stop == "cancelled":
            name = "turn_error"
        if self.defect == "a stop has another reason" and turn.stop == "cancelled":
            reason = "end_turn"
        turn.json |= {"status": ENDS[name], "stop_reason": reason}
        if self.defect == "the JSON has another status than the stream":
            turn.json["status"] = "error"
        if self.defect not in {"the last event is not sent, and the stream ends", "the last event is never sent"}:
            send(name, {"stop_reason": reason, "usage": {}})
        if self.defect == "there are two ends":
            send(name, {"stop_reason": reason, "usage": {}})
        if self.defect == "an event comes after the end":
            send("later", {})
        turn.log.ended = self.defect not in {"the last event is never sent", "a stream does not end"}
        turn.log.wake()

    # --- streams -----------------------------------------------------------------------------------------------------

    async def read_turn(self, turn: Turn, request: Request, response: Response, *, is_post: bool = False) -> None:
        first = 1 if is_post and self.defect == "the answer to a POST lacks the first event" else 0
        if self.defect == "the answer to a POST binds its turn" and not is_post:
            await self.stream(request, response, turn.log, first, answers=not is_post)
            return
        turn.readers += 1
        turn.was_read = True
        reading = asyncio.create_task(self.stream(request, response, turn.log, first, answers=not is_post))
        gone = asyncio.create_task(response.gone())
        try:
            await asyncio.wait({reading, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            turn.readers -= 1
            for task in (reading, gone):
                task.cancel()
                with suppress(asyncio.CancelledError, OSError):
                    await task

    async def stream(
        self, request: Request, response: Response, log: Log, place: int, start: bytes = b"", *, answers: bool = True
    ) -> None:
        """Sends the events after the request's cursor, or after `place`, and then all later events."""
        cursor = request.cursor if answers else None
        if cursor is not None and self.defect != f"the cursor of a {log.kind} is ignored":
            found = log.place_of(cursor)
            is_foreign = log.kind == "chat" and re.fullmatch(r"\w{32}\.\d+", cursor)
            if found is None and (
                self.defect == f"what is no cursor of a {log.kind} is the beginning"
                or (is_foreign and self.defect == "a cursor of another chat is good")
            ):
                found = 0
            if found is None:
                await response.json(400, {})
                return
            place = self.resumed(log, found)
            if log.ended and place < len(log.events) and self.defect == "cursors expire with the turn":
                await response.json(410, {})
                return
            if log.ended and place >= len(log.events) and self.defect != "after the end an empty stream comes":
                await response.whole(204, {})
                return
        headers = self.headers(request)
        packer = None
        if "Content-Encoding" in headers and self.defect != "streams name a compression that they have not":
            packer = zlib.compressobj(wbits=31)

        async def send(frame: bytes) -> None:
            if frame:
                await response.send(packer.compress(frame) + packer.flush(zlib.Z_SYNC_FLUSH) if packer else frame)

        await response.start(200 if answers else 201, headers)
        await send(b"retry: 1000\n\n" + start)
        while self.defect in _FLOODS and log.kind == "turn":
            await response.send(_FLOODS[self.defect])
        with suppress(OSError):
            await (self.read_log if log.kind != "turn" else self.read_turns_log)(log, place, send)
            await response.end()

    async def read_log(self, log: Log, place: int, send: Callable[[bytes], Awaitable[None]]) -> None:
        while place < len(log.events) or not log.ended:
            changed = log.changed
            for event in log.events[place:]:
                await send(event.frame())
                place += 1
            await self.more(log, changed, send)

    async def read_turns_log(self, log: Log, place: int, send: Callable[[bytes], Awaitable[None]]) -> None:
        is_live = False
        while place < len(log.events) or not log.ended:
            changed = log.changed
            last = len(log.events)
            if not log.ended and self.defect == "all is sent at the end":
                last = place
            if not log.ended and self.defect == "all but the first event is sent at the end":
                last = min(last, max(place, 1))
            while place < last:
                is_past = not is_live and log.events[place].name in {"tool_progress", "tool_output"}
                if not is_past and (self.defect != "readers share the events" or place not in log.taken):
                    log.taken.add(place)
                    await send(self.frame(log.events[place]))
                place += 1
            if self.defect == "events between replay and live are lost" and place > 1 and not is_live:
                await asyncio.sleep(3 * _PAUSE)
                place = len(log.events)
            for notice in () if is_live else log.running:
                await send(notice.frame())
            is_live = True
            await self.more(log, changed, send)

    async def more(self, log: Log, changed: asyncio.Event, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Waits for more events. If none comes within a heartbeat interval, sends a comment and returns."""
        try:
            async with asyncio.timeout(0 if log.ended else _HEARTBEAT):
                await changed.wait()
        except TimeoutError:
            await send(b"" if log.ended or self.defect == "there are no comments" else b": ping\n\n")

    def frame(self, event: Event) -> bytes:
        match self.defect if event.name == "block_delta" else "":
            case "an event is broken JSON":
                return event.frame().replace(b"{", b"", 1)
            case "an event is no UTF-8":
                return event.frame().replace(b" ", b" \xff", 1)
            case "the data of an event is a list":
                return f"id: {event.id}\nevent: {event.name}\ndata: []\n\n".encode()
            case "an event lacks a member":
                return f"id: {event.id}\nevent: {event.name}\ndata: {{}}\n\n".encode()
            case _:
                return event.frame()

    def resumed(self, log: Log, place: int) -> int:
        """Returns the position at which a stream resumes, which some defects change."""
        if log.kind == "chat":
            return place + (self.defect == "a chat leaves an event out after a cut")
        if log.kind == "feed":
            return place
        match self.defect:
            case "an event is left out after each cut":
                return place + 1
            case "an event is sent again after each cut":
                return place - 1
            case "after a cut only the future is sent":
                return len(log.events)
            case _:
                return place

    def headers(self, request: Request) -> Mapping[str, str]:
        headers = {**STREAM, "Turnstream-Heartbeat": str(_HEARTBEAT)}
        match self.defect:
            case "no heartbeat is named":
                del headers["Turnstream-Heartbeat"]
            case "the heartbeat is a word":
                headers["Turnstream-Heartbeat"] = "soon"
            case "streams may be cached":
                del headers["Cache-Control"]
            case "streams may be transformed":
                headers["Cache-Control"] = "no-store"
            case "proxies may hold streams back":
                del headers["X-Accel-Buffering"]
            case "streams are text":
                headers["Content-Type"] = "text/plain"
            case "streams are always compressed":
                headers["Content-Encoding"] = "gzip"
            case "streams are compressed where accepted" if "gzip" in request.headers.get("accept-encoding", ""):
                headers["Content-Encoding"] = "gzip"
            case "streams name a compression that they have not":
                headers["Content-Encoding"] = "gzip"
            case _:
                pass
        return headers


_LEFT = {
    "a turn is cancelled when its reader goes": "cancelled",
    "a turn is complete when its reader goes": "left",
    "the answer to a POST binds its turn": "cancelled",
    "a turn is forgotten when its reader goes": "nothing",
}
_FLOODS = {
    "comments flood the stream": b": ping\n\n" * 1_000,
    "one event floods the stream": b'id: 1-1-0\nevent: turn_start\ndata: {"turn":"x"}\n\n' * 1_000,
    "a frame does not end": b"data: " + b"x" * 65_536,
}


async def _flood(response: Response, chunk: bytes) -> None:
    await response.start(200, {"Content-Type": "application/json"})
    while True:
        await response.send(chunk)


@asynccontextmanager
async def small_server(defect: str = "") -> AsyncIterator[str]:
    """Runs the small server, and yields its URL."""
    server = SmallServer(defect)
    try:
        async with origin(server.handle) as url:
            yield url
    finally:
        for task in server.tasks:
            task.cancel()
        await asyncio.gather(*server.tasks, return_exceptions=True)
