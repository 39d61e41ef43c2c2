"""HTTP tools with `auth = "oauth"`: a call waits until its owner has signed in, and then sends the owner's token."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from tests.extensions.mcp.oauth_issuer import OAuthIssuer, listening
from tests.extensions.mcp.test_sign_in import BASE, Browser, waiting
from tests.support.http_client import Client, Said
from tests.support.http_server import Server, serving
from tests.support.openapi_document import Document
from tests.support.server_process import free_port
from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.domain.turns import HttpCall, ToolSpec
from turnstream.extension import installed
from turnstream.extensions.http_tools.tool import HttpTools
from turnstream.extensions.owner_commands.owners import _erase
from turnstream.libraries.outgoing.addresses import Allowed
from turnstream.libraries.outgoing.owner_tokens import HttpService
from turnstream.libraries.secrets.sealing import new_master_key
from turnstream.libraries.tool_sources.programs import ToolSettings, open_toolset
from turnstream.main import running
from turnstream.scripted import message_of, text, tool_use
from turnstream.setup.toolset import declared_tools
from turnstream.tools.policy import Policy
from turnstream.tools.toolset import Toolset

pytestmark = pytest.mark.extensions("mcp", "http_tools", "tools_file")

SCHEMA = '{"type": "object"}'
TOOLS = """
[http.{name}]
url = "{url}/{name}"
description = "Calls the CRM."
input_schema = {{ type = "object" }}
internal = true
auth = "oauth"
issuer = "{issuer}"
"""


@dataclass
class Crm:
    """A service that accepts the tokens of `issuer`. `seen` lists the path and the Authorization header of each
    request.
    """

    url: str
    issuer: OAuthIssuer
    seen: list[tuple[str, str | None]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    elsewhere: str = ""

    @property
    def app(self) -> Starlette:
        return Starlette(routes=[Route("/{path:path}", self._answer, methods=["GET", "POST"])])

    async def _answer(self, request: Request) -> Response:
        path, sent = request.path_params["path"], request.headers.get("authorization")
        if path.startswith(".well-known"):
            return Response(status_code=404)
        self.seen.append((path, sent))
        self.keys.append(request.headers.get("idempotency-key", ""))
        family = self.issuer.family_of((sent or "").removeprefix("Bearer "))
        if path == "leaves":
            return RedirectResponse(self.elsewhere, 307)
        if family is None:
            return JSONResponse({"error": "no token"}, 401, {"WWW-Authenticate": "Bearer"})
        if path == "delete" and "crm.write" not in family.scopes:
            challenge = 'Bearer error="insufficient_scope", scope="crm.write"'
            return JSONResponse({"error": "scope"}, 403, {"WWW-Authenticate": challenge})
        return JSONResponse({"text": f"{path} for {family.subject} with {sent}"})


@dataclass
class Desk:
    server: Server
    client: Client
    crm: Crm
    issuer: OAuthIssuer
    key: str

    async def ask(self, *tools: str, client: Client | None = None) -> Said:
        client = client or self.client
        reply = message_of(*(tool_use(name, {}, f"call-{name}") for name in tools))
        model = self.server.scripts.model(reply, message_of(text("Done.")))
        return await client.say(await client.chat(), model=model)

    async def result(self, turn: Said, client: Client | None = None) -> str:
        events = await (client or self.client).events(turn.stream_url)
        assert events[-1].name == "turn_complete"
        blocks = (await (client or self.client).json("GET", turn.url))["blocks"]
        return json.dumps([block for block in blocks if block["type"] == "tool_result"])


@asynccontextmanager
async def places() -> AsyncIterator[tuple[OAuthIssuer, Crm]]:
    ports = free_port(), free_port()
    issuer = OAuthIssuer(f"http://127.0.0.1:{ports[0]}")
    crm = Crm(f"http://127.0.0.1:{ports[1]}", issuer)
    async with listening(issuer.app, ports[0]), listening(crm.app, ports[1]):
        yield issuer, crm


@pytest_asyncio.fixture
async def desk(database_url: str, document: Document) -> AsyncIterator[Desk]:
    async with desk_with(database_url, document) as desk:
        yield desk


@asynccontextmanager
async def desk_with(database_url: str, document: Document | None, *sign_in_by: str) -> AsyncIterator[Desk]:
    async with AsyncExitStack() as stack:
        issuer, crm = await stack.enter_async_context(places())
        http, key = await stack.enter_async_context(HttpTools(Allowed.of(["127.0.0.1"]))), new_master_key()
        service = HttpService(crm.url.partition("://")[2], crm.url, issuer.url, sign_in_by=sign_in_by)
        tools = [
            http.operator_tool(
                ToolSpec(name, "Calls the CRM.", SCHEMA, http=HttpCall(f"{crm.url}/{name}")), Policy(), service=service
            )
            for name in ("find", "count", "delete", "leaves")
        ]
        server = await stack.enter_async_context(
            serving(database_url, Toolset(tools), sign_in_url=BASE, master_key=key)
        )
        yield Desk(server, await stack.enter_async_context(Client(server.url, document)), crm, issuer, key)


async def sign_in(desk: Desk, turn: Said, client: Client | None = None) -> dict[str, Any]:
    action = await waiting(client or desk.client, turn)
    assert action["type"] == "sign_in"
    async with Browser(desk.server.url) as browser:
        consent = await browser.proceed(action["input"]["url"])
        back = await browser.open(consent.headers["location"])
        assert (await browser.open(back.headers["location"])).status_code == 200
    return action


async def test_calls_of_all_tools_of_a_host_wait_for_one_sign_in(desk: Desk) -> None:
    turn = await desk.ask("find", "count")
    action = await sign_in(desk, turn)
    assert action["input"]["server"] == desk.crm.url.partition("://")[2]
    result = await desk.result(turn)
    assert "find for ada" in result
    assert "count for ada" in result
    token = f"Bearer {desk.issuer.families[0].access[-1]}"
    assert sorted(desk.crm.seen) == [("count", token), ("find", token)], "no call was sent without a token"
    assert "access-" not in result, "a service that repeats the token does not show it to the model"
    assert len(desk.issuer.families) == 1
    (listed,) = (await desk.client.json("GET", "/api/sign-ins"))["sign_ins"]
    assert (listed["server"], listed["issuer"]) == (action["input"]["server"], desk.issuer.url)


@pytest.mark.extensions("mcp", "inbox")
async def test_the_principals_of_the_table_sign_in_to_the_service(database_url: str) -> None:
    async with desk_with(database_url, None, "person:grace") as desk:
        turn = await desk.ask("find")
        token = await desk.server.token("grace")
        async with Client(desk.server.url, None, token, "grace") as grace:
            await waiting(desk.client, turn)
            (call,) = (await grace.json("GET", "/api/approvals"))["calls"]
        link, grace_here = json.loads(call["input"])["url"], f"Bearer {token}"
        async with Browser(desk.server.url) as browser:
            bob_here = f"Bearer {await desk.server.token('bob')}"
            assert (await browser.open(link, authorization=bob_here)).status_code == 403
            shown = await browser.open(link, authorization=grace_here)
            (form,) = re.findall(r'<form method="post" action="([^"]+)">', shown.text)
            there = await browser.open(f"{link}{form}", "POST", grace_here)
            back = await browser.open(there.headers["location"])
            assert (await browser.open(back.headers["location"])).status_code == 200
        assert "find for ada" in await desk.result(turn)


async def test_a_refused_token_is_refreshed_once_and_the_call_keeps_its_key(desk: Desk) -> None:
    turn = await desk.ask("find")
    await sign_in(desk, turn)
    await desk.result(turn)
    # so the stored token is no longer the newest token, and the service rejects it
    desk.issuer.families[0].access.append("access-of-another-place")
    desk.crm.keys.clear()
    assert "count for ada" in await desk.result(await desk.ask("count"))
    assert desk.issuer.refreshes == 1
    assert (len(desk.crm.keys), len(set(desk.crm.keys))) == (2, 1)


async def test_a_consent_that_the_issuer_has_ended_is_asked_for_again(desk: Desk) -> None:
    turn = await desk.ask("find")
    await sign_in(desk, turn)
    await desk.result(turn)
    desk.issuer.end_sessions()
    turn = await desk.ask("find")
    await sign_in(desk, turn)
    assert "find for ada" in await desk.result(turn)
    assert len(desk.issuer.families) == 2


async def test_missing_scopes_are_asked_for(desk: Desk) -> None:
    turn = await desk.ask("find")
    await sign_in(desk, turn)
    await desk.result(turn)
    turn = await desk.ask("delete")
    action = await sign_in(desk, turn)
    assert "crm.write" in action["input"]["scopes"]
    assert "delete for ada" in await desk.result(turn)


async def test_a_redirect_to_another_origin_does_not_carry_the_token(desk: Desk) -> None:
    async with places() as (_, other):
        desk.crm.elsewhere = f"{other.url}/taken"
        turn = await desk.ask("find")
        await sign_in(desk, turn)
        await desk.result(turn)
        result = await desk.result(await desk.ask("leaves"))
        assert other.seen == [("taken", None)]
        assert "401" in result, "the refusal of another origin asks nobody to sign in"


async def test_owners_have_their_own_tokens_and_can_end_a_sign_in(desk: Desk, document: Document) -> None:
    turn = await desk.ask("find")
    await sign_in(desk, turn)
    await desk.result(turn)
    async with Client(desk.server.url, document, await desk.server.token("bob"), "bob") as bob:
        desk.issuer.subject = "bob"
        asked = await desk.ask("find", client=bob)
        await sign_in(desk, asked, bob)
        assert "find for bob" in await desk.result(asked, bob)
    name = desk.crm.url.partition("://")[2]
    ended = await desk.client.json("DELETE", f"/api/sign-ins/{name}")
    assert ended == {"revoked": name, "at_issuer": True}
    assert [family.revoked for family in desk.issuer.families] == [True, False]
    assert (await waiting(desk.client, await desk.ask("find")))["type"] == "sign_in"


async def test_an_erasure_revokes_the_tokens_of_http_tools(
    desk: Desk, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = await desk.ask("find")
    await sign_in(desk, turn)
    await desk.result(turn)
    file = tmp_path / "tools.toml"
    file.write_text(TOOLS.format(name="find", url=desk.crm.url, issuer=desk.issuer.url))
    settings = Settings(
        _env_file=None, database_url=database_url, tools_file=file, sign_in_url=BASE, master_key=desk.key
    )
    assert (await _erase(settings, "local"))["sign_ins"] == 1
    assert desk.issuer.families[0].revoked


def test_tools_with_a_sign_in_need_the_extension_of_sign_ins(tmp_path: Path) -> None:
    """A program that embeds the server passes its extensions as arguments, so the settings do not name them."""
    file = tmp_path / "tools.toml"
    file.write_text(TOOLS.format(name="find", url="http://127.0.0.1:9", issuer="http://127.0.0.1:9"))
    settings = Settings(_env_file=None, tools_file=file, sign_in_url=BASE)
    present = [installed()[name] for name in ("http_tools", "tools_file", "mcp")]
    assert declared_tools(settings, present, {}).loaded
    with pytest.raises(ConfigError, match=r"^`auth` of tools of .* needs the extension mcp"):
        declared_tools(settings, present[:2], {})


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        (TOOLS + 'headers = {{ authorization = "Bearer x" }}\n', "Authorization"),
        (TOOLS + "background = true\n", "cannot wait for a sign-in"),
        (TOOLS.replace('auth = "oauth"\n', ""), "`issuer` needs"),
        (TOOLS + 'client_secret = "s"\n', "`client_secret` needs"),
        (TOOLS + 'sign_in_by = ["secretary"]\n', "sign_in_by"),
        (TOOLS.replace("oauth", "exchange") + 'sign_in_by = ["role:secretary"]\n', "else nobody signs in"),
        (TOOLS + TOOLS.replace("http.{name}", "http.other") + 'scopes = ["more"]\n', "share a sign-in"),
    ],
)
async def test_wrong_tables_are_refused(tmp_path: Path, tables: str, words: str) -> None:
    file = tmp_path / "tools.toml"
    file.write_text(tables.format(name="find", url="http://127.0.0.1:9", issuer="http://127.0.0.1:9"))
    with pytest.raises(ConfigError, match=words):
        async with open_toolset([], ToolSettings(file=file)):
            pass


@pytest.mark.parametrize(
    ("left_out", "words"), [("sign_in_url", "TURNSTREAM_SIGN_IN_URL"), ("master_key", "TURNSTREAM_MASTER_KEY")]
)
async def test_a_start_without_the_address_or_the_key_is_refused(
    database_url: str, tmp_path: Path, left_out: str, words: str
) -> None:
    file = tmp_path / "tools.toml"
    file.write_text(TOOLS.format(name="find", url="http://127.0.0.1:9", issuer="http://127.0.0.1:9"))
    given: dict[str, Any] = {"sign_in_url": BASE, "master_key": new_master_key(), left_out: None}
    with pytest.raises(ConfigError, match=words):
        async with running(Settings(_env_file=None, database_url=database_url, model="demo", tools_file=file, **given)):
            pass


async def test_a_start_without_the_extension_for_sign_ins_is_refused(database_url: str, tmp_path: Path) -> None:
    file = tmp_path / "tools.toml"
    file.write_text(TOOLS.format(name="find", url="http://127.0.0.1:9", issuer="http://127.0.0.1:9"))
    settings = Settings(
        _env_file=None,
        database_url=database_url,
        model="demo",
        tools_file=file,
        extensions="http_tools,tools_file,demo",
    )
    with pytest.raises(ConfigError, match="needs the extension mcp, which this server leaves out"):
        async with running(settings):
            pass
