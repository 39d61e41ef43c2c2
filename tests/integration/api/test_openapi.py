"""The OpenAPI document is true: the server answers every listed call, and no other. Every client of these tests checks
its answers against the document.
"""

from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, get_args
from uuid import UUID, uuid4

import asyncpg
import pytest
import pytest_asyncio
from openapi_spec_validator import validate

from tests.extensions.mcp.mcp_servers import APPS, OFFERS
from tests.extensions.mcp.oauth_issuer import listening
from tests.extensions.mcp.test_own_servers import LOCAL, Wiki
from tests.integration.proxy import proxied
from tests.support.calls import ENDPOINTS, OPENAI
from tests.support.http_client import Client, Event, Parser, said
from tests.support.http_server import Server, pausing, serving
from tests.support.openapi_document import Document, answers_of
from tests.support.pictures import PIXEL
from turnstream.api.caller import OwnerPlans
from turnstream.api.events import EVENTS, frame
from turnstream.api.http.endpoint import Endpoint
from turnstream.api.identity.authenticator import Authenticator
from turnstream.api.identity.stored import StoredTokens
from turnstream.api.schemas.tools import ActionsIn
from turnstream.api.streams.response import OwnerStreams
from turnstream.domain import events as domain
from turnstream.domain.blocks import Block, PreliminaryOutput
from turnstream.domain.cursor import Cursor
from turnstream.domain.degraded import Degraded
from turnstream.domain.events import (
    CAUGHT_UP,
    ActionRequired,
    Answered,
    BlockDelta,
    BlockStart,
    BlockStop,
    Notice,
    RequiredAction,
    Reset,
    RoundStart,
    RoundStop,
    TurnEnd,
    TurnStart,
    preliminary_notice,
    progress_notice,
)
from turnstream.domain.identity import SCOPES
from turnstream.domain.jobs import Job, JobChild
from turnstream.domain.plans import Plan, Plans
from turnstream.domain.turns import TurnError
from turnstream.extensions.ag_ui.schemas import RunInput
from turnstream.extensions.ai_sdk.schemas import UiRequest
from turnstream.extensions.browsers.schemas import BrowserTokenIn
from turnstream.extensions.fork.calls import ForkIn
from turnstream.extensions.jobs.tokens import digest_of_token
from turnstream.extensions.mcp.app_turns import MOST_OPEN
from turnstream.extensions.mcp.connection import McpTiming
from turnstream.extensions.mcp.oauth import OAuth
from turnstream.extensions.mcp.offers import Offers
from turnstream.extensions.mcp.own_servers import OwnServers
from turnstream.extensions.mcp.servers import McpServers
from turnstream.extensions.mcp.sign_ins import SignIns
from turnstream.extensions.queue.schemas import QueueChange
from turnstream.extensions.schedules.schemas import ScheduleIn, TriggerIn
from turnstream.extensions.self_service.schemas import ErasureIn
from turnstream.extensions.sharing.schemas import MemberIn
from turnstream.kit.clock import CLOCK
from turnstream.libraries.outgoing.signature import headers_of
from turnstream.libraries.secrets.owner_keys import OwnerKeys
from turnstream.libraries.secrets.sealing import MasterKeys, new_master_key
from turnstream.scripted import Pause, message_of, text, tool_use
from turnstream.storage.database import Statement

pytestmark = pytest.mark.asyncio(loop_scope="session")

LOOK = {"type": "client", "name": "look", "description": "Looks.", "input_schema": {"type": "object"}}
JSON = {"Content-Type": "application/json"}
TOKEN_OF_JOB = "tsj_x"
MEMBER = {"member": "another", "role": "read"}
MANY_MEMBERS = (
    "INSERT INTO chat_members (chat_id, member, role, created_by)"
    " SELECT $1, 'member ' || number, 'read', 'another' FROM generate_series(1, 100) AS number"
)
ADD_MEMBER = "INSERT INTO chat_members (chat_id, member, role, created_by) VALUES ($1, $2, 'read', 'another')"
WITH_APP = """
    UPDATE blocks SET client_data = '{"ui": {"server": "apps", "resourceUri": "ui://apps/chart"}}'
    WHERE turn_id = $1 AND type = 'tool_result'
"""
SCHEDULE = {"name": "Daily", "every": 86_400, "request": said("Hi")}
TRIGGER = {"name": "Reports", "request": said("Hi")}
STREAM = {"Accept": "text/event-stream"}


async def test_the_document_is_valid_and_says_which_version_it_describes(document: Document) -> None:
    validate(document.json)
    assert document.json["openapi"] == "3.1.0"
    assert document.json["info"]["version"] == version("turnstream")


async def test_a_later_version_of_openapi_describes_the_items_of_streams(api: Client, document: Document) -> None:
    later = await api.json("GET", "/openapi.json?version=3.2")
    validate(later)
    assert later["openapi"] == "3.2.0"
    for name, stream in later["components"]["responses"].items():
        items = stream["content"].get("text/event-stream", {}).get("itemSchema", {"oneOf": []})["oneOf"]
        frames = document.json["components"]["schemas"].get(f"{name}Event", {"discriminator": {"mapping": {}}})
        assert {item["properties"]["event"]["const"] for item in items} == frames["discriminator"]["mapping"].keys()


