"""Several chats on one connection: each is told as on its own."""

import asyncio
from collections.abc import AsyncGenerator
from urllib.parse import urlencode
from uuid import uuid4

import pytest

from app.api.streams.chats import MOST, side_by_side
from app.llm.scripted import Pause
from tests.integration.api.chat_picture import ChatPicture
from tests.integration.api.conftest import NewOwner
from tests.support.http_client import Client, Event
from tests.support.http_server import Server, pausing
from tests.support.openapi_document import Document

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Follower:
    """One of several on a connection: where it has come to, and what it has put together."""

    def __init__(self, chat: str, cursor: str = "") -> None:
        self.chat = chat.rpartition("/")[2]
        self.cursor = cursor
        self.picture = ChatPicture()
        self.events: list[Event] = []

    def take(self, event: Event) -> None:
        if event.name != "refused":
            self.picture.take(event)
        self.events.append(event)
        self.cursor = event.id or self.cursor


async def follow(api: Client, *followers: Follower, until: int) -> None:
    """Until so many answers have ended."""
    asked = [("follow", f"{one.chat}@{one.cursor}" if one.cursor else one.chat) for one in followers]
    current: Follower | None = None
    async with api.follow(f"/api/stream?{urlencode(asked)}") as events:
        async for event in events:
            if event.name == "following":
                current = followers[event.data["follow"]]
                continue
            assert current is not None
            current.take(event)
            until -= event.name == "turn_complete"
            if until == 0:
                return


async def test_chats_are_followed_side_by_side_and_gone_on_with_from_their_own_cursors(
    api: Client, server: Server
) -> None:
    pauses = [Pause(), Pause()]
    chats = [await api.chat(title=name) for name in ("one", "two")]
    for chat, pause in zip(chats, pauses, strict=True):
        await api.say(chat, model=server.scripts.model(pausing(pause, "Half ", "whole.")))
        await pause.reached.wait()
    tabs = [Follower(chats[0]), Follower(chats[1]), Follower(chats[0])]
    pauses[0].go.set()
    await follow(api, *tabs, until=2)
    assert tabs[0].cursor == tabs[2].cursor
    pauses[1].go.set()
    late = Follower(chats[0])
    await follow(api, *tabs, late, until=2)
    for tab in (*tabs, late):
        stored = (await api.json("GET", f"/api/chats/{tab.chat}/turns"))["turns"]
        told = {id: [block["text"] for block in turn.blocks] for id, turn in tab.picture.turns.items()}
        assert told == {turn["id"]: [block["text"] for block in turn["blocks"]] for turn in stored}
        ids = [event.id for event in tab.events if event.id]
        assert len(ids) == len(set(ids)), "nothing twice"


async def test_a_chat_that_is_deleted_ends_nothing_for_the_others(api: Client, new_owner: NewOwner) -> None:
    stranger = await new_owner()
    theirs = Follower(await stranger.chat())
    mine, gone, nobodys = Follower(await api.chat()), Follower(await api.chat()), Follower(str(uuid4()))
    await api.json("DELETE", f"/api/chats/{gone.chat}")
    following = asyncio.create_task(follow(api, theirs, mine, gone, nobodys, until=1))
    await api.say(f"/api/chats/{mine.chat}")
    await following
    for one in (theirs, gone, nobodys):
        assert [event.name for event in one.events] == ["chat_deleted"]


async def test_a_cursor_that_is_none_of_its_chat_is_refused_for_that_chat_alone(api: Client) -> None:
    mine, other = Follower(await api.chat()), Follower(await api.chat())
    await api.ask(f"/api/chats/{mine.chat}")
    await follow(api, mine, until=1)
    strange, malformed = Follower(other.chat, mine.cursor), Follower(other.chat, "x")
    following = asyncio.create_task(follow(api, strange, malformed, mine, until=1))
    await api.say(f"/api/chats/{mine.chat}")
    await following
    assert [event.name for one in (strange, malformed) for event in one.events] == ["refused", "refused"]
    assert strange.events[0].data["detail"] == "no event of this chat's stream had this id"


@pytest.mark.parametrize("asked", [[], ["x"], [f"x@{uuid4()}"], [str(uuid4())] * (MOST + 1)])
async def test_what_names_no_chats_is_refused(api: Client, asked: list[str]) -> None:
    problem = await api.json("GET", "/api/stream", 400, params=[("follow", one) for one in asked])
    assert [error["field"] for error in problem["errors"]] == ["follow"]


async def test_the_document_says_how_many_chats_may_be_named(document: Document) -> None:
    (follow,) = document.json["paths"]["/api/stream"]["get"]["parameters"]
    assert follow["required"]
    assert follow["schema"] == {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MOST}


async def test_a_stream_that_fails_ends_all_and_leaves_none_open() -> None:
    closed = []

    async def endless(name: str, *, fails: bool = False) -> AsyncGenerator[bytes, None]:
        try:
            yield name.encode()
            if fails:
                raise LookupError(name)
            await asyncio.Event().wait()
        finally:
            closed.append(name)

    with pytest.raises(LookupError):
        async for _ in side_by_side([endless("a"), endless("b", fails=True)]):
            pass
    assert sorted(closed) == ["a", "b"]
