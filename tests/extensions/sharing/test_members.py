"""Members of chats: the rights of members, the owner of a member's messages, and the end of a membership."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest

from tests.extensions.sharing.conftest import LOOK
from tests.support.http_client import Client, Event
from tests.support.http_server import Server, pausing, serving
from tests.support.pictures import PIXEL
from turnstream.config import Settings
from turnstream.domain.plans import Plan
from turnstream.extension import before_erasure, selected
from turnstream.libraries.erasure.erasure import erase_owner
from turnstream.scripted import Pause, message_of, text, tool_use
from turnstream.tools.tool import tool
from turnstream.tools.toolset import Toolset


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnstream.api.identity.stored.BELIEVED", 0)
    monkeypatch.setattr("turnstream.api.streams.watch.PAUSE", 0.05)


async def add(ada: Client, chat: str, role: str, member: str = "bob", status: int = 200) -> Any:
    return await ada.json("POST", f"{chat}/members", status, json={"member": member, "role": role})


async def waiting_for(member: Client) -> Any:
    """Returns the calls that wait in the only chat that the member can see."""
    (membership,) = (await member.json("GET", "/api/memberships"))["memberships"]
    return membership["waiting"]


async def rows_of(database_url: str, statement: str, *values: Any) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(database_url)
    try:
        return list(await connection.fetch(statement, *values))
    finally:
        await connection.close()


async def until(name: str, events: AsyncIterator[Event]) -> Event:
    async for event in events:
        if event.name == name:
            return event
    raise AssertionError(name)


async def test_members_are_added_listed_changed_and_removed(ada: Client, bob: Client, database_url: str) -> None:
    chat = await ada.chat(title="Plans")
    added = await add(ada, chat, "read")
    assert (added["member"], added["role"]) == ("bob", "read")
    await add(ada, chat, "write")
    await add(ada, chat, "read", "team/eve  ")
    listed = (await ada.json("GET", f"{chat}/members"))["members"]
    assert [(each["member"], each["role"]) for each in listed] == [("bob", "write"), ("team/eve", "read")]
    (membership,) = (await bob.json("GET", "/api/memberships"))["memberships"]
    assert (membership["owner"], membership["title"], membership["role"]) == ("ada", "Plans", "write")
    assert chat.endswith(membership["chat"])
    assert await ada.json("DELETE", f"{chat}/members/team/eve") == {"removed": "team/eve"}
    assert await ada.json("DELETE", f"{chat}/members/{quote('bob')}") == {"removed": "bob"}
    await ada.json("DELETE", f"{chat}/members/bob", 404)
    assert (await bob.json("GET", "/api/memberships"))["memberships"] == []
    trail = await rows_of(database_url, "SELECT kind, owner, actor, detail FROM audit ORDER BY id DESC LIMIT 5")
    assert [each["kind"] for each in trail] == ["member.removed"] * 2 + ["member.added"] * 3
    assert all(each["owner"] == "ada" and each["actor"].startswith("token:") for each in trail)
    assert '"member" : "bob"' in trail[0]["detail"]


async def test_a_member_who_leaves_is_no_member_any_more(ada: Client, bob: Client) -> None:
    chat = await ada.chat()
    await add(ada, chat, "write")
    left = chat.rpartition("/")[2]
    assert await bob.json("DELETE", f"/api/memberships/{left}") == {"left": left}
    await bob.json("GET", chat, 404)
    await bob.json("DELETE", f"/api/memberships/{left}", 404)
    await ada.json("DELETE", f"/api/memberships/{left}", 404)  # the owner of a chat is not one of its members


@pytest.mark.parametrize("member", ["ada", "", " ", " ada ", "a\u200bb"])
async def test_a_member_is_another_owner(ada: Client, member: str) -> None:
    problem = await add(ada, await ada.chat(), "read", member, 422)
    assert problem["errors"][0]["field"] == "member"


async def test_messages_and_answers_name_their_author(server: Server, ada: Client, bob: Client) -> None:
    chat = await ada.chat()
    own = await ada.ask(chat, "from ada")
    await add(ada, chat, "write")
    turn = await bob.ask(chat, "from bob")
    assert turn.stream_url.startswith(chat)
    page = (await ada.json("GET", f"{chat}/turns"))["turns"]
    assert [each["author"] for each in page] == [None, None, "bob", "bob"]
    assert own.assistant["author"] is None
    again = await ada.json("POST", f"{turn.url}/regenerate", 201, json={})
    assert (again["user_turn"]["author"], again["assistant_turn"]["author"]) == ("bob", None)
    await ada.events(again["stream_url"])
    pause = Pause()
    await ada.json("PATCH", chat, json={"settings": {"model": server.scripts.model(pausing(pause, "One ", "two."))}})
    running = await bob.say(chat, "another")
    steered = await bob.json(
        "POST", f"{chat}/turns", 202, json={"blocks": [{"type": "text", "text": "and this"}], "on_busy": "steer"}
    )
    assert steered["steered"]
    pause.go.set()
    await bob.events(running.stream_url)
    ended = await ada.json("GET", running.url)
    (steer,) = [block for block in ended["blocks"] if block["type"] == "user_text"]
    assert (steer["text"], steer["notes"]["author"]) == ("and this", "bob")


async def test_a_member_names_no_options_and_the_owner_pays(ada: Client, bob: Client, database_url: str) -> None:
    chat = await ada.chat()
    await add(ada, chat, "approve")
    for option in ({"model": "plain"}, {"system_prompt": "x"}, {"tools": [LOOK]}, {"record": True}):
        said = {"blocks": [{"type": "text", "text": "Hi"}], **option}
        problem = await bob.json("POST", f"{chat}/turns", 403, json=said)
        assert "the chat has the options" in problem["detail"]
    await bob.ask(chat)
    assert {row["owner"] for row in await rows_of(database_url, "SELECT owner FROM charges")} <= {"ada"}
    assert await rows_of(database_url, "SELECT FROM chats WHERE owner = 'bob'") == []


async def test_a_credential_that_fixes_options_or_is_bound_is_of_no_use_in_chats_of_others(
    server: Server, ada: Client, bob: Client
) -> None:
    chat = await ada.chat()
    await add(ada, chat, "approve")
    fixed = await bob.json(
        "POST", "/api/tokens", json={"seconds": 60, "scopes": ["read", "chat"], "fixed": {"tools": []}}
    )
    async with Client(server.url, None, fixed["token"]) as page:
        await page.json("GET", chat, 404)
    async with Client(server.url, None, await server.token("bob", "read")) as reader:
        await reader.json("GET", chat)
        await reader.json("POST", f"{chat}/turns", 403, json={"blocks": [{"type": "text", "text": "Hi"}]})
    bound = {"seconds": 60, "chat": chat.rpartition("/")[2]}
    await bob.json("POST", "/api/tokens", 404, json=bound)


async def test_the_plan_of_the_owner_holds_for_members(database_url: str) -> None:
    plans = {"ada": Plan("small", {"requests_per_day": 1})}
    async with (
        serving(database_url, sharing=True, plan_of=plans.get) as server,
        Client(server.url, None, await server.token("ada"), "ada") as ada,
        Client(server.url, None, await server.token("bob"), "bob") as bob,
    ):
        chat = await ada.chat()
        await add(ada, chat, "write")
        await bob.ask(chat)
        await bob.json("POST", f"{chat}/turns", 429, json={"blocks": [{"type": "text", "text": "Hi"}]})
        await bob.ask(await bob.chat())


@tool(approval="always")
async def send(to: str) -> str:
    """Sends."""
    return f"sent to {to}"


@tool(approval="always", approvers=("person:grace",))
async def launch(to: str) -> str:
    """Launches."""
    return f"launched to {to}"


@pytest.mark.parametrize("name", ["send", "launch"])
async def test_an_approver_decides_and_a_writer_does_not(database_url: str, name: str) -> None:
    """The approvers that a policy names apply to members too."""
    async with (
        serving(database_url, Toolset([send, launch]), sharing=True) as server,
        Client(server.url, None, await server.token("ada"), "ada") as ada,
        Client(server.url, None, await server.token("bob"), "bob") as bob,
    ):
        model = server.scripts.model(message_of(tool_use(name, {"to": "x"}, "c")), message_of(text("Done.")))
        chat = await ada.chat(settings={"model": model})
        await add(ada, chat, "write")
        turn = await bob.say(chat)
        async with bob.follow(turn.stream_url) as events:
            await until("action_required", events)
        (asked,) = (await ada.json("GET", turn.url))["actions"]
        approval = {"type": "approve", "tool_use_id": "c", "input_digest": asked["input_digest"]}
        assert await waiting_for(bob) == []
        await bob.json("POST", f"{turn.url}/actions", 403, json={"actions": [approval]})
        await add(ada, chat, "approve")
        call = {"turn": turn.assistant["id"], "tool_use_id": "c", "name": "send", "type": "approval"}
        found = [{name: each[name] for name in call} for each in await waiting_for(bob)]
        assert found == ([call] if name == "send" else [])
        answer = await bob.post(f"{turn.url}/actions", json={"actions": [approval]})
        assert answer.status_code == (202 if name == "send" else 403)
        if name == "launch":
            return
        assert await waiting_for(bob) == []
        await bob.events(turn.stream_url)
        ended = await ada.json("GET", turn.url)
        (result,) = [block for block in ended["blocks"] if block["type"] == "tool_result"]
        assert (result["text"], result["notes"]["approval"]) == ("sent to x", {"decision": "approve", "by": "bob"})
        trail = "SELECT owner, actor FROM audit WHERE kind = 'approval.given'"
        ((owner, actor),) = await rows_of(database_url, trail)
        ((token,),) = await rows_of(database_url, "SELECT id FROM tokens WHERE owner = 'bob'")
        assert (owner, actor) == ("ada", f"token:{token}")


async def test_files_of_the_chat_are_shown_to_members(ada: Client, bob: Client) -> None:
    chat = await ada.chat()
    shown = (await ada.json("POST", "/api/uploads", 201, content=PIXEL))["id"]
    other = (await ada.json("POST", "/api/uploads", 201, content="a secret text"))["id"]
    await ada.ask(
        chat, blocks=[{"type": "image", "source": {"type": "upload", "id": shown}}, {"type": "text", "text": "Look"}]
    )
    await add(ada, chat, "read")
    named = {"chat": chat.rpartition("/")[2]}
    assert (await bob.get(f"/api/uploads/{shown}", params=named)).content == PIXEL
    await bob.json("GET", f"/api/uploads/{other}", 403, params=named)
    await bob.json("GET", f"/api/uploads/{shown}", 404)
    await ada.json("DELETE", f"{chat}/members/bob")
    await bob.json("GET", f"/api/uploads/{shown}", 404, params=named)


async def test_documents_of_the_owner_are_not_reached_by_members(ada: Client, bob: Client) -> None:
    await ada.put("/api/documents/plans.md", content="the secret plan")
    chat = await ada.chat()
    await add(ada, chat, "approve")
    blocks = [{"type": "document", "source": {"type": "path", "path": "plans.md"}}]
    await bob.json("POST", f"{chat}/turns", 403, json={"blocks": blocks})


async def test_a_fork_into_a_new_chat_is_refused(ada: Client, bob: Client) -> None:
    chat = await ada.chat()
    turn = await ada.ask(chat)
    await add(ada, chat, "write")
    problem = await bob.json("POST", f"{turn.url}/fork", 403, json={"into": "chat"})
    assert "A member reaches only the chat" in problem["detail"]
    await bob.json("POST", f"{turn.url}/fork", 201, json={"into": "branch"})


@pytest.mark.parametrize("whole_chat", [False, True])
async def test_a_stream_ends_when_its_reader_is_no_member_any_more(
    server: Server, ada: Client, bob: Client, whole_chat: bool
) -> None:
    pause, chat = Pause(), await ada.chat()
    turn = await ada.say(chat, model=server.scripts.model(pausing(pause, "One ", "two.")))
    await add(ada, chat, "read")
    async with asyncio.timeout(60), bob.follow(f"{chat}/stream" if whole_chat else turn.stream_url) as events:
        await until("block_delta", events)
        await ada.json("DELETE", f"{chat}/members/bob")
        ended = await until("access_ended", events)
        assert (ended.data["status"], [event async for event in events]) == (403, [])
        assert ended.data["detail"] == "Your membership of this chat has ended."
    pause.go.set()
    await ada.events(turn.stream_url)  # the owner's stream continues to the end of the turn


async def test_a_message_of_a_former_member_is_answered(server: Server, ada: Client, bob: Client) -> None:
    pause, chat = Pause(), await ada.chat(settings={"model": server.scripts.model(pausing(Pause(), "x", "y"))})
    await ada.json("PATCH", chat, json={"settings": {"model": server.scripts.model(pausing(pause, "One ", "two."))}})
    await add(ada, chat, "write")
    turn = await bob.say(chat)
    await ada.json("DELETE", f"{chat}/members/bob")
    pause.go.set()
    await ada.events(turn.stream_url)
    assert (await ada.json("GET", turn.url))["author"] == "bob"
    await bob.json("GET", turn.url, 404)


async def test_an_erasure_of_the_owner_or_of_the_member_ends_the_membership(
    server: Server, ada: Client, bob: Client, database_url: str
) -> None:
    first, second = await ada.chat(), await bob.chat()
    await add(ada, first, "read")
    await bob.json("POST", f"{second}/members", json={"member": "ada", "role": "read"})
    database = server.services.storage.database
    settings = Settings(_env_file=None, database_url=database_url)
    await erase_owner(database, "bob", lambda _: 0, 0, before_erasure(settings, selected(settings), database))
    assert await rows_of(database_url, "SELECT FROM chat_members") == []


async def test_a_deleted_chat_has_no_members(ada: Client, bob: Client) -> None:
    chat = await ada.chat()
    await add(ada, chat, "read")
    await ada.json("DELETE", chat)
    assert (await bob.json("GET", "/api/memberships"))["memberships"] == []
    await bob.json("GET", chat, 404)


async def test_a_chat_has_a_hundred_members_at_most(ada: Client, database_url: str) -> None:
    chat = await ada.chat()
    await rows_of(
        database_url,
        "INSERT INTO chat_members (chat_id, member, role, created_by)"
        " SELECT $1, 'member ' || number, 'read', 'ada' FROM generate_series(1, 99) AS number",
        chat.rpartition("/")[2],
    )
    await add(ada, chat, "read")
    problem = await add(ada, chat, "read", "eve", 409)
    assert "100 members" in problem["detail"]
    await add(ada, chat, "write", "member 7")  # at the limit of members, the role of a member can still change


async def test_without_the_setting_nobody_is_a_member(database_url: str) -> None:
    async with (
        serving(database_url) as server,
        Client(server.url, None, await server.token("ada"), "ada") as ada,
        Client(server.url, None, await server.token("bob"), "bob") as bob,
    ):
        chat = await ada.chat()
        await add(ada, chat, "read", status=403)
        await bob.json("GET", "/api/memberships", 403)
        await bob.json("GET", chat, 404)