async def test_a_version_of_openapi_that_is_not_offered_is_refused(api: Client) -> None:
    problem = await api.json("GET", "/openapi.json?version=2.0", 422)
    assert problem["errors"] == [{"field": "version", "message": "`version` of OpenAPI must be 3.1 or 3.2."}]


async def test_every_endpoint_is_in_the_document_under_a_name_of_its_own(document: Document) -> None:
    written = {(method.upper(), path) for path, item in document.json["paths"].items() for method in item}
    assert written == {(endpoint.method, path_of(endpoint)) for endpoint in (*ENDPOINTS, *OPENAI)}
    names = [operation["operationId"] for item in document.json["paths"].values() for operation in item.values()]
    assert len(names) == len(set(names))


async def test_calls_that_need_no_token_are_listed_as_such(document: Document) -> None:
    for endpoint in ENDPOINTS:
        assert (operation(document, endpoint).get("security") == []) == (endpoint.open and 401 not in endpoint.problems)
    assert document.json["security"] == [{"bearer": []}, {}]


def path_of(endpoint: Endpoint) -> str:
    return endpoint.path.replace(":path}", "}")


def operation(document: Document, endpoint: Endpoint) -> Any:
    return document.json["paths"][path_of(endpoint)][endpoint.method.lower()]


# --- every answer that is listed is given --------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """A client with data, a client without a token, a client whose token has no scope, and a client with a token of
    another cell.
    """

    api: Client
    nobody: Client
    powerless: Client
    astray: Client
    operator: Client
    server: Server
    stack: AsyncExitStack
    secrets: dict[str, str] = field(default_factory=dict)  # the secrets of triggers, by the trigger's id
    paths: dict[str, str] = field(default_factory=dict)  # paths of endpoints to which only refused requests are sent

    def of(self, endpoint: Endpoint) -> "World":
        """Returns the world for an endpoint. For calls of operators its client has the operator's token, because a
        person's token does not allow these calls.
        """
        return replace(self, api=self.operator, powerless=self.api) if endpoint.scopes == ("admin",) else self

    async def refused(self, endpoint: Endpoint) -> str:
        """Returns the same path for all requests that change nothing."""
        key = f"{endpoint.method} {endpoint.path}"
        if key not in self.paths:
            self.paths[key] = await self.fill(endpoint)
        return self.paths[key]

    async def fill(self, endpoint: Endpoint) -> str:
        """Fills the endpoint's path with ids of existing things."""
        if endpoint.path.startswith("/api/approvals/"):
            return await self.approving(endpoint)
        if endpoint.takes is ActionsIn or "/links/" in endpoint.path:
            return await self.waiting(endpoint)
        if "{job}" in endpoint.path:
            return await self.detached(endpoint)
        if endpoint.call == "GET /api/mcp/apps/calls":
            return f"{endpoint.path}?turn={uuid4()}"
        if "{server}" in endpoint.path:
            await self.server.services.storage.database.rows(SIGN_IN, owner=self.api.owner)
            return filled(endpoint, {"{server}": "calendar"})
        if "{schedule}" in endpoint.path:
            made = await self.api.json("POST", "/api/schedules", 201, json=SCHEDULE)
            return filled(endpoint, {"{schedule}": made["id"]})
        if "{trigger}" in endpoint.path:
            made = await self.api.json("POST", "/api/triggers", 201, json=TRIGGER)
            self.secrets[made["id"]] = made["secret"]
            return filled(endpoint, {"{trigger}": made["id"]})
        if "{credential}" in endpoint.path:
            await self.server.token(self.api.owner)
            (credential, *_) = (await self.api.json("GET", "/api/account/credentials"))["credentials"]
            return filled(endpoint, {"{credential}": credential["id"]})
        if endpoint.handler.__name__ == "undo_erasure":
            await self.api.json("POST", "/api/account/erasure", 202, json={"owner": self.api.owner})
        if "{entry}" in endpoint.path:
            chat = (await self.running(endpoint)).split("/")[3]
            queued = await self.api.say(f"/api/chats/{chat}", on_busy="enqueue")
            return filled(endpoint, {"{chat}": chat, "{entry}": queued.user["id"]})
        if "{share}" in endpoint.path or "{secret}" in endpoint.path:
            return filled(endpoint, await self.shared())
        if "{membership}" in endpoint.path:
            connection, other = await asyncpg.connect(self.server.database_url), uuid4()
            await connection.execute("INSERT INTO chats (id, owner) VALUES ($1, 'another')", other)
            await connection.execute(ADD_MEMBER, other, self.api.owner)
            await connection.close()
            return filled(endpoint, {"{membership}": str(other)})
        if "{member:path}" in endpoint.path:
            chat = await self.api.chat()
            await self.api.json("POST", f"{chat}/members", json=MEMBER)
            return filled(endpoint, {"{chat}": chat.split("/")[3], "{member:path}": MEMBER["member"]})
        if "{replica}" in endpoint.path:
            return filled(endpoint, {"{replica}": str(await self.stack.enter_async_context(registered(self.server)))})
        model = self.server.scripts.model(message_of(tool_use("none", {}, "c")), message_of(text("Hi.")))
        turn = await self.api.ask(await self.api.chat(), model=model)
        await self.api.put("/api/documents/there", content="x")
        upload = await self.api.json("POST", "/api/uploads", 201, content=uuid4().hex)
        ids = {
            "{grant}": await self.granted(turn.assistant["chat_id"]),
            "{upload}": upload["id"],
            "{tool_use_id}": "c",
            "{chat}": turn.assistant["chat_id"],
            "{id}": turn.assistant["chat_id"],
            "{turn}": turn.assistant["id"],
            "{path:path}": "there",
        }
        return filled(endpoint, ids)

    async def drawn(self) -> dict[str, str]:
        """Creates a result with an app."""
        model = self.server.scripts.model(message_of(tool_use("none", {}, "c")), message_of(text("Hi.")))
        turn = (await self.api.ask(await self.api.chat(), model=model)).assistant
        connection = await asyncpg.connect(self.server.database_url)
        await connection.execute(WITH_APP, UUID(turn["id"]))
        await connection.close()
        return {"chat": turn["chat_id"], "turn": turn["id"], "app": "c"}

    async def shared(self) -> dict[str, str]:
        """Creates a link to a chat with a file."""
        upload = (await self.api.json("POST", "/api/uploads", 201, content=uuid4().hex))["id"]
        chat = await self.api.chat()
        file = {"type": "document", "source": {"type": "upload", "id": upload}}
        await self.api.ask(chat, blocks=[file, {"type": "text", "text": "Hi"}])
        made = await self.api.json("POST", f"{chat}/shares", 201, json={"files": True})
        return {"{share}": made["id"], "{secret}": made["path"].rpartition("/")[2], "{upload}": upload}

    async def granted(self, chat: str) -> str:
        connection, grant = await asyncpg.connect(self.server.database_url), uuid4()
        columns = "id, chat_id, tool, digest, turn_id, tool_use_id"
        await connection.execute(
            f"INSERT INTO grants ({columns}) VALUES ($1, $2, 'look', '', $1, 'c')", grant, UUID(chat)
        )
        await connection.close()
        return str(grant)

    async def running(self, endpoint: Endpoint) -> str:
        model = self.server.scripts.model(pausing(Pause(), "One ", "two."))
        turn = await self.api.say(await self.api.chat(), model=model)
        async with self.api.follow(turn.stream_url) as events:
            assert "block_delta" in [event.name async for event in until("block_delta", events)]
        return filled(endpoint, {"{chat}": turn.assistant["chat_id"], "{turn}": turn.assistant["id"]})

    async def waiting(self, endpoint: Endpoint, path: str | None = None) -> str:
        model = self.server.scripts.model(message_of(tool_use("look", {}, "c")), message_of(text("Hi.")))
        turn = await self.api.say(await self.api.chat(), model=model, tools=[LOOK])
        async with self.api.follow(turn.stream_url) as events:
            assert "action_required" in [event.name async for event in until("action_required", events)]
        ids = {"{chat}": turn.assistant["chat_id"], "{turn}": turn.assistant["id"], "{tool_use_id}": "c"}
        return filled(endpoint, ids, path)

    async def working(self, endpoint: Endpoint, path: str | None = None) -> str:
        """Creates a job for the call of a waiting turn, and returns the path of the call."""
        path = await self.waiting(endpoint, path)
        connection = await asyncpg.connect(self.server.database_url)
        await connection.execute(
            "INSERT INTO jobs (id, turn_id, round, tool_use_id, name, kind, input, deadline)"
            " VALUES ($1, $2, 1, 'c', 'look', 'tool', '{}', now() + interval '1 hour')",
            uuid4(),
            UUID(path.split("/")[5]),
        )
        await connection.close()
        return path

    async def detached(self, endpoint: Endpoint) -> str:
        """Creates a detached job for the call of a waiting turn. `TOKEN_OF_JOB` settles the job."""
        path, job = await self.working(endpoint, "/api/chats/{chat}/turns/{turn}"), uuid4()
        connection = await asyncpg.connect(self.server.database_url)
        await connection.execute(
            "UPDATE jobs SET id = $1, token_digest = $2 WHERE turn_id = $3",
            job,
            digest_of_token(TOKEN_OF_JOB),
            UUID(path.split("/")[5]),
        )
        await connection.close()
        return filled(endpoint, {"{job}": str(job)})

    async def approving(self, endpoint: Endpoint) -> str:
        """Creates a waiting turn whose call needs an approval that the caller may give."""
        turn = (await self.waiting(endpoint, "/api/chats/{chat}/turns/{turn}")).split("/")[5]
        connection = await asyncpg.connect(self.server.database_url)
        await connection.execute(
            "UPDATE asks SET kind = 'approval', approvers = $1, digest = 'd' WHERE turn_id = $2",
            [f"person:{self.api.owner}"],
            UUID(turn),
        )
        await connection.close()
        return filled(endpoint, {"{turn}": turn})

    async def user_turn(self, endpoint: Endpoint) -> str:
        turn = await self.api.ask(await self.api.chat())
        return filled(endpoint, {"{chat}": turn.user["chat_id"], "{turn}": turn.user["id"]})


