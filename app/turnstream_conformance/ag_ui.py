"""Checks an agent against the resumable profile of AG-UI (docs/ag-ui-profile.md), from outside and with any model."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx2

from turnstream_conformance.report import Check, Failed, Report, Skipped
from turnstream_conformance.wire import Json, Parser

_LATER = 8  # repetitions of the message, for a run whose readers leave and return
_MOST_BYTES = 16 * 1024 * 1024  # of one run
_MOST_CUTS = 40
_AWAY = 1.0  # seconds without a reader
_ENDS = {"RUN_FINISHED", "RUN_ERROR"}
_TEXT = {"TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"}
# Maps each opening event to its closing event, and to the member that contains the id of both events.
_PAIRS = {
    "TEXT_MESSAGE_START": ("TEXT_MESSAGE_END", "messageId"),
    "TOOL_CALL_START": ("TOOL_CALL_END", "toolCallId"),
    "REASONING_MESSAGE_START": ("REASONING_MESSAGE_END", "messageId"),
    "STEP_STARTED": ("STEP_FINISHED", "stepName"),
}
_CLOSES = {end: start for start, (end, _) in _PAIRS.items()}


@dataclass(slots=True)
class Thread:
    """A client's state of a thread: the texts and roles of its messages by id, in order, and the events of its last
    run.
    """

    id: str
    question: Json
    texts: dict[str, str] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    events: list[Json] = field(default_factory=list)

    def take(self, event: Json) -> None:
        self.events.append(event)
        match event.get("type"):
            case "MESSAGES_SNAPSHOT":
                said = [each for each in event["messages"] if each["role"] in {"user", "assistant"}]
                self.texts = {each["id"]: each.get("content") or "" for each in said}
                self.roles = {each["id"]: each["role"] for each in said}
            case "TEXT_MESSAGE_START":
                self.texts.setdefault(event["messageId"], "")
                self.roles[event["messageId"]] = event["role"]
            case "TEXT_MESSAGE_CONTENT":
                if event["messageId"] not in self.texts:
                    raise Failed(f"Text came for the message {event['messageId']}, which had not begun.")
                self.texts[event["messageId"]] += event["delta"]
            case _:
                pass

    @property
    def answer(self) -> str:
        return "".join(text for id, text in self.texts.items() if self.roles[id] == "assistant")

    @property
    def types(self) -> list[str]:
        return [str(event.get("type")) for event in self.events]


@dataclass(slots=True)
class AgUiChecks:
    """The checks of an agent, as one user sees the agent. A run may take `patience` seconds."""

    client: httpx2.AsyncClient
    url: str
    message: str
    patience: float

    def thread(self, times: int = 1) -> Thread:
        words = " ".join([self.message] * times)
        return Thread(str(uuid4()), {"id": str(uuid4()), "role": "user", "content": words})

    def copy(self, thread: Thread) -> Thread:
        """Returns the same thread for a client that has only the user's message."""
        return Thread(thread.id, thread.question)

    async def run(
        self, thread: Thread, path: str = "", most: int | None = None, *, knows: bool = True
    ) -> httpx2.Headers:
        """Starts a run, or a connection if `path` is `/connect`, and reads it to its end or until `most` pieces of text
        have come. The user's message is sent only if `knows` is true.
        """
        thread.events = []
        body: dict[str, Any] = {
            "threadId": thread.id,
            "runId": str(uuid4()),
            "protocolVersion": "1.0",
            "messages": [thread.question] if knows else [],
            "state": {},
            "tools": [],
            "context": [],
            "forwardedProps": {},
        }
        headers = {"Accept": "text/event-stream", "Accept-Encoding": "gzip"}
        parser, count, pieces = Parser(), 0, 0
        async with (
            asyncio.timeout(self.patience),
            self.client.stream("POST", self.url + path, json=body, headers=headers) as response,
        ):
            if response.status_code != 200:
                raise Failed(f"POST {self.url}{path} was answered with {response.status_code}, not 200.")
            async for chunk in response.aiter_bytes():
                count += len(chunk)
                if count > _MOST_BYTES:
                    raise Failed(f"The run has more than {_MOST_BYTES:,} bytes.")
                for event in parser.feed(chunk):
                    thread.take(event.data)
                    pieces += event.data.get("type") == "TEXT_MESSAGE_CONTENT"
                    if pieces == most:
                        return response.headers
        _check_order(thread.events, thread.id, body["runId"])
        return response.headers

    async def connect(self, thread: Thread, most: int | None = None) -> None:
        """Connects, and checks that a snapshot comes before all text."""
        await self.run(thread, "/connect", most)
        types = thread.types
        first = next((place for place, type in enumerate(types) if type == "MESSAGES_SNAPSHOT"), None)
        if first is None or _TEXT & set(types[:first]):
            raise Failed(f"A connection began with {', '.join(types[:4])}; a MESSAGES_SNAPSHOT comes before all text.")

    async def stored(self, thread: Thread) -> Thread:
        """Returns the thread as a client without any content receives it after the run. Raises Failed for an incomplete
        answer.
        """
        found = self.copy(thread)
        await self.connect(found)
        if found.types[-1] != "RUN_FINISHED":
            raise Failed(f"The run ended with {found.types[-1]}; it should be RUN_FINISHED.")
        words = thread.question["content"]
        if words.startswith("/say ") and found.answer != words.removeprefix("/say "):
            raise Failed(f"The answer has {len(found.answer)} characters; {len(words) - 5} were asked for.")
        return found

    async def begun(self, times: int = _LATER) -> Thread:
        """Returns a thread whose reader left in the middle of the answer."""
        thread = self.thread(times)
        await self.run(thread, most=2)
        if thread.types[-1] in _ENDS:
            raise Skipped("The answer came in less than two pieces.")
        return thread

    # --- the rules ---------------------------------------------------------------------------------------------------

    async def order(self) -> str:
        thread = self.thread()
        await self.run(thread)
        return f"{len(thread.events)} events"

    async def without_readers(self) -> str:
        thread = await self.begun()
        await asyncio.sleep(_AWAY)
        await self.stored(thread)
        return "complete, with the whole text"

    async def cuts(self) -> str:
        thread, connections = await self.begun(), 1
        while thread.types[-1] not in _ENDS:
            before = thread.answer
            connections += 1
            await self.connect(thread, most=2 if connections < _MOST_CUTS else None)
            if not thread.answer.startswith(before):
                raise Failed(f"After a cut, text that had {len(before)} characters has {len(thread.answer)} others.")
            if connections == _MOST_CUTS:
                break
        if thread.texts != (there := await self.stored(thread)).texts:
            raise Failed(
                f"After {connections} connections there are {len(thread.answer)} characters of an answer with "
                f"{len(there.answer)}."
            )
        return f"{connections} connections"

    async def readers(self) -> str:
        thread = await self.begun()
        readers = [self.copy(thread) for _ in range(4)]
        await asyncio.gather(*map(self.connect, readers))
        there = await self.stored(thread)
        if any(reader.texts != there.texts for reader in readers):
            raise Failed("Readers that connected at once have other messages than one that came later.")
        return f"{len(readers)} readers"

    async def ids(self) -> str:
        thread = self.thread()
        await self.run(thread)
        mine = [id for id, role in thread.roles.items() if role == "assistant"]
        for _ in range(2):
            there = await self.stored(thread)
            theirs = [id for id, role in there.roles.items() if role == "assistant"]
            if mine != theirs:
                raise Failed(f"Messages of the answer have the ids {mine} in the run, and {theirs} in a snapshot.")
            if thread.question["id"] not in there.roles:
                raise Failed("A snapshot has another id for the message that the client sends.")
        return ""

    async def nothing_new(self) -> str:
        thread = self.thread()
        await self.run(thread)
        before, after = self.copy(thread), self.copy(thread)
        await self.connect(before)
        await self.connect(after)
        if before.texts != after.texts:
            raise Failed(f"After a connection there were {len(after.texts)} messages, before it {len(before.texts)}.")
        if later := _TEXT & set(after.types):
            raise Failed(f"A connection to a thread that is complete had {', '.join(sorted(later))}.")
        return ""

    async def again(self) -> str:
        thread = await self.begun()
        second = self.copy(thread)
        await self.run(second)
        there = await self.stored(thread)
        if (count := len(there.texts)) != len(second.texts) or list(there.roles.values()).count("user") != 1:
            raise Failed(f"A message that was sent twice while its answer was open led to {count} messages.")
        return ""

    async def unknown(self) -> str:
        thread = self.thread()
        await self.run(thread, "/connect", knows=False)
        if thread.texts or thread.types[-1] != "RUN_FINISHED":
            raise Failed(f"A thread that is not there ended with {thread.types[-1]}, and {len(thread.texts)} messages.")
        return ""

    async def headers(self) -> str:
        headers = await self.run(self.thread())
        if not headers.get("content-type", "").startswith("text/event-stream"):
            raise Failed(f"A run has content-type: {headers.get('content-type')}.")
        if "content-encoding" in headers or "no-transform" not in headers.get("cache-control", ""):
            found = {name: headers.get(name) for name in ("content-encoding", "cache-control")}
            raise Failed(f"A proxy may hold a run back, or the server compresses it: {found}.")
        return ""

    def checks(self) -> list[Check]:
        rows = [
            ("G1", "a run has one beginning and one end, and closes what it opens", self.order),
            ("G2", "ids of messages stay", self.ids),
            ("G3", "a run goes on without readers", self.without_readers),
            ("G4", "after any cut the snapshot has all, and nothing comes twice", self.cuts),
            ("G5", "readers at once have the same messages", self.readers),
            ("G6", "a connection posts nothing", self.nothing_new),
            ("G7", "a message that is sent again is followed", self.again),
            ("G8", "a thread that is not there is empty", self.unknown),
            ("G9", "headers keep proxies from holding events back", self.headers),
        ]
        return [Check(promise, rule, examine) for rule, promise, examine in rows]


