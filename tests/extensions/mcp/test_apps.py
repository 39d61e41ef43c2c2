"""Apps of MCP servers: how clients get an app, its page and its policy, and the calls that an app makes."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import pytest
from mcp import types

from tests.extensions.mcp.mcp_servers import APPS, context_with
from tests.extensions.mcp.oauth_issuer import office
from tests.extensions.mcp.test_offers import Place, place_with
from tests.extensions.mcp.test_own_servers import LOCAL, UNASKED, Wiki, site_with, wiki
from tests.extensions.mcp.test_owner_lists import _GUEST, EVENTS, asked, outcome, signed_in
from tests.extensions.mcp.test_sign_in import desk_at
from tests.support.http_client import Client, Said
from tests.support.openapi_document import Document
from turnstream.extensions.mcp import app_turns
from turnstream.extensions.mcp.apps import origins_of, policy_of
from turnstream.extensions.mcp.declared import McpServer
from turnstream.extensions.mcp.own_servers import OwnServers
from turnstream.libraries.secrets.sealing import new_master_key
from turnstream.llm.models.catalog import ProviderModels
from turnstream.scripted import ScriptedProvider, message_of, text, tool_use
from turnstream.tools.policy import Policy

__all__ = ["wiki"]  # a fixture

BAD = (
    "data:",
    "*",
    "https://*",
    "https://a.example; script-src *",
    "http://a.example",
    "'self'",
    "https://a.example/x",
)


def test_a_policy_has_origins_alone() -> None:
    assert origins_of([*BAD, 5, "https://a.example", "wss://*.b.example:8443"]) == [
        "https://a.example",
        "wss://*.b.example:8443",
    ]
    assert origins_of("https://a.example") == []
    policy = policy_of(["https://a.example"], [])
    assert policy.startswith("sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; ")
    assert "connect-src https://a.example;" in policy
    assert "connect-src 'none'" in policy_of([], ["https://b.example"])


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.extensions("mcp")
async def test_clients_learn_of_an_app_and_read_its_page(database_url: str) -> None:
    async with place_with(database_url, None, APPS) as place:
        tools, offered = place.servers.tools(), place.server.services.resolver.toolset.names
        assert sorted(tools.keys() - offered) == ["apps__refresh"]
        outcome = await tools["apps__chart"](context_with(), json.dumps({"place": "Sund"}))
        assert outcome.data["ui"] == {"server": "apps", "resourceUri": "ui://apps/chart"}
        assert "ui://" not in outcome.text  # the model does not see that the result has an app
        app = await place.ada.json("POST", "/api/mcp/apps", json={"server": "apps", "uri": "ui://apps/chart"})
        assert app["connect"] == ["https://api.example.com"]
        assert app["load"] == []
        assert app["frame"] == "mcp-app?connect=https%3A%2F%2Fapi.example.com"
        assert "ui/initialize" in app["html"]
        frame = await place.ada.request("GET", f"/{app['frame']}&connect=https://b.example;script-src%20*")
        assert "connect-src https://api.example.com; base-uri" in frame.headers["content-security-policy"]
        assert "frame-ancestors 'self'" in frame.headers["content-security-policy"]
        for uri, words in (("ui://apps/plain", "is no app"), ("ui://apps/none", "has refused this")):
            refused = await place.ada.json("POST", "/api/mcp/apps", 422, json={"server": "apps", "uri": uri})
            assert words in refused["detail"]
        await place.ada.json("POST", "/api/mcp/apps", 404, json={"server": "none", "uri": "ui://apps/chart"})
        await place.ada.json("POST", "/api/mcp/apps", 422, json={"server": "apps", "uri": "https://a.example"})


# --- calls of an app -------------------------------------------------------------------------------------------------

ASKING = replace(APPS, policies={"erase": Policy(approval="always"), "refresh": Policy(calls_per_turn=3)})


@dataclass(frozen=True)
class Drawn:
    """A turn with a result that has an app, and the provider that answered the turn."""

    place: Place
    turn: Said
    provider: ScriptedProvider

    async def call(self, name: str, expect: int = 201, client: Client | None = None, **changes: Any) -> Any:
        sent = {"chat": self.turn.assistant["chat_id"], "turn": self.turn.assistant["id"], "app": "call_1"}
        body = {**sent, "name": name, "arguments": {}, **changes}
        headers = {"Idempotency-Key": key} if (key := changes.pop("key", None)) else {}
        body.pop("key", None)
        return await (client or self.place.ada).json("POST", "/api/mcp/apps/calls", expect, json=body, headers=headers)

    async def result(self, made: Any) -> dict[str, Any]:
        """Waits for the end of a call's turn. Returns the result of the call."""
        url = f"/api/chats/{made['chat']}/turns/{made['turn']}"
        await self.place.ada.events(f"{url}/stream")
        turn = await self.place.ada.json("GET", url)
        assert (turn["status"], turn["stop_reason"]) == ("complete", "tool_use")
        (result,) = [block for block in turn["blocks"] if block["type"] == "tool_result"]
        return dict(result)

    async def listed(self) -> list[dict[str, Any]]:
        turn = self.turn.assistant["id"]
        return list((await self.place.ada.json("GET", f"/api/mcp/apps/calls?turn={turn}"))["calls"])


