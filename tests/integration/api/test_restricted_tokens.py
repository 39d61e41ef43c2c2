"""Restricted tokens give access to the content of their chat, and to no other data of their owner, in every dialect."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal
from uuid import UUID, uuid4

import pytest

from tests.integration.api.test_openapi import body_of, filled
from tests.integration.api.test_waiting import until_waiting
from tests.support.calls import ENDPOINTS as OWN
from tests.support.calls import OPENAI
from tests.support.http_client import Client, Said, said
from tests.support.http_server import Server
from turnstream.api.http.endpoint import Endpoint
from turnstream.domain.identity import FIXABLE, Identity, Scope, checked_scopes
from turnstream.scripted import message_of, text, tool_use
from turnstream.storage.database import Statement

pytestmark = pytest.mark.asyncio(loop_scope="session")

Json = dict[str, Any]
Bound = Literal["owner", "chat", "turn"]
ENDPOINTS = tuple(each for each in (*OWN, *OPENAI) if not each.open and "admin" not in each.scopes)
SECRET = "The vault opens with 1-2-3-4."
PNG = b"\x89PNG\r\n\x1a\n"
REFERENCES = ("path", "file", "image")
_SCOPES: tuple[frozenset[Scope], ...] = (
    *(frozenset({scope}) for scope in ("read", "send", "chat", "approve")),  # type: ignore[arg-type]
    frozenset({"read", "send"}),
    frozenset({"read", "chat", "approve"}),
)
KINDS = [
    (bound, scopes)
    for bound, scopes in product(("owner", "chat", "turn"), _SCOPES)
    if bound != "owner" or "chat" not in scopes
]
GET_REFERENCES = Statement(
    """
    SELECT count(*) AS number FROM chats JOIN turns ON chat_id = chats.id JOIN blocks ON turn_id = turns.id
    WHERE owner = :owner AND concat(text, data) LIKE ANY (CAST(:named AS text[]))
    """
)


@dataclass(frozen=True)
class World:
    """The data of an owner: a chat with an answer, and a document, a file and an image that belong to no chat."""

    api: Client
    answer: Said
    document: str
    file: str
    image: str

    @property
    def chat(self) -> str:
        return str(self.answer.assistant["chat_id"])

    def block(self, reference: str) -> Json:
        if reference == "path":
            return {"type": "document", "source": {"type": "path", "path": self.document}}
        kind = "document" if reference == "file" else "image"
        return {"type": kind, "source": {"type": "upload", "id": getattr(self, reference)}}

    def part_of_openai(self, reference: str, *, chat: bool = False) -> Json:
        id = getattr(self, reference)
        if reference == "image":
            url = f"/api/uploads/{id}"
            return (
                {"type": "image_url", "image_url": {"url": url}} if chat else {"type": "input_image", "image_url": url}
            )
        return {"type": "file", "file": {"file_id": id}} if chat else {"type": "input_file", "file_id": id}

    def body(self, call: str, reference: str) -> Json | None:
        """Returns a body for the call that contains the reference, or None if the dialect cannot express the
        reference.
        """
        message = {"role": "user", "blocks": [self.block(reference)]}
        if call == "POST /api/ai-sdk/chat" and reference != "path":
            media = "image/png" if reference == "image" else "text/plain"
            part: Json = {"type": "file", "mediaType": media, "url": f"/api/uploads/{getattr(self, reference)}"}
            return {"id": self.chat, "messages": [{"id": "m", "role": "user", "parts": [part]}]}
        if call == "POST /api/ag-ui" and reference != "path":
            kind = "image" if reference == "image" else "document"
            part = {"type": kind, "source": {"type": "url", "value": f"/api/uploads/{getattr(self, reference)}"}}
            return {"threadId": self.chat, "runId": "r", "messages": [{"id": "m", "role": "user", "content": [part]}]}
        if call == "POST /v1/messages" and reference != "path":
            kind = "image" if reference == "image" else "document"
            content = [{"type": kind, "source": {"type": "file", "file_id": getattr(self, reference)}}]
            return {"model": "plain", "max_tokens": 9, "messages": [{"role": "user", "content": content}]}
        if call.startswith("POST /v1/") and reference != "path":
            item: Json = {"role": "user", "content": [self.part_of_openai(reference, chat="chat" in call)]}
            items = [item, {"role": "assistant", "content": "Seen."}]
            bodies: dict[str, Json] = {
                "POST /v1/responses": {"model": "plain", "input": [item], "previous_response_id": self.response},
                "POST /v1/conversations": {"items": items},
                "POST /v1/conversations/{conversation}/items": {"items": items},
                "POST /v1/chat/completions": {"model": "plain", "messages": [item]},
            }
            return bodies.get(call)
        return message if call in {"POST /api/turns", "POST /api/chats/{chat}/turns"} else None

    @property
    def url(self) -> str:
        return self.answer.url

    @property
    def response(self) -> str:
        return f"resp_{self.chat}{self.answer.assistant['id']}".replace("-", "")

    @property
    def ids(self) -> dict[str, str]:
        return {
            "{chat}": self.chat,
            "{id}": self.chat,
            "{turn}": self.answer.assistant["id"],
            "{conversation}": f"conv_{self.chat.replace('-', '')}",
            "{response}": self.response,
        }


async def world_of(api: Client, server: Server) -> World:
    document = f"vault/{uuid4()}.md"
    await api.put(f"/api/documents/{document}", content=SECRET)
    file, image = [
        (await api.json("POST", "/api/uploads", 201, content=content))["id"]
        for content in (f"{SECRET} {uuid4()}", PNG + uuid4().bytes)
    ]
    return World(api, await api.ask(await api.chat()), document, file, image)


@asynccontextmanager
async def restricted(
    world: World, server: Server, bound: Bound = "owner", *scopes: Scope, **more: Any
) -> AsyncIterator[Client]:
    wanted: Json = {"scopes": list(scopes), **more} if scopes else more
    if bound != "owner":
        wanted["chat"] = world.chat
    if bound == "turn":
        wanted["turn"] = world.answer.assistant["id"]
    token = (await world.api.json("POST", "/api/tokens", json=wanted))["token"]
    async with Client(server.url, None, token, world.api.owner) as client:
        yield client


async def referred(world: World, server: Server) -> int:
    """Counts the blocks of the owner's turns that contain data which belongs to no chat, or the name of such data."""
    row = await server.services.storage.database.row(
        GET_REFERENCES, owner=world.api.owner, named=[f"%{each}%" for each in (SECRET, world.file, world.image)]
    )
    assert row is not None
    return int(row["number"])