@asynccontextmanager
async def registered(server: Server) -> AsyncIterator[UUID]:
    """Registers a replica that looks alive to all other replicas: it has a row, a lease and a session."""
    connection, replica, session = await asyncpg.connect(server.database_url), uuid4(), uuid4().int >> 66
    try:
        await connection.execute("SELECT pg_advisory_lock_shared($1)", session)
        await connection.execute(
            "INSERT INTO replicas (id, address, session, lease_until) VALUES ($1, 'elsewhere', $2, now() + '1 hour')",
            replica,
            session,
        )
        yield replica
        await connection.execute("DELETE FROM replicas WHERE id = $1", replica)
    finally:
        await connection.close()


async def until(name: str, events: AsyncIterator[Event]) -> AsyncIterator[Event]:
    async for event in events:
        yield event
        if event.name == name:
            return


def filled(endpoint: Endpoint, ids: dict[str, str], path: str | None = None) -> str:
    path = path or endpoint.path
    for name, value in ids.items():
        path = path.replace(name, value)
    return path


def nothing_there(endpoint: Endpoint) -> str:
    ids = {
        "{chat}": str(uuid4()),
        "{id}": str(uuid4()),
        "{turn}": str(uuid4()),
        "{path:path}": "none",
        "{tool_use_id}": "none",
        "{upload}": str(uuid4()),
        "{grant}": str(uuid4()),
        "{entry}": str(uuid4()),
        "{replica}": str(uuid4()),
        "{job}": str(uuid4()),
        "{schedule}": str(uuid4()),
        "{trigger}": str(uuid4()),
        "{credential}": str(uuid4()),
        "{server}": "none",
        "{share}": str(uuid4()),
        "{secret}": "none",
        "{member:path}": "none",
        "{membership}": str(uuid4()),
    }
    return filled(endpoint, ids)