@asynccontextmanager
async def drawn(database_url: str, document: Document, server: McpServer = ASKING) -> AsyncIterator[Drawn]:
    async with place_with(database_url, document, server) as place:
        chart = message_of(tool_use("apps__chart", {"place": "Sund"}, "call_1"))
        model, provider = place.server.scripts.provider(chart, message_of(text("See.")), message_of(text("Again.")))
        yield Drawn(place, await place.ada.ask(await place.ada.chat(), model=model), provider)


async def waiting(client: Client, made: Any) -> dict[str, Any]:
    async with client.follow(f"/api/chats/{made['chat']}/turns/{made['turn']}/stream") as events:
        async for event in events:
            if event.name == "action_required":
                return dict(event.data["calls"][0])
    raise AssertionError("nothing was asked for")


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.extensions("mcp", "inbox", "openapi")
async def test_an_app_calls_a_tool_in_a_turn_of_its_own_that_no_model_reads(
    database_url: str, document: Document
) -> None:
    async with drawn(database_url, document) as app:
        made = await app.call("refresh", key="once")
        assert made == await app.call("refresh", key="once")
        result = await app.result(made)
        assert (result["name"], result["data"]["structuredContent"]) == ("apps__refresh", {"result": [7]})
        call = {"app": "call_1", "name": "apps__refresh", "status": "complete"}
        assert await app.listed() == [{"chat": made["chat"], "turn": made["turn"], **call}]
        chats = (await app.place.ada.json("GET", "/api/chats"))["chats"]
        assert [chat["id"] for chat in chats] == [app.turn.assistant["chat_id"]]
        assert len(app.provider.requests) == 2
        again = await app.place.ada.ask(f"/api/chats/{app.turn.assistant['chat_id']}")
        assert again.assistant["status"] == "complete"
        assert "refresh" not in repr(app.provider.requests[2])
        # If a message continues the chat of the app's calls, the model is not offered the tools for apps.
        await app.place.ada.say(
            f"/api/chats/{made['chat']}", model=app.place.server.scripts.model(message_of(text("x")))
        )
        children = await app.place.ada.json("GET", f"/api/chats/{made['chat']}/turns")
        assert [each["role"] for each in children["turns"]] == ["user", "assistant", "user", "assistant"]
        await app.place.ada.request("DELETE", app.turn.url)
        await app.place.ada.json("GET", f"/api/chats/{made['chat']}", 404)


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.extensions("mcp", "inbox", "openapi")
async def test_a_call_of_an_app_waits_for_the_approval_that_its_tool_needs(
    database_url: str, document: Document
) -> None:
    async with drawn(database_url, document) as app:
        ada = app.place.ada
        made = [await app.call("erase", arguments={"what": what}) for what in ("waves", "wind")]
        assert made[0]["chat"] == made[1]["chat"]
        for each, decision, expected in zip(
            made, ("approve", "deny"), ("waves is erased", "did not allow this call"), strict=True
        ):
            action = await waiting(ada, each)
            assert (action["name"], action["type"]) == ("apps__erase", "approval")
            sent = {"type": decision, "tool_use_id": action["tool_use_id"], "input_digest": action["input_digest"]}
            inbox = (await ada.json("GET", "/api/waiting"))["calls"]
            assert each["turn"] in {call["turn"] for call in inbox}
            url = f"/api/chats/{each['chat']}/turns/{each['turn']}"
            await ada.json("POST", f"{url}/actions", 202, json={"actions": [sent]})
            assert expected in (await app.result(each))["text"]
        assert len(app.provider.requests) == 2


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.extensions("mcp", "openapi")
async def test_an_app_calls_no_other_tools_and_not_without_end(
    database_url: str, document: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with drawn(database_url, document) as app:
        for name in ("reckon", "apps__refresh", "other__pay", "find_tools"):
            assert "offers its apps no tool" in (await app.call(name, 404))["detail"]
        assert "no result with an app" in (await app.call("refresh", 404, app="call_2"))["detail"]
        await app.call("refresh", 404, turn=str(uuid4()))
        for _ in range(3):
            await app.result(await app.call("refresh"))
        assert "has reached its limit of 3 calls" in (await app.call("refresh", 409))["detail"]
        monkeypatch.setattr(app_turns, "MOST_OPEN", 2)
        calls = [app.call("erase", 201, arguments={"what": "it"}) for _ in range(2)]
        await asyncio.gather(*calls)
        assert "2 calls of the apps of this turn are open" in (await app.call("erase", 409))["detail"]
        monkeypatch.setattr(app_turns, "MOST_CALLS", 5)
        assert "the limit of 5 calls" in (await app.call("erase", 409))["detail"]
        assert len(await app.listed()) == 5
        # This check is the last one, because from now on the server requires a token from each client.
        eve_token = await app.place.server.token("eve")
        async with Client(app.place.server.url, document, eve_token) as eve:
            await app.call("refresh", 404, client=eve)
            turn = app.turn.assistant["id"]
            assert (await eve.json("GET", f"/api/mcp/apps/calls?turn={turn}"))["calls"] == []


# --- lists of owners, replicas, encryption ---------------------------------------------------------------------------


async def app_call(client: Client, turn: Said, name: str, expect: int = 201, **arguments: Any) -> Any:
    sent = {"chat": turn.assistant["chat_id"], "turn": turn.assistant["id"], "app": "a"}
    body = {**sent, "name": name, "arguments": arguments}
    return await client.json("POST", "/api/mcp/apps/calls", expect, json=body)


async def decided(client: Client, made: Any, type: str) -> str:
    """Decides about a call that waits for an approval. Returns the call's result."""
    action, url = await waiting(client, made), f"/api/chats/{made['chat']}/turns/{made['turn']}"
    sent = {"type": type, "tool_use_id": action["tool_use_id"], "input_digest": action["input_digest"]}
    await client.json("POST", f"{url}/actions", 202, json={"actions": [sent]})
    await client.events(f"{url}/stream")
    (result,) = [block for block in (await client.json("GET", url))["blocks"] if block["type"] == "tool_result"]
    return str(result["text"])


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.extensions("mcp")
async def test_an_app_of_a_list_of_an_owner_calls_the_tools_that_this_owner_has(database_url: str) -> None:
    shown = {"ui": {"resourceUri": "ui://calendar/day"}}
    events = EVENTS.model_copy(update={"meta": shown})
    move = types.Tool(name="invite", description="x", input_schema=_GUEST, _meta={"ui": {"visibility": ["app"]}})
    async with office() as place:
        place.calendar.own_tools = {"ada": [events, move], "bob": [events]}
        async with (
            desk_at(database_url, None, place, new_master_key(), owner_tools=True) as desk,
            Client(desk.server.url, None, await desk.server.token("ada"), "ada") as ada,
        ):
            await signed_in(desk, ada, "ada", "The events of today.")
            assert "has no tool 'invite'" in await outcome(desk, ada, "call_tool", name="invite")
            assert "invite" not in await outcome(desk, ada, "find_tools")
            turn = await asked(desk, ada, "call_tool", name="events")
            await ada.events(turn.stream_url)
            made = await app_call(ada, turn, "invite", guest="eve")
            url = f"/api/chats/{made['chat']}/turns/{made['turn']}"
            await ada.events(f"{url}/stream")
            (call, result) = (await ada.json("GET", url))["blocks"]
            assert (call["name"], result["text"]) == ("calendar__call_from_app", "ada has invited eve")
            made = await app_call(ada, turn, "none")
            await ada.events(f"/api/chats/{made['chat']}/turns/{made['turn']}/stream")
            (_, result) = (await ada.json("GET", f"/api/chats/{made['chat']}/turns/{made['turn']}"))["blocks"]
            assert (result["is_error"], "has no tool 'none'" in result["text"]) == (True, True)


@pytest.mark.asyncio
@pytest.mark.extensions("mcp")
async def test_an_app_of_a_server_of_an_owner_asks_as_the_model_does(
    database_url: str, document: Document, wiki: Wiki
) -> None:
    for declarations, approval in ((None, "always"), (UNASKED, "never")):
        tools = OwnServers(LOCAL, declarations=declarations).tools()
        assert {tools[f"own_servers__{name}"].policy.approval for name in ("call_tool", "call_from_app")} == {approval}
    wiki.meta = {"ui": {"resourceUri": "ui://wiki/page"}}
    async with site_with(database_url, document, new_master_key(), wiki) as site:
        await site.add(site.ada)
        turn = await site.asked(site.ada, "call_tool", server="wiki", name="find", input={"words": "tides"})
        await site.ada.events(turn.stream_url)
        made = await app_call(site.ada, turn, "find", words="moons")
        await site.ada.events(f"/api/chats/{made['chat']}/turns/{made['turn']}/stream")
        assert wiki.calls == ["tides", "moons"]
        await app_call(site.bob, turn, "find", 404, words="suns")


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.extensions("mcp", "encryption")
async def test_a_call_of_an_app_waits_without_a_replica_and_continues_on_another(database_url: str) -> None:
    settings: dict[str, Any] = {"master_key": new_master_key(), "encrypt_texts": True}
    async with place_with(database_url, None, ASKING, **settings) as place:
        chart = message_of(tool_use("apps__chart", {"place": "Sund"}, "a"))
        model, _ = place.server.scripts.provider(chart, message_of(text("See.")))
        turn = await place.ada.ask(await place.ada.chat(), model=model)
        made = await app_call(place.ada, turn, "erase", what="it")
        await waiting(place.ada, made)
    async with place_with(database_url, None, ASKING, **settings) as place:
        place.server.scripts.offers.append(ProviderModels(ScriptedProvider([]), [model]))
        assert await decided(place.ada, made, "approve") == "it is erased"


# --- clients of AG-UI ------------------------------------------------------------------------------------------------


async def run(client: Client, thread: str, messages: list[Any], props: dict[str, Any]) -> list[dict[str, Any]]:
    body = {"threadId": thread, "runId": "r", "protocolVersion": "1.0", "messages": messages, "forwardedProps": props}
    answer = await client.post("/api/ag-ui", json=body)
    assert answer.status_code == 200, answer.text
    frames = [frame.removeprefix("data: ") for frame in answer.text.split("\n\n") if frame.startswith("data: ")]
    return [json.loads(frame) for frame in frames]


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.extensions("mcp", "ag_ui", "inbox")
async def test_a_client_of_ag_ui_gets_an_app_by_the_convention_of_its_middleware(database_url: str) -> None:
    async with place_with(database_url, None, ASKING) as place:
        chart = message_of(tool_use("apps__chart", {"place": "Sund"}, "call_1"))
        model, provider = place.server.scripts.provider(chart, message_of(text("See.")))
        thread, ada = str(uuid4()), place.ada
        said = [{"id": "m1", "role": "user", "content": "Waves?"}]
        events = await run(ada, thread, said, {"turnstream": {"model": model}})
        (shown,) = (event for event in events if event.get("activityType") == "mcp-apps")
        content = shown["content"]
        assert (shown["type"], shown["replace"]) == ("ACTIVITY_SNAPSHOT", True)
        assert (content["resourceUri"], content["serverId"]) == ("ui://apps/chart", "apps")
        assert content["toolInput"] == {"place": "Sund"}
        assert content["result"]["structuredContent"] == {"result": [1, 3, 5, 2, 4]}
        messages = (await ada.json("GET", f"/api/ag-ui/threads/{thread}"))["messages"]
        (stored,) = (message for message in messages if message["role"] == "activity")
        assert (stored["id"], stored["content"]) == (shown["messageId"], content)

        async def asked(method: str, **params: Any) -> Any:
            sent = {"serverHash": content["serverHash"], "serverId": "apps", "method": method, "params": params}
            (*_, end) = await run(ada, thread, messages, {"__proxiedMCPRequest": sent})
            assert end["type"] == "RUN_FINISHED"
            return end["result"]

        (page,) = (await asked("resources/read", uri="ui://apps/chart"))["contents"]
        assert (page["mimeType"], "ui/initialize" in page["text"]) == ("text/html;profile=mcp-app", True)
        assert page["_meta"]["ui"]["csp"]["connectDomains"] == ["https://api.example.com"]
        called = await asked("tools/call", name="refresh", arguments={})
        assert (called["structuredContent"], called["isError"]) == ({"result": [7]}, False)
        assert "offers its apps no tool" in (await asked("tools/call", name="reckon"))["error"]
        assert "`method` must be" in (await asked("prompts/list"))["error"]
        assert await asked("ping") == {}
        turn = content["serverHash"].split(".")[1]
        (made, *_) = (await ada.json("GET", f"/api/mcp/apps/calls?turn={turn}"))["calls"]
        asking = asyncio.create_task(asked("tools/call", name="erase", arguments={"what": "it"}))
        async with ada.follow(f"/api/chats/{made['chat']}/stream") as changes:
            action = await anext(event.data async for event in changes if event.name == "action_required")
        (call,) = action["calls"]
        deny = {"type": "deny", "tool_use_id": call["tool_use_id"], "input_digest": call["input_digest"]}
        await ada.json(
            "POST", f"/api/chats/{made['chat']}/turns/{action['turn']}/actions", 202, json={"actions": [deny]}
        )
        assert (await asking)["isError"]
        assert len(provider.requests) == 2