CALLS = [
    (endpoint, reference)
    for endpoint, reference in product(ENDPOINTS, REFERENCES)
    if World(None, Said({}, {"id": "", "chat_id": ""}, ""), "", "", "").body(endpoint.call, reference)  # type: ignore[arg-type]
]


@pytest.mark.extensions("documents")
@pytest.mark.parametrize(("endpoint", "reference"), CALLS, ids=[f"{each.call} {name}" for each, name in CALLS])
async def test_an_unrestricted_token_may_name_all_that_its_owner_has(
    api: Client, server: Server, endpoint: Endpoint, reference: str
) -> None:
    """Otherwise the refusals of the other tests would prove nothing."""
    world = await world_of(api, server)
    async with Client(server.url, None, await server.token(api.owner)) as client:
        path, body = filled(endpoint, world.ids), world.body(endpoint.call, reference)
        answer = await client.request(endpoint.method, path, json=body)
        assert answer.status_code in {200, 201}, answer.text
        assert await referred(world, server) > 0


@pytest.mark.extensions("documents")
@pytest.mark.parametrize(("bound", "scopes"), KINDS, ids=[f"{bound} {'+'.join(sorted(s))}" for bound, s in KINDS])
async def test_a_restricted_token_names_nothing_that_its_chat_does_not_show(
    api: Client, server: Server, bound: Bound, scopes: frozenset[Scope]
) -> None:
    world = await world_of(api, server)
    async with restricted(world, server, bound, *checked_scopes(scopes)) as client:
        for endpoint, reference in CALLS:
            path, body = filled(endpoint, world.ids), world.body(endpoint.call, reference)
            answer = await client.request(endpoint.method, path, json=body)
            assert answer.status_code == 403, (endpoint.call, reference, answer.text)
        assert await referred(world, server) == 0
        if bound != "owner":
            for file in (world.file, world.image):
                assert (await client.get(f"/api/uploads/{file}")).status_code == 403
            assert (await client.get(f"/api/documents/{world.document}")).status_code == 403