def body_of(endpoint: Endpoint, sent: object = None) -> dict[str, Any]:
    """Returns a valid body for the endpoint."""
    if endpoint.path.startswith("/api/mcp/servers/") and endpoint.takes is not None:
        return {"json": sent or {"url": "https://10.0.0.1/mcp"}}
    if isinstance(endpoint.takes, str):
        is_signed = endpoint.path == "/api/triggers/{trigger}"
        return {"content": "x", **({"headers": {"webhook-id": "msg_1"}} if is_signed else {})}
    if endpoint.takes is None:
        return {}
    if endpoint.path.startswith("/api/approvals/"):
        return {"json": {"actions": [{"type": "deny", "tool_use_id": "c", "input_digest": "d"}]}}
    if endpoint.takes is ScheduleIn:
        return {"json": SCHEDULE}
    if endpoint.path.startswith("/api/mcp/"):
        if endpoint.path == "/api/mcp/apps":
            return {"json": {"server": "none", "uri": "ui://none"}}
        if endpoint.path == "/api/mcp/apps/calls":
            return {"json": {"chat": str(uuid4()), "turn": str(uuid4()), "app": "c", "name": "none"}}
        named = {"server": "none", "uri" if "resources" in endpoint.path else "name": "none"}
        return {"json": {**named, **({"argument": "tone"} if endpoint.path.endswith("complete") else {})}}
    if endpoint.takes is TriggerIn:
        return {"json": TRIGGER}
    if endpoint.takes is MemberIn:
        return {"json": MEMBER}
    if endpoint.takes is ActionsIn:
        return {"json": {"actions": [{"type": "result", "tool_use_id": "c", "output": "a cat"}]}}
    if endpoint.takes is QueueChange:
        return {"json": {"version": "any", "kind": "queued"}}
    if endpoint.takes is UiRequest:
        return {"json": saying("Hi", str(uuid4()))}
    if endpoint.takes is RunInput:
        return {"json": running("Hi", str(uuid4()))}
    return {"json": said("Hi") if "blocks" in getattr(endpoint.takes, "model_fields", ()) else {}}


MASTER_KEY = new_master_key()


@asynccontextmanager
async def with_own_servers(world: World) -> AsyncIterator[dict[str, Any]]:
    """Lets owners add servers inside the context. Yields the body that adds a server."""
    services, wiki = world.server.services, Wiki()
    keys = OwnerKeys(services.storage.database, MasterKeys.read(MASTER_KEY))
    own = OwnServers(LOCAL, McpTiming(answer_timeout=60))
    own.use(services.storage.database, keys, SignIns(services.storage.database, keys, OAuth(""), {}, lambda *_: None))
    world.server.app.state.services = replace(services, states={**services.states, "mcp": Offers({}, own=own)})
    try:
        async with listening(wiki.app, wiki.port):
            yield {"url": wiki.url, "headers": {"X-Key": "secret"}}
    finally:
        world.server.app.state.services = services


