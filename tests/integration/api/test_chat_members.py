"""Every call of the API, made by present and former members of the named chat, and by other people."""

from contextlib import AsyncExitStack
from uuid import UUID

import asyncpg
import pytest

from tests.integration.api.conftest import NewOwner
from tests.integration.api.test_openapi import World, body_of, filled
from tests.support.calls import ENDPOINTS, OPENAI
from tests.support.http_client import Client
from tests.support.http_server import Server
from turnstream.api.http.endpoint import Endpoint
from turnstream.extensions.sharing.members import LEAST_ROLE

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROLES = ("read", "write", "approve")
SET_ROLE = (
    "INSERT INTO chat_members (chat_id, member, role, created_by) VALUES ($1, $2, $3, 'test')"
    " ON CONFLICT (chat_id, member) DO UPDATE SET role = EXCLUDED.role"
)
CALLS = [endpoint for endpoint in ENDPOINTS if "{chat}" in endpoint.path or endpoint.call in LEAST_ROLE]
# Calls that name a chat, or a part of a chat, in another way than by their path. These calls treat a member like a
# stranger.
OTHERS = [
    endpoint
    for endpoint in (*ENDPOINTS, *OPENAI)
    if endpoint not in CALLS and "{" in endpoint.path and not endpoint.open and "{membership}" not in endpoint.path
]


def may(role: str | None, endpoint: Endpoint) -> bool:
    least = LEAST_ROLE.get(endpoint.call)
    return role is not None and least is not None and ROLES.index(role) >= ROLES.index(least)


async def test_each_call_of_members_is_a_call_of_the_api_that_names_a_chat() -> None:
    calls = {endpoint.call: endpoint for endpoint in ENDPOINTS}
    assert LEAST_ROLE.keys() <= calls.keys()
    named = {call for call in LEAST_ROLE if "{chat}" in call or "chat" in {query.name for query in calls[call].queries}}
    assert named == LEAST_ROLE.keys()
    owners = {call for call in calls if "{chat}" in call} - LEAST_ROLE.keys()
    assert {"DELETE /api/chats/{chat}", "PATCH /api/chats/{chat}"} < owners
    assert {call for call in owners if call.startswith("GET")} == {"GET /api/chats/{chat}/members"}


async def status_of(client: Client, endpoint: Endpoint, path: str, chat: str) -> int:
    """Reads only the status, because some streams never end."""
    params = {"chat": chat} if "{chat}" not in endpoint.path and endpoint.call in LEAST_ROLE else {}
    async with client.stream(endpoint.method, path, params=params, **body_of(endpoint)) as response:
        return response.status_code


@pytest.mark.parametrize("endpoint", CALLS, ids=lambda endpoint: f"{endpoint.method} {endpoint.path}")
async def test_a_call_that_names_a_chat_is_made_by_its_owner_and_by_members_with_the_role(
    new_owner: NewOwner, server: Server, endpoint: Endpoint
) -> None:
    owner, person = await new_owner(), await new_owner()
    async with AsyncExitStack() as stack:
        world = World(owner, person, person, person, person, server, stack)
        connection = await asyncpg.connect(server.database_url)
        stack.push_async_callback(connection.close)
        for role in (None, *ROLES, None):  # in the last step the person is a former member
            if "{upload}" in endpoint.path:
                ids = await world.shared()
                path = filled(endpoint, ids)
                (row,) = await connection.fetch("SELECT chat_id FROM shares WHERE id = $1", UUID(ids["{share}"]))
                chat = str(row["chat_id"])
            else:
                path = await world.fill(endpoint)
                chat = path.split("/")[3]
            for earlier in ROLES[: ROLES.index(role) + 1] if role else ROLES:
                await connection.execute(SET_ROLE, UUID(chat), person.owner, earlier)
            if role is None:
                await connection.execute("DELETE FROM chat_members WHERE chat_id = $1", UUID(chat))
            status = await status_of(person, endpoint, path, chat)
            if may(role, endpoint):
                assert status < 400 or status == 409, (role, status)
            elif "{chat}" in endpoint.path:
                assert status == (404 if role is None else 403), (role, status)
            else:
                assert status in {403, 404}, (role, status)


@pytest.mark.parametrize("endpoint", OTHERS, ids=lambda endpoint: f"{endpoint.method} {endpoint.path}")
async def test_another_call_with_an_id_knows_no_members(
    new_owner: NewOwner, server: Server, endpoint: Endpoint
) -> None:
    owner, person = await new_owner(), await new_owner()
    async with AsyncExitStack() as stack:
        world = World(owner, person, person, person, owner, server, stack)
        if endpoint.scopes == ("admin",) or endpoint in OPENAI:
            path = endpoint.path
        else:
            path = await world.fill(endpoint)
        statuses = []
        connection = await asyncpg.connect(server.database_url)
        stack.push_async_callback(connection.close)
        for role in (None, *ROLES):
            chats = await connection.fetch("SELECT id FROM chats WHERE owner = $1", owner.owner)
            for chat in chats if role else ():
                await connection.execute(SET_ROLE, chat["id"], person.owner, role)
                if endpoint in OPENAI:
                    path = path.replace("{conversation}", f"conv_{chat['id']}")
            status = await status_of(person, endpoint, path, "")
            statuses.append(200 if status < 300 else status)
        assert len({*statuses}) == 1, statuses


async def test_lists_of_others_have_nothing_of_the_chat(new_owner: NewOwner) -> None:
    owner, person = await new_owner(), await new_owner()
    chat = await owner.chat(title="the secret title")
    turn = await owner.ask(chat, "the secret words")
    assert turn.assistant["status"] == "complete"
    await owner.json("POST", f"{chat}/members", json={"member": person.owner, "role": "approve"})
    seen = 0
    for endpoint in ENDPOINTS:
        if endpoint.method != "GET" or "{" in endpoint.path or endpoint.open or endpoint.streams:
            continue
        if endpoint.gives == "text/event-stream":
            continue
        answer = await person.get(endpoint.path, params={"q": "secret"} if endpoint.path == "/api/chats" else {})
        expected = endpoint.path == "/api/memberships"
        assert ("secret" in answer.text or chat.rpartition("/")[2] in answer.text) == expected, endpoint.path
        seen += 1
    assert seen > 10