@pytest.mark.parametrize("bound", ["chat", "turn"])
async def test_a_bound_token_reaches_no_other_chat_by_any_route(api: Client, server: Server, bound: Bound) -> None:
    world = await world_of(api, server)
    other = World(api, await api.ask(await api.chat()), world.document, world.file, world.image)
    more = {"{upload}": world.file, "{grant}": str(uuid4()), "{tool_use_id}": "c", "{path:path}": world.document}
    more |= {"{item}": f"msg_{uuid4().hex}", "{model:path}": "plain"}
    async with restricted(world, server, bound) as client:
        for endpoint in ENDPOINTS:
            named = other.body(endpoint.call, "image") if endpoint.takes is None or endpoint in OPENAI else None
            body = {"json": named} if named else body_of(endpoint)
            answer = await client.request(endpoint.method, filled(endpoint, other.ids | more), **body)
            if endpoint.call in {"GET /api/me", "GET /api/models", "GET /api/tools"}:
                assert answer.status_code == 200
            elif endpoint.call in {"GET /v1/models", "GET /v1/models/{model:path}"}:
                assert answer.status_code in {200, 404}
            elif not (endpoint.call in {"POST /api/uploads", "POST /v1/files"} and bound == "chat"):
                assert answer.status_code in {403, 422}, (endpoint.call, answer.text)
        for path in (other.response, f"{other.response}/input_items"):
            assert (await client.get(f"/v1/responses/{path}")).status_code == 403


@pytest.mark.extensions("documents")
@pytest.mark.parametrize("bound", ["chat", "turn"])
@pytest.mark.parametrize("reference", REFERENCES)
async def test_a_result_of_a_call_names_nothing_that_the_chat_does_not_show(
    api: Client, server: Server, bound: Bound, reference: str
) -> None:
    world = await world_of(api, server)
    look = {"type": "client", "name": "look", "description": "Looks.", "input_schema": {"type": "object"}}
    model = server.scripts.model(message_of(tool_use("look", {}, "c")), message_of(text("Seen.")))
    world = replace(world, answer=await api.say(await api.chat(), model=model, tools=[look]))
    await until_waiting(api, world.answer)
    result = {"type": "result", "tool_use_id": "c", "blocks": [world.block(reference)]}
    async with restricted(world, server, bound) as client:
        answer = await client.post(f"{world.url}/actions", json={"actions": [result]})
        assert answer.status_code == 403, answer.text
    assert (await api.post(f"{world.url}/actions", json={"actions": [result]})).status_code == 202


async def test_a_token_of_a_turn_does_not_read_the_question(api: Client, server: Server) -> None:
    world = await world_of(api, server)
    async with restricted(world, server, "turn") as client:
        assert (await client.get(f"/v1/responses/{world.response}")).status_code == 200
        assert (await client.get(f"/v1/responses/{world.response}/input_items")).status_code == 403
    async with restricted(world, server, "chat") as client:
        assert (await client.get(f"/v1/responses/{world.response}/input_items")).status_code == 200


async def test_a_file_that_was_uploaded_for_the_chat_may_be_sent_in_it(api: Client, server: Server) -> None:
    world = await world_of(api, server)
    async with restricted(world, server, "chat", "read", "send") as client:
        sent = await client.post("/api/uploads", content=f"A file of the page {uuid4()}")
        source = {"type": "upload", "id": sent.json()["id"]}
        body = {"role": "user", "blocks": [{"type": "document", "source": source}]}
        assert (await client.post(f"/api/chats/{world.chat}/turns", json=body)).status_code == 201
        assert (await client.get(f"/api/uploads/{source['id']}")).status_code == 200


async def test_a_title_does_not_make_a_file_one_that_the_chat_shows(api: Client, server: Server) -> None:
    world = await world_of(api, server)
    source = {"type": "base64", "data": "QSBub3Rl"}
    block = {"type": "document", "source": source, "title": f'{{"source": {{"type": "upload", "id": "{world.file}"}}}}'}
    async with restricted(world, server, "chat", "read", "send") as client:
        body = {"role": "user", "blocks": [block]}
        assert (await client.post(f"/api/chats/{world.chat}/turns", json=body)).status_code == 201
        assert (await client.get(f"/api/uploads/{world.file}")).status_code == 403
        body = {"role": "user", "blocks": [world.block("file")], "on_busy": "enqueue"}
        assert (await client.post(f"/api/chats/{world.chat}/turns", json=body)).status_code == 403