async def offered(world: World, endpoint: Endpoint, times: int = 1) -> None:
    services = world.server.services
    server = APPS if endpoint.path.startswith("/api/mcp/apps") else OFFERS
    async with McpServers([server], McpTiming(connect_timeout=60, answer_timeout=60)) as source:
        (connection,) = source.connections
        states = {**services.states, "mcp": Offers({server.name: connection})}
        world.server.app.state.services = replace(services, states=states)
        try:
            chosen = {"uri": "notes://today"} if "resources" in endpoint.path else {"name": "rehearse"}
            chosen = {"uri": "ui://apps/chart"} if server is APPS else chosen
            body = {**body_of(endpoint)["json"], "server": server.name, **chosen}
            if endpoint.path.endswith("/calls"):
                body = {**await world.drawn(), "name": "refresh"}
            for _ in range(times):
                await world.api.request(endpoint.method, endpoint.path, json=body)
        finally:
            world.server.app.state.services = services


def saying(words: str, chat: str) -> dict[str, Any]:
    return {"id": chat, "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": words}]}]}


def running(words: str, thread: str) -> dict[str, Any]:
    return {"threadId": thread, "runId": "r", "messages": [{"id": "m", "role": "user", "content": words}]}


Provoke = Callable[[World, Endpoint], Awaitable[None]]


async def deliver(world: World, path: str, content: bytes = b"a message") -> None:
    """Sends a signed message to a trigger."""
    headers = headers_of(world.secrets[path.rpartition("/")[2]], "msg_1", int(CLOCK.seconds()), content)
    await world.nobody.request("POST", path, content=content, headers=headers)


async def good(world: World, endpoint: Endpoint) -> None:
    if endpoint.takes is ErasureIn:
        await world.api.json(endpoint.method, endpoint.path, 202, json={"owner": world.api.owner})
        return
    if endpoint.path.startswith("/api/mcp/servers/"):
        async with with_own_servers(world) as body:
            await world.api.json("PUT", "/api/mcp/servers/wiki", json=body)
            await world.api.request(endpoint.method, "/api/mcp/servers/wiki", **body_of(endpoint, body))
        return
    if endpoint.path.startswith("/api/mcp/") and endpoint.takes is not None:
        await offered(world, endpoint)
        return
    is_requeue = endpoint.handler.__name__ == "requeue_turn"
    path = await (world.running(endpoint) if is_requeue else world.fill(endpoint))
    if endpoint.events == "ChatStream":
        async with world.api.follow(path) as events:  # streams that never end
            assert (await anext(events)).name == "chat"
        return
    if endpoint.events == "Overview":
        async with world.api.follow(path) as events:
            assert (await anext(events)).name == "now"
        return
    if endpoint.events == "Feed":
        async with world.api.follow(path) as events:
            await world.api.chat()
            assert (await anext(events)).name == "chat"
        return
    headers = {"Authorization": f"Bearer {TOKEN_OF_JOB}"} if "{job}" in endpoint.path else {}
    if endpoint.handler.__name__ == "receive_message":
        await deliver(world, path)
        return
    await world.api.request(endpoint.method, path, **body_of(endpoint), headers=headers)
    if endpoint.handler.__name__ == "put_upload":
        await world.api.request(endpoint.method, path, **body_of(endpoint))
    if endpoint.handler.__name__ == "put_document":
        await world.api.put("/api/documents/new", content="x")
    if endpoint.streams:
        await world.api.request(endpoint.method, await world.fill(endpoint), **body_of(endpoint), headers=STREAM)
    if 304 in endpoint.statuses:
        tag = (await world.api.get(path)).headers["etag"]
        await world.api.get(path, headers={"If-None-Match": tag})
    if endpoint.handler.__name__ == "resume_answer":
        await world.api.get(nothing_there(endpoint))
    elif 204 in endpoint.statuses:
        cursor = (await world.api.events(path))[-1].id
        await world.api.get(path, params={"cursor": cursor or ""})
    if endpoint.handler.__name__ == "cancel":
        await world.api.request(endpoint.method, await world.running(endpoint))
    if endpoint.handler.__name__ == "cancel_call":
        await world.api.request(endpoint.method, await world.working(endpoint))
    if endpoint.handler.__name__ == "create_turn":
        await world.api.request(endpoint.method, await world.running(endpoint), json={**said("Hi"), "on_busy": "steer"})


async def unreadable(world: World, endpoint: Endpoint) -> None:
    path = await world.refused(endpoint)
    marks = {query.name: "x" for query in endpoint.queries if query.name in {"after", "before", "cursor"}}
    await world.api.request(endpoint.method, path, params=marks, content=b"{", headers=JSON)


async def without_token(world: World, endpoint: Endpoint) -> None:
    services = world.server.services
    http = replace(services.http, metrics_token="the token of Prometheus")
    world.server.app.state.services = replace(services, http=http)
    try:
        await world.nobody.request(endpoint.method, nothing_there(endpoint), **body_of(endpoint))
    finally:
        world.server.app.state.services = services


async def not_there(world: World, endpoint: Endpoint) -> None:
    body = {"json": {"chat": str(uuid4())}} if endpoint.takes is BrowserTokenIn else body_of(endpoint)
    if endpoint.takes is ScheduleIn:
        body = {"json": {**SCHEDULE, "chat": str(uuid4())}}
    if endpoint.takes is TriggerIn:
        body = {"json": {**TRIGGER, "chat": str(uuid4())}}
    if endpoint.handler.__name__ == "undo_erasure":
        await world.api.delete(endpoint.path)  # withdraws the erasure that another case requested
    named = {query.name: str(uuid4()) for query in endpoint.queries if query.name == "turn"}
    await world.api.request(endpoint.method, nothing_there(endpoint), params=named, **body)