def _check_order(events: Sequence[Json], thread: str, run: str) -> None:
    types = [str(event.get("type")) for event in events]
    if not types or types[0] != "RUN_STARTED" or types[-1] not in _ENDS:
        raise Failed(f"A run began with {types[:1]} and ended with {types[-1:]}.")
    if sum(type in _ENDS for type in types) != 1 or types.count("RUN_STARTED") != 1:
        raise Failed("A run had more than one beginning or end.")
    for event in (events[0], events[-1]):
        ids = event.get("threadId", thread), event.get("runId", run)
        if ids != (thread, run):
            raise Failed(f"{event['type']} has other ids than the input: {ids[0]}, {ids[1]}.")
    opened: set[tuple[str, Any]] = set()
    for event in events:
        type = str(event.get("type"))
        if type in _PAIRS:
            opened.add((type, event[_PAIRS[type][1]]))
        elif type in _CLOSES:
            start = _CLOSES[type]
            opened.discard((start, event[_PAIRS[start][1]]))
    if opened and types[-1] == "RUN_FINISHED":
        raise Failed(f"The run finished while {min(map(str, opened))} was open.")


async def examine(url: str, token: str | None, message: str, patience: float) -> Report:
    """Checks the agent at `url`, in new threads."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx2.AsyncClient(headers=headers, timeout=patience, limits=limits) as client:
        agent = AgUiChecks(client, url.rstrip("/"), message, patience)
        results = await asyncio.gather(*(check.run(3 * patience) for check in agent.checks()))
    return Report(f"agent {url}", results)