@pytest.mark.extensions("documents")
@pytest.mark.parametrize(
    ("folder", "found"),
    [(None, False), ("public", False), ("vault", True)],
)
async def test_tools_reach_the_documents_that_the_token_names(
    api: Client, server: Server, folder: str | None, *, found: bool
) -> None:
    world, document = await world_of(api, server), "vault/plan.md"
    await api.put(f"/api/documents/{document}", content=SECRET)
    calls = [
        tool_use("doc_view", {"path": document}, "1"),
        tool_use("doc_search", {"query": "vault opens"}, "2"),
        tool_use("doc_tree", {}, "3"),
    ]
    model = server.scripts.model(message_of(*calls), message_of(text("Done.")))
    await api.json("PATCH", f"/api/chats/{world.chat}", json={"settings": {"model": model}})
    async with restricted(world, server, "chat", "read", "send", **({"documents": folder} if folder else {})) as client:
        turn = (await client.ask(f"/api/chats/{world.chat}")).assistant
        results = [block["text"] for block in turn["blocks"] if block["type"] == "tool_result"]
        assert len(results) == 3
        assert (SECRET in results[0], "plan.md" in results[2]) == (found, found)
        assert found or not any("plan.md" in result for result in results[1:])
        body = {"role": "user", "blocks": [{"type": "document", "source": {"type": "path", "path": document}}]}
        status = (await client.post(f"/api/chats/{world.chat}/turns", json=body)).status_code
        assert status == (201 if found else 403)


# --- the scope `send`, and what a token fixes ------------------------------------------------------------------------

_VALUES: Json = {
    "model": "demo",
    "system_prompt": "Be a pirate.",
    "params": {"max_tokens": 17},
    "tools": [],
    "limits": {"max_rounds": 3},
}


async def test_a_token_that_only_sends_changes_nothing_else(api: Client, server: Server) -> None:
    """Tries every route without the scope `send`, and every option of a turn on the routes with `send`."""
    world = await world_of(api, server)
    more = {"{upload}": world.file, "{grant}": str(uuid4()), "{tool_use_id}": "c", "{path:path}": world.document}
    async with restricted(world, server, "chat", "send") as client:
        for endpoint in ENDPOINTS:
            if "send" not in endpoint.scopes:
                path = filled(endpoint, world.ids | more | {"{item}": f"msg_{uuid4().hex}"})
                answer = await client.request(endpoint.method, path, **body_of(endpoint))
                assert answer.status_code == 403, (endpoint.call, answer.text)
        for name, value in _VALUES.items():
            answer = await client.post(f"/api/chats/{world.chat}/turns", json={**said("Hi"), name: value})
            assert (answer.status_code, answer.json()["errors"][0]["field"]) == (403, name), answer.text
        assert (await client.post(f"/api/chats/{world.chat}/turns", json=said("Hi"))).status_code == 201


async def test_every_option_that_can_be_fixed_has_a_value_in_these_tests() -> None:
    assert set(_VALUES) == set(FIXABLE)


@pytest.mark.parametrize("name", FIXABLE)
async def test_a_fixed_option_holds_for_all_turns_of_the_token(api: Client, server: Server, name: str) -> None:
    world = await world_of(api, server)
    value: Any = server.scripts.model(message_of(text("Aye."))) if name == "model" else _VALUES[name]
    async with restricted(world, server, "chat", "read", "chat", fixed={name: value}) as client:
        assert (await client.get("/api/me")).json()["fixed"] == [name]
        chat = f"/api/chats/{world.chat}"
        for method, path, body in (
            ("POST", f"{chat}/turns", {**said("Hi"), name: value}),
            ("POST", f"{world.url}/regenerate", {name: value}),
            ("PATCH", chat, {name: value} if name == "system_prompt" else {"settings": {name: value}}),
        ):
            answer = await client.request(method, path, json=body)
            assert answer.status_code == 403, (path, answer.text)
            assert answer.json()["errors"][0]["field"].split(".")[-1] == name
        turn = (await client.post(f"{chat}/turns", json=said("Hi"))).json()["assistant_turn"]
    kept = await server.services.storage.turns.get(api.owner, UUID(world.chat), UUID(turn["id"]))
    stored: Any = getattr(kept.request, {"system_prompt": "system"}.get(name, name))
    match name:
        case "params":
            assert stored["max_tokens"] == value["max_tokens"]
        case "limits":
            assert stored.max_rounds == value["max_rounds"]
        case "tools":
            assert list(stored) == value
        case _:
            assert stored == value


async def test_an_exchange_cannot_remove_fixed_options_or_restrictions(api: Client) -> None:
    refused = await api.post("/api/tokens", json={"fixed": {"model": "nobody's"}})
    assert refused.status_code == 422
    assert (await api.post("/api/tokens", json={"documents": "vault"})).status_code == 422, "all are reached anyway"


async def test_a_restricted_identity_reaches_no_documents_unless_it_names_a_folder() -> None:
    for bound, scopes in KINDS:
        chat = uuid4() if bound != "owner" else None
        assert Identity("ada", scopes, chat=chat).documents is None
        assert Identity("ada", scopes, chat=chat, folder="vault").documents == "vault/"
    assert Identity("ada").documents == ""