async def not_now(world: World, endpoint: Endpoint) -> None:
    if endpoint.path == "/api/mcp/apps/calls":
        await offered(world, endpoint, MOST_OPEN + 1)
        return
    if endpoint.path.startswith("/api/mcp/servers/"):
        async with with_own_servers(world) as body:
            for number in range(11):
                await world.api.request("PUT", f"/api/mcp/servers/wiki-{number}", json=body)
        return
    if "{entry}" in endpoint.path:
        outdated: dict[str, Any] = {"params": {"version": "any"}}
        if endpoint.takes is not None:
            outdated = {"json": {"version": "any", "blocks": said("Ho")["blocks"]}}
        await world.api.request(endpoint.method, await world.fill(endpoint), **outdated)
        return
    if endpoint.takes is UiRequest:
        chat = await world.api.chat()
        await world.api.say(chat, model=world.server.scripts.model(pausing(Pause(), "One ", "two.")))
        rejected = {**saying("Hi", chat.rpartition("/")[2]), "turnstream": {"on_busy": "reject"}}
        await world.api.request(endpoint.method, endpoint.path, json=rejected)
        return
    if endpoint.takes is RunInput:
        chat = await world.api.chat()
        await world.api.say(chat, model=world.server.scripts.model(pausing(Pause(), "One ", "two.")))
        options = {"forwardedProps": {"turnstream": {"on_busy": "reject"}}}
        await world.api.request(
            endpoint.method, endpoint.path, json={**running("Hi", chat.rpartition("/")[2]), **options}
        )
        return
    if endpoint.handler.__name__ == "delete_upload":
        path = await world.fill(endpoint)
        source = {"type": "upload", "id": path.rpartition("/")[2]}
        await world.api.say(await world.api.chat(), blocks=[{"type": "document", "source": source}])
        await world.api.delete(path, params={"if": "unused"})
        return
    if endpoint.handler.__name__ == "receive_message":
        path = await world.fill(endpoint)
        await world.api.json("PUT", path, 200, json={**TRIGGER, "paused": True})
        await deliver(world, path)
        return
    if endpoint.handler.__name__ == "cancel_call":
        path = await world.waiting(endpoint)
    elif endpoint.takes is ActionsIn:
        path = await world.fill(endpoint)
        await world.api.request(endpoint.method, path, **body_of(endpoint))
    elif endpoint.handler.__name__ == "requeue_turn":
        path = await world.fill(endpoint)
    elif endpoint.takes is MemberIn:
        path = await world.fill(endpoint)
        connection = await asyncpg.connect(world.server.database_url)
        await connection.execute(MANY_MEMBERS, UUID(path.split("/")[3]))
        await connection.close()
    elif endpoint.takes is ForkIn:
        model = world.server.scripts.model(pausing(Pause(), "One ", "two."))
        path = f"{(await world.api.say(await world.api.chat(), model=model)).url}/fork"
    else:
        path = await (world.user_turn(endpoint) if "{turn}" in endpoint.path else world.running(endpoint))
    await world.api.request(endpoint.method, path, **body_of(endpoint))


async def too_large(world: World, endpoint: Endpoint) -> None:
    services = world.server.services
    content = b" " * (max(services.http.max_body_bytes, services.http.max_upload_bytes) + 1)
    await world.api.request(endpoint.method, await world.refused(endpoint), content=content, headers=JSON)


async def wrong_kind(world: World, endpoint: Endpoint) -> None:
    if endpoint.handler.__name__ == "receive_message":
        await deliver(world, await world.refused(endpoint), b"\xff")
        return
    await world.api.request(endpoint.method, await world.refused(endpoint), content=b"\xff")


async def wrong_field(world: World, endpoint: Endpoint) -> None:
    path = filled(endpoint, {"{path:path}": "a/"}) if "{path" in endpoint.path else await world.refused(endpoint)
    if endpoint.handler.__name__ == "receive_message":
        await deliver(world, path, b"a\0b")
        return
    content = b"[]" if endpoint.takes else b""
    numbers = {"limit", "turn", "startIndex", *(() if "{entry}" in endpoint.path else ("version",))}
    wrong = {query.name: "x" for query in endpoint.queries if query.name in numbers}
    if not wrong and not isinstance(endpoint.takes, type):
        wrong = {"limt": "0"}
    await world.api.request(endpoint.method, path, params=wrong, content=content, headers=JSON)


async def too_many(world: World, endpoint: Endpoint) -> None:
    path = await (world.user_turn(endpoint) if endpoint.takes is ForkIn else world.refused(endpoint))
    services = world.server.services
    rates = {"requests_per_day": 0.5, "writes_per_day": 0.5}
    plans = OwnerPlans(Plans(Plan("none", rates, running_turns=0, queued_turns=0, streams=0, uploads=0, documents=0)))
    limited = replace(services, plans=plans, streams=OwnerStreams(plans))
    world.server.app.state.services = limited
    body = body_of(endpoint)
    if endpoint.takes is ActionsIn:
        blocks = [{"type": "image", "source": {"type": "base64", "data": b64encode(PIXEL).decode()}}]
        body = {"json": {"actions": [{"type": "result", "tool_use_id": "c", "blocks": blocks}]}}
    try:
        if endpoint.handler.__name__ == "receive_message":
            await deliver(world, path)
        else:
            await world.api.request(endpoint.method, path, **body)
    finally:
        world.server.app.state.services = services


