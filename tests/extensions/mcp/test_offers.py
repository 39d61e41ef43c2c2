"""Prompts and resources of MCP servers: how a client lists them, and their content as blocks of a message."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import pytest_asyncio
from mcp import types

from tests.extensions.mcp.mcp_offers import PDF
from tests.extensions.mcp.mcp_servers import OFFERS, context_with, process_of, time_over_http
from tests.extensions.mcp.oauth_issuer import office
from tests.extensions.mcp.test_owner_lists import signed_in
from tests.extensions.mcp.test_sign_in import desk_at
from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from tests.support.openapi_document import Document
from tests.support.server_process import free_port
from turnstream.extensions.mcp.app_tools import without_hidden
from turnstream.extensions.mcp.connection import McpTiming
from turnstream.extensions.mcp.declared import McpServer, McpTable, servers_of
from turnstream.extensions.mcp.servers import McpServers
from turnstream.libraries.secrets.sealing import new_master_key
from turnstream.libraries.tool_sources.declarations import read_declarations
from turnstream.scripted import message_of, text
from turnstream.tools.toolset import Toolset

OLD_OFFERS = replace(OFFERS, args=(*OFFERS.args, "--old"))
TIMING = McpTiming(connect_timeout=60, answer_timeout=60, pause=0.01)


@dataclass(frozen=True)
class Place:
    server: Server
    servers: McpServers
    ada: Client

    async def prompts(self) -> dict[str, Any]:
        found = await self.ada.json("GET", "/api/mcp/prompts")
        return {each["name"]: each for each in found["prompts"]}

    async def rendered(self, name: str, **arguments: str) -> list[dict[str, Any]]:
        sent = {"server": "offers", "name": name, "arguments": arguments}
        return list((await self.ada.json("POST", "/api/mcp/prompts/render", json=sent))["blocks"])

    async def completed(self, name: str, argument: str, value: str, **given: str) -> list[str]:
        sent = {"server": "offers", "name": name, "argument": argument, "value": value, "arguments": given}
        return list((await self.ada.json("POST", "/api/mcp/prompts/complete", json=sent))["values"])

    async def attached(self, uri: str, expect: int = 200) -> Any:
        sent = {"server": "offers", "uri": uri}
        return await self.ada.json("POST", "/api/mcp/resources/attach", expect, json=sent)


@asynccontextmanager
async def place_with(
    database_url: str, document: Document | None, *servers: McpServer, timing: McpTiming = TIMING, **settings: Any
) -> AsyncIterator[Place]:
    async with (
        McpServers(servers, timing) as source,
        serving(
            database_url, Toolset([], sources=[source], offers=[partial(without_hidden, [source])]), **settings
        ) as server,
        Client(server.url, document) as ada,
    ):
        yield Place(server, source, ada)


@pytest_asyncio.fixture
async def place(database_url: str, document: Document) -> AsyncIterator[Place]:
    async with place_with(database_url, document, OFFERS) as place:
        yield place


@pytest.mark.parametrize("kind", ["stdio", "http", pytest.param("http with sessions", marks=pytest.mark.full)])
async def test_a_prompt_becomes_the_text_of_a_message(database_url: str, document: Document, kind: str) -> None:
    port = free_port()
    options = ["--old"] if "sessions" in kind else []
    at = replace(OFFERS, command=None, args=(), cwd=None, url=f"http://127.0.0.1:{port}/mcp")
    async with (
        time_over_http(port, *options, module="mcp_offers"),
        place_with(database_url, document, OFFERS if kind == "stdio" else at) as place,
    ):
        review = (await place.prompts())["review"]
        assert (review["server"], review["title"]) == ("offers", "Review a text")
        assert [(each["name"], each["required"]) for each in review["arguments"]] == [("text", True), ("tone", False)]
        assert await place.completed("review", "tone", "h", text="Ahoy") == ["harsh", "humorous"]
        assert await place.completed("review", "tone", "", text="AHOY") == ["KIND", "HARSH", "HUMOROUS"]
        assert await place.completed("review", "text", "A") == []
        blocks = await place.rendered("review", text="Ahoy", tone="harsh")
        assert blocks == [{"type": "text", "text": "Review this in a harsh tone:\n\nAhoy"}]


async def test_a_dialogue_names_its_roles_and_a_picture_is_an_upload(place: Place) -> None:
    (talk,) = await place.rendered("rehearse")
    assert talk["text"].startswith("User: Who are you?\n\nAssistant: A lighthouse keeper.\n\nUser: [link to notes://")
    question, picture = await place.rendered("look")
    assert question == {"type": "text", "text": "What is this?"}
    name, provider = place.server.scripts.provider(message_of(text("A dot.")))
    turn = await place.ada.say(await place.ada.chat(), model=name, blocks=[question, picture])
    await place.ada.events(turn.stream_url)
    assert "image" in repr(provider.requests[0])


async def test_resources_become_attachments(place: Place) -> None:
    found = await place.ada.json("GET", "/api/mcp/resources")
    uris = {each["uri"]: each for each in found["resources"]}
    assert uris["notes://today"]["title"] == "Notes of today"
    assert [each["uri_template"] for each in found["templates"]] == ["notes://{day}"]
    assert found["unavailable"] == []
    (pdf,) = (await place.attached("files://manual.pdf"))["blocks"]
    assert (pdf["type"], pdf["source"]["type"]) == ("document", "upload")
    assert (await place.ada.get(f"/api/uploads/{pdf['source']['id']}")).content == PDF
    (today,) = (await place.attached("notes://today"))["blocks"]
    assert (await place.ada.get(f"/api/uploads/{today['source']['id']}")).text.endswith("The ferry was late.")
    (again,) = (await place.attached("notes://today"))["blocks"]
    assert again == today, "the same bytes are one upload"
    (monday,) = (await place.attached("notes://monday"))["blocks"]
    assert (await place.ada.get(f"/api/uploads/{monday['source']['id']}")).text == "Nothing on monday."


async def test_an_unattachable_resource_is_refused_with_a_reason(place: Place) -> None:
    song = await place.attached("files://song.ogg", 422)
    assert "of no type that a message may have" in song["detail"]
    assert "offers has refused this: " in (await place.attached("files://none", 422))["detail"]
    missing = {"server": "offers", "name": "review"}
    assert "has refused this" in (await place.ada.json("POST", "/api/mcp/prompts/render", 422, json=missing))["detail"]
    elsewhere = {"server": "none", "name": "review"}
    await place.ada.json("POST", "/api/mcp/prompts/render", 404, json=elsewhere)


async def test_a_resource_larger_than_an_upload_is_refused(database_url: str, document: Document) -> None:
    async with (
        McpServers([OFFERS], TIMING) as source,
        serving(database_url, Toolset([], sources=[source]), max_upload_bytes=1000) as server,
        Client(server.url, document) as ada,
    ):
        sent = {"server": "offers", "uri": f"notes://{'x' * 1000}"}
        refused = await ada.json("POST", "/api/mcp/resources/attach", 422, json=sent)
        assert "1,000 bytes" in refused["detail"]


@pytest.mark.parametrize("program", [pytest.param(OFFERS, id="new"), pytest.param(OLD_OFFERS, id="old")])
async def test_a_list_is_kept_until_the_server_notifies_a_change(
    database_url: str, document: Document, program: McpServer
) -> None:
    async with place_with(database_url, document, program) as place:
        (connection,) = place.servers.connections
        before = await place.prompts()
        assert "fresh" not in before
        await place.servers.tools()["offers__add_prompt"](context_with(), "{}")
        # the loop ends when the server's notification has arrived
        while "fresh" not in (after := await place.prompts()):
            assert after["count"] == before["count"] or after["count"]["description"] > "list 1"
        assert (await place.prompts())["count"] == (await place.prompts())["count"]
        assert connection.connected


async def test_a_server_that_fails_leaves_the_others(database_url: str, document: Document) -> None:
    away = McpServer("away", url=f"http://127.0.0.1:{free_port()}/mcp")
    async with place_with(database_url, document, OFFERS, away) as place:
        found = await place.ada.json("GET", "/api/mcp/prompts")
        assert "review" in {each["name"] for each in found["prompts"]}
        ((name, reason, wants_sign_in),) = [tuple(each.values()) for each in found["unavailable"]]
        assert (name, wants_sign_in) == ("away", False)
        assert "cannot be reached now" in reason
        sent = {"server": "away", "uri": "notes://today"}
        await place.ada.json("POST", "/api/mcp/resources/attach", 503, json=sent)


async def test_a_server_that_does_not_answer_is_unavailable_after_its_time(
    database_url: str, document: Document
) -> None:
    async with place_with(database_url, document, OFFERS, timing=replace(TIMING, answer_timeout=5)) as place:
        process = process_of(OFFERS)
        process.suspend()
        found = await place.ada.json("GET", "/api/mcp/prompts")
        assert found["prompts"] == []
        assert "TimeoutError" in found["unavailable"][0]["reason"]
        process.resume()


async def test_selected_tools_are_all_that_a_server_offers(database_url: str, document: Document) -> None:
    selected = replace(OFFERS, tools=("add_prompt",), prompts=False, resources=False)
    async with place_with(database_url, document, selected) as place:
        assert await place.prompts() == {}
        assert (await place.ada.json("GET", "/api/mcp/resources"))["templates"] == []
        await place.attached("notes://today", 404)


@pytest.mark.parametrize(
    ("keys", "prompts", "resources"),
    [("", True, True), ('tools = ["add"]', False, False), ('tools = ["add"]\nprompts = true', True, False)],
    ids=["all", "tools", "prompts"],
)
def test_the_table_defines_the_offers_for_people(tmp_path: Any, keys: str, prompts: bool, resources: bool) -> None:
    file = tmp_path / "tools.toml"
    file.write_text(f'[mcp.offers]\nurl = "https://offers.example.com/mcp"\n{keys}\n')
    (server,) = servers_of(read_declarations(file, {}, {"mcp": McpTable}))
    assert (server.prompts, server.resources) == (prompts, resources)


async def test_a_server_with_sign_in_offers_by_the_token_of_the_owner(database_url: str, document: Document) -> None:
    async with office() as place:
        place.calendar.own_tools = {"ada": [types.Tool(name="events", input_schema={"type": "object"})]}
        place.calendar.add_agenda()
        async with desk_at(database_url, document, place, new_master_key(), owner_tools=True) as desk:
            found = await desk.client.json("GET", "/api/mcp/prompts")
            assert (found["prompts"], found["unavailable"][0]["wants_sign_in"]) == ([], True)
            sent = {"server": "calendar", "name": "agenda"}
            refused = await desk.client.json("POST", "/api/mcp/prompts/render", 422, json=sent)
            assert "needs a sign-in first" in refused["detail"]
            await signed_in(desk, desk.client, "ada", "events")
            (prompt,) = (await desk.client.json("GET", "/api/mcp/prompts"))["prompts"]
            assert (prompt["server"], prompt["name"]) == ("calendar", "agenda")
            rendered = await desk.client.json("POST", "/api/mcp/prompts/render", json=sent)
            assert rendered["blocks"] == [{"type": "text", "text": "The agenda of ada"}]
            async with Client(desk.server.url, document, await desk.server.token("bob")) as bob:
                assert (await bob.json("GET", "/api/mcp/prompts"))["prompts"] == []
