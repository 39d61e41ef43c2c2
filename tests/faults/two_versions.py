"""A replica of the previous version and a replica of this version on one database with row-level security: the stage
for deploys with a migration.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.faults.fifty_turns import LEASE, answer_of, begin, until_all
from tests.faults.model import Call, Gate, Model, Step, Use, model_api
from tests.faults.replicas import PlainReplica, Replica, replica_with
from tests.faults.version_before import VersionBefore
from tests.faults.watch import Watch
from tests.support.http_client import Client, Json, turn_url
from tests.support.load import slowdown
from tests.support.reading import Reader
from turnstream.engine.tool_gate import OUTCOME_UNKNOWN
from turnstream.storage.row_security import embedded_api_url

Version = Literal["old", "new"]

# The state of a turn at the deploy: in the middle of a text, in a tool, or waiting for approval. The turns of the first
# two kinds continue while both replicas live, and the other turns continue after one replica has died.
KINDS = ("ends", "agrees", "talks", "acts", "asks")
EACH = 2


def script(call: Call) -> Iterable[Step]:
    if call.words.startswith("scouts"):  # endless, until a budget ends it
        return (Gate("scouts"), Use("act", {"word": f"{call.words}, time {call.rounds}"}))
    if call.rounds == 1:
        return ("It is done.",)
    match call.words.split()[0]:
        case "ends":
            return ("I talk ", Gate("ends"), "on.", Use("act", {"word": call.words}))
        case "talks":
            return ("I talk ", Gate("talks"), "on.")
        case "acts":
            return ("I act: ", Use("act", {"word": call.words}))
        case "agrees" | "asks":
            return ("I ask: ", Use("ask", {}))
        case "leads":
            return (Use("scout", {"task": f"scouts for {call.words}"}),)
        case "digs" if call.words.endswith("and asks"):
            return (Use("dig", {"word": call.words}), Use("ask", {}))
        case "digs":
            return (Use("dig", {"word": call.words}),)
        case _:
            return ("I am calm.",)


@dataclass(frozen=True)
class Posted:
    """A turn that was posted to the replica `at`, with its reader on each replica."""

    words: str
    at: Version
    turn: Json
    readers: dict[Version, Reader] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return self.words.split()[0]

    @property
    def asks(self) -> bool:
        return self.kind in {"agrees", "asks"}

    @property
    def ended(self) -> bool:
        return any(reader.turn.end is not None for reader in self.readers.values())

    def texts(self, *, taken_over: bool) -> list[str]:
        """Returns the texts that the script writes for this kind of turn, without calls."""
        match self.kind:
            case "ends":
                return ["I talk on.", "ok", "It is done."]
            case "talks":
                return ["I talk ", "on."] if taken_over else ["I talk on."]
            case "acts":
                return ["I act: ", OUTCOME_UNKNOWN if taken_over else "ok", "It is done."]
            case "agrees" | "asks":
                return ["I ask: ", "ok", "It is done."]
            case _:
                return ["I am calm."]

    def model_calls(self, *, taken_over: bool) -> int:
        return 1 if self.kind == "calm" or (self.kind == "talks" and not taken_over) else 2


@dataclass(frozen=True)
class Fleet:
    """The two replicas. `clients` has the client of each replica until its kill. `taken_over` has the texts of turns
    that another replica has continued. For each text, the value is true if the crash was charged.
    """

    model: Model
    watch: Watch
    replicas: Mapping[Version, Replica]
    clients: Mapping[Version, Client]
    group: asyncio.TaskGroup
    posted: list[Posted] = field(default_factory=list)
    taken_over: dict[str, bool] = field(default_factory=dict)

    async def post(self, at: Version, words: str) -> Posted:
        posted = Posted(words, at, await begin(self.clients[at], words))
        self.posted.append(posted)
        return posted

    def read(self, version: Version) -> None:
        """Gives every turn a reader on this replica."""
        for posted in self.posted:
            if version not in posted.readers:
                path = f"{turn_url(posted.turn)}/stream"
                reader = posted.readers[version] = Reader(self.clients[version], path, name=posted.words)
                self.group.create_task(reader.follow())

    async def begin(self, at: Version, when: str) -> None:
        """Begins turns of each kind. Returns when all turns have reached their state."""
        before = {gate: self.model.stopped_at(gate) for gate in ("ends", "talks", "effect")}
        words = [f"{kind} {number} {when}, at the {at} version" for kind in KINDS for number in range(EACH)]
        posted = await asyncio.gather(*(self.post(at, each) for each in words))
        for gate, times in before.items():
            await self.model.until_reached(gate, times + EACH)
        self.read(at)
        asking = [each.readers[at] for each in posted if each.asks]
        await until_all(asking, lambda reader: reader.turn.waits)
        owners = await self.watch.owners()
        running = {owners[each.turn["id"]] for each in posted if each.turn["id"] in owners}
        assert running == {self.replicas[at].port}

    async def deploy(self) -> None:
        """Starts the new version, which migrates the database while the old version serves."""
        started = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._use_old_version(started))
            await self.replicas["new"].start()
            started.set()

    async def _use_old_version(self, until: asyncio.Event) -> None:
        for number in itertools.count():
            posted = await self.post("old", f"calm {number}")
            stream = f"{turn_url(posted.turn)}/stream"
            reader = posted.readers["old"] = Reader(self.clients["old"], stream, name=posted.words)
            await reader.follow()
            for path in ("/api/chats", "/api/chats?q=calm", turn_url(posted.turn)):
                await self._get("old", path)
            if until.is_set():
                break

    async def _get(self, version: Version, path: str) -> Json:
        answer = await answer_of(self.clients[version], "GET", path)
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        return found

    async def end(self, *kinds: str, allowed_at: Version) -> None:
        """Lets the open turns of these kinds continue, and returns when all their readers have received the end."""
        ending = [posted for posted in self.posted if posted.kind in kinds and not posted.ended]
        for kind in kinds:
            self.model.open(kind)
        self.model.open("effect", [posted.words for posted in ending])
        for posted in ending:
            if posted.asks:
                await self._allow(posted, allowed_at)
        await until_all(
            (reader for posted in ending for reader in posted.readers.values()),
            lambda reader: reader.turn.end is not None,
        )

    async def _allow(self, posted: Posted, at: Version) -> None:
        (call,) = (await self._get(at, turn_url(posted.turn)))["actions"]
        approval = {"type": "approve", "tool_use_id": call["tool_use_id"], "input_digest": call["input_digest"]}
        path, headers = f"{turn_url(posted.turn)}/actions", {"Idempotency-Key": f"allow {posted.words}"}
        answer = await answer_of(self.clients[at], "POST", path, headers=headers, json={"actions": [approval]})
        assert answer.status_code == 202, answer.text

    async def kill(self, victim: Version, survivor: Version) -> None:
        """Kills a replica, as if its machine were lost. Its clients reconnect to the other replica."""
        await self._note_turns_of(victim, charged=True)
        await self.replicas[victim].kill()
        self.clients[victim].base_url = self.replicas[survivor].url

    async def terminate(self, version: Version) -> None:
        await self._note_turns_of(version, charged=False)
        await self.replicas[version].terminate()

    async def _note_turns_of(self, version: Version, *, charged: bool) -> None:
        """Records the turns that will be taken over. A reader on another replica has their text from the journal."""
        running = [each for each in self.posted if each.at == version and each.kind in {"talks", "acts"}]
        readers = [reader for each in running for reader in each.readers.values()]
        await until_all(readers, lambda reader: reader.text() in {"I talk ", "I act: "})
        self.taken_over.update({each.words: charged for each in running})

    async def check_all(self) -> None:
        """Checks that every turn and every reader is complete, that only turns of a killed replica ran twice, and that
        no effect happened twice.
        """
        for posted in self.posted:
            texts = posted.texts(taken_over=posted.words in self.taken_over)
            for version in self.clients:
                stored = await self._get(version, turn_url(posted.turn))
                assert stored["status"] == "complete"
                found = [block["text"] for block in stored["blocks"] if block["type"] != "tool_use"]
                assert found == texts, posted.words
                for reader in posted.readers.values():
                    reader.check_whole(stored)
        attempts = {str(turn): attempt for turn, attempt in (await self.watch.attempts()).items()}
        again = {each.words for each in self.posted if attempts[each.turn["id"]] > 1 and not each.asks}
        assert again == set(self.taken_over)
        assert await self.watch.charged() == sum(self.taken_over.values())
        assert self.model.effects == {each.words: 1 for each in self.posted if each.kind in {"ends", "acts"}}
        assert Counter(call.words for call in self.model.calls) == {
            each.words: each.model_calls(taken_over=each.words in self.taken_over) for each in self.posted
        }
        for replica in self.replicas.values():
            for event in ("request.failed", "background.failed", "background.restarted"):
                assert event not in replica.logs, replica.logs

    async def check_lists(self) -> None:
        """Checks that both versions list, page and find the same. A cursor or an idempotency key of one version is
        valid in the other.
        """
        whole = {version: await self._chats(version, "limit=200") for version in self.clients}
        assert whole["old"] == whole["new"] == await self._pages(itertools.cycle(self.clients))
        assert len(whole["old"]) == len({each.turn["chat_id"] for each in self.posted})
        calm = {each.turn["chat_id"] for each in self.posted if each.kind == "calm"}
        for version in self.clients:
            while set(await self._chats(version, "q=calm&limit=200")) != calm:  # noqa: ASYNC110, the index has no event
                await asyncio.sleep(0.05)
            for posted in self.posted:
                assert (await begin(self.clients[version], posted.words))["id"] == posted.turn["id"]

    async def _chats(self, version: Version, query: str) -> list[str]:
        return [chat["id"] for chat in (await self._get(version, f"/api/chats?{query}"))["chats"]]

    async def _pages(self, versions: Iterator[Version]) -> list[str]:
        """Reads the pages alternately from the two versions."""
        chats: list[str] = []
        place = ""
        for version in versions:
            page = await self._get(version, f"/api/chats?limit=3{place}")
            chats += [chat["id"] for chat in page["chats"]]
            if page["next"] is None:
                break
            place = f"&before={page['next']}"
        return chats

    async def check_feeds(self) -> None:
        """Checks that a feed that began at one version continues at the other version."""
        for here, there in itertools.permutations(self.clients):
            async with self.clients[here].follow("/api/stream") as events:
                await self.post(here, f"calm while the feed is read at the {here} version")
                cursor = (await anext(events)).id
            missed = await self.post(here, f"calm before the feed goes on at the {there} version")
            async with self.clients[there].follow("/api/stream", cursor) as events:
                chats = (event.data["id"] async for event in events if event.name == "chat")
                while await anext(chats) != missed.turn["chat_id"]:
                    pass


@asynccontextmanager
async def two_versions(
    before: VersionBefore, url: str, folder: Path, tools: Callable[[Model], str] | None = None, **more: str
) -> AsyncIterator[Fleet]:
    """Yields the fleet. The old replica has migrated the empty database of `url`; the new replica is not started yet.
    `tools` returns the content of their tools file, which replaces Python tools. `more` are further variables of both
    replicas.
    """
    api_url = await embedded_api_url(url)
    settings = {"TURNSTREAM_LEASE": str(LEASE * slowdown()), "TURNSTREAM_API_DATABASE_URL": api_url, **more}
    async with model_api(script) as model, AsyncExitStack() as stack:
        kind = Replica
        if tools is not None:
            file, kind = folder / "tools.toml", PlainReplica
            file.write_text(tools(model))
            settings |= {"TURNSTREAM_TOOLS_FILE": str(file), "TURNSTREAM_SIGNING_SECRET": "whsec_c2VjcmV0"}
        old = replica_with(url, folder, model, {**settings, "PYTHONPATH": before.python_path}, kind)
        new = replica_with(url, folder, model, settings, kind)
        for replica in (old, new):
            stack.push_async_callback(replica.close)
        await old.start()
        await before.check_revision(url)
        watch = Watch(url)
        await watch.begin()
        async with Client(old.url) as one, Client(new.url) as other, asyncio.TaskGroup() as group:
            yield Fleet(model, watch, {"old": old, "new": new}, {"old": one, "new": other}, group)