async def without_scope(world: World, endpoint: Endpoint) -> None:
    if endpoint.scopes == SCOPES:  # no token can lack the scope, but a token that is bound to one chat is refused
        chat = (await world.api.chat()).rpartition("/")[2]
        bound = await world.api.json("POST", "/api/tokens", json={"seconds": 60, "chat": chat})
        headers = {"Authorization": f"Bearer {bound['token']}"}
        await world.nobody.request(endpoint.method, endpoint.path, headers=headers)
        return
    await world.powerless.request(endpoint.method, nothing_there(endpoint), **body_of(endpoint))


async def of_another_cell(world: World, endpoint: Endpoint) -> None:
    services = world.server.services
    stored = StoredTokens(services.storage.tokens, "07")
    world.server.app.state.services = replace(services, authenticator=Authenticator([stored.identity_of]))
    try:
        await world.astray.request(endpoint.method, nothing_there(endpoint), **body_of(endpoint))
    finally:
        world.server.app.state.services = services


PROVOKED: dict[int, Provoke] = {
    400: unreadable,
    401: without_token,
    403: without_scope,
    404: not_there,
    409: not_now,
    413: too_large,
    415: wrong_kind,
    421: of_another_cell,
    422: wrong_field,
    429: too_many,
}


SIGN_IN = Statement(
    "INSERT INTO sign_ins (owner, server, tokens, signed_in_at) VALUES (:owner, 'calendar', 'sealed', now())"
    " ON CONFLICT DO NOTHING RETURNING owner"
)


@pytest_asyncio.fixture(loop_scope="session")
async def world(api: Client, server: Server, document: Document) -> AsyncIterator[World]:
    async with (
        Client(server.url, document) as nobody,
        Client(server.url, document, await server.token("powerless", "admin")) as powerless,
        Client(server.url, document, f"ts_08_{'0' * 32}_{'x' * 43}") as astray,
        Client(server.url, document, await server.token("operator", *SCOPES)) as operator,
        AsyncExitStack() as stack,
    ):
        yield World(api, nobody, powerless, astray, operator, server, stack)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: f"{endpoint.method} {endpoint.path}")
async def test_every_answer_that_is_listed_is_given(world: World, document: Document, endpoint: Endpoint) -> None:
    world, listed = world.of(endpoint), {int(each) for each in answers_of(operation(document, endpoint))} - {500, 503}
    document.seen.clear()
    await good(world, endpoint)
    for status in listed & PROVOKED.keys():
        await PROVOKED[status](world, endpoint)
    seen = {status for method, path, status in document.seen if (method, path) == (endpoint.method, path_of(endpoint))}
    assert seen == listed


async def failing(document: Document, server: Server, status: int) -> None:
    async with Client(server.url, document) as client:
        for endpoint in ENDPOINTS:
            listed = str(status) in answers_of(operation(document, endpoint))
            answer = await client.request(endpoint.method, nothing_there(endpoint), **body_of(endpoint))
            assert (answer.status_code == status) == listed, f"{endpoint.method} {endpoint.path}"


async def test_a_failure_is_a_problem_without_details(database_url: str, document: Document) -> None:
    async with serving(database_url) as server:
        services, server.app.state.services = server.services, None
        await failing(document, server, 500)
        async with Client(server.url, document) as client:
            assert "NoneType" not in (await client.get("/api/chats")).text
        server.app.state.services = services


async def test_without_the_database_everything_that_needs_it_says_so(
    database_url: str, document: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstream.api.identity.stored.BELIEVED", 0)
    async with proxied(database_url) as (url, proxy), serving(url, sharing=True) as server:
        proxy.cut()
        await failing(document, server, 503)


async def test_calls_of_the_openai_api_have_the_listed_bodies(api: Client) -> None:
    """The client compares each body and each answer with the document."""
    response = (await api.post("/v1/responses", json={"input": [{"role": "user", "content": "Hi"}]})).json()
    place = f"/v1/responses/{response['id']}"
    for path in (place, f"{place}?stream=true&starting_after=1", f"{place}/input_items?limit=5&order=asc"):
        assert (await api.get(path)).is_success
    items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]
    conversation = (await api.post("/v1/conversations", json={"items": items, "metadata": {"a": "b"}})).json()
    place = f"/v1/conversations/{conversation['id']}"
    assert (await api.post(place, json={"metadata": {"a": "c"}})).is_success
    assert (await api.post(f"{place}/items", json={"items": items})).is_success
    (first, *_) = (await api.get(f"{place}/items")).json()["data"]
    assert (await api.get(f"{place}/items/{first['id']}")).is_success
    function = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    body = {"model": "plain", "messages": [{"role": "user", "content": "Hi"}], "tools": [function]}
    for stream in (False, True):
        assert (await api.post("/v1/chat/completions", json=body | {"stream": stream})).is_success
    assert (await api.get("/v1/models")).is_success
    refused = [
        await api.get("/v1/responses/resp_nothing"),
        await api.post("/v1/responses", json={"input": 1}),
        await api.post("/v1/chat/completions", json={"model": "of nobody", "messages": []}),
        await api.get("/v1/models/of-nobody"),
    ]
    assert all(answer.is_error for answer in refused)
    assert (await api.delete(place)).is_success


# --- bounds and events -----------------------------------------------------------------------------------------------


async def test_the_bounds_of_a_limit_are_as_listed(api: Client, document: Document) -> None:
    turn = await api.ask(await api.chat())
    for endpoint in ENDPOINTS:
        for parameter in operation(document, endpoint)["parameters"]:
            if parameter["name"] == "limit":
                ids = {"{chat}": turn.assistant["chat_id"], "{turn}": turn.assistant["id"]}
                if "{schedule}" in endpoint.path:
                    ids["{schedule}"] = (await api.json("POST", "/api/schedules", 201, json=SCHEDULE))["id"]
                if "{trigger}" in endpoint.path:
                    ids["{trigger}"] = (await api.json("POST", "/api/triggers", 201, json=TRIGGER))["id"]
                path = filled(endpoint, ids)
                most = parameter["schema"]["maximum"]
                assert (await api.get(path, params={"limit": most})).status_code == 200
                assert (await api.get(path, params={"limit": most + 1})).status_code == 422


USAGE = {"output_tokens": 1}
CALL = Block(1, 1, 1, "tool_use", '{"a":1}', '{"type":"tool_use","id":"c","name":"n","input":{}}', "c", "n")
THOUGHT = Block(0, 1, 1, "thinking", "Hm", '{"type":"thinking","thinking":"","signature":"s"}')
EXAMPLES: list[domain.Event] = [
    TurnStart(0, UUID(int=1), UUID(int=2), "m", 1, "running"),
    RoundStart(1, 1, 3, (Answered("c", "n", False),)),
    BlockStart(1, 0, 1, "text", None, None),
    BlockStart(1, 1, 1, "tool_use", "c", "n"),
    BlockStart(1, 2, 1, "tool_result", "c", "n"),
    BlockDelta(0, 0, "x"),
    BlockStop(1, THOUGHT),
    BlockStop(1, CALL),
    BlockStop(1, Block(2, 1, 1, "tool_result", "x", None, "c", "n", is_error=True, interrupted=True)),
    BlockStop(1, Block(3, 1, 1, "text", "x", '{"type":"text","text":"","citations":[{"a":1}]}')),
    BlockStop(1, Block(4, 1, 1, "redacted_thinking", "", '{"type":"redacted_thinking","data":"x"}')),
    RoundStop(1, 1, None, USAGE),
    ActionRequired(1, 1, (RequiredAction("c", "n", "approval", '{"a":1}', "0", datetime(2026, 1, 1, tzinfo=UTC)),)),
    BlockStop(1, Block(5, 1, 1, "tool_result", "x", None, "c", "n", notes='{"retries":1}')),
    BlockStop(1, Block(6, 1, 1, "user_text", "x", notes='{"steer":"s"}')),
    TurnEnd(1, "complete", "end_turn", USAGE, None, (Degraded("retries", 5, "n"), Degraded("all_tools_failed"))),
    Reset(2, 0),
    TurnEnd(1, "complete", "end_turn", USAGE, None),
    TurnEnd(1, "cancelled", "cancelled", USAGE, None),
    TurnEnd(1, "cancelled", "cancelled", USAGE, None, phase="validating"),
    TurnEnd(1, "error", "error", USAGE, TurnError("t", "m")),
]
NOTICES = [
    Notice("status", {"provider_event": "{}"}),
    Notice("status", {"stage": "executing"}),
    Notice("tool_progress", {"tool_use_id": "c", "name": "n", "message": "m"}),
    progress_notice(Job(UUID(int=1), 1, "c", "n", "tool")),
    progress_notice(
        Job(
            UUID(int=1),
            1,
            "c",
            "n",
            "tool",
            since=datetime.now(UTC),
            child=JobChild(UUID(int=2), UUID(int=3), "running", 0.5),
        )
    ),
    preliminary_notice(PreliminaryOutput(1, "c", "n", "so far", {"rows": 2})),
    preliminary_notice(PreliminaryOutput(1, "c", "n", "so far")),
    Notice("access_ended", {"status": 401, "detail": "The token was revoked."}),
    CAUGHT_UP,
    Notice("retry", {"error": "overloaded_error", "message": "No.", "seconds": 1.5, "model": "m", "tries": 2}),
]


async def test_every_event_there_is_is_described(document: Document) -> None:
    assert {type(event) for event in EXAMPLES} == set(get_args(domain.Event))
    written = b"".join(frame(event, Cursor(1, 2, 3)) for event in EXAMPLES)
    written += b"".join(frame(notice, None) for notice in NOTICES)
    events = Parser().feed(written)
    for event in events:
        document.check_event(event.name, event.data)
    assert {event.name for event in events} == EVENTS.keys()
