"""Approval links: a manager who has the link from a webhook can decide about one call, and can do nothing else."""

import asyncio
import re
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx2
import pytest
import pytest_asyncio
from aiohttp import web
from starlette.routing import Route

from tests.integration.api.test_waiting import calls_of, finished
from tests.support.http_client import Client, Said
from tests.support.http_server import Server, serving
from tests.support.openapi_document import Document
from tests.support.pages import blocks
from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.extensions.approval_links import signer_of
from turnstream.extensions.approval_links.links import Link, LinkSigner
from turnstream.libraries.audit_entries import newest_entries
from turnstream.libraries.tool_sources.tables import PolicyTable
from turnstream.scripted import message_of, text
from turnstream.storage.database import connect
from turnstream.tools.tool import tool, tools_of
from turnstream.tools.toolset import Toolset

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.extensions("approval_links", "webhooks")]

OPEN = ("/api/session", "/api/shared/")  # routes that need no credential, or that check a credential of another kind
URL = "https://chat.example.org"
(_POLICY,) = blocks("docs/approvals.md", "Approval by others", "toml")
(_SETTINGS,) = blocks("docs/approvals.md", "Approval links", "sh")
# The policy and the settings that docs/approvals.md shows.
POLICY = PolicyTable(**tomllib.loads(_POLICY)["policy"]["pay"]).options()
DOCUMENTED: dict[str, Any] = {
    name.removeprefix("TURNSTREAM_").lower(): value
    for name, _, value in (line.partition("=") for line in _SETTINGS.splitlines())
}
NEW, OLD = DOCUMENTED["approval_link_secrets"], "o" * 32
SCANNED = "<script>alert(1)</script>"


@dataclass
class Bank:
    paid: list[int] = field(default_factory=list)

    @tool(**POLICY)
    async def pay(self, euros: int, to: str = SCANNED) -> str:
        """Pays."""
        self.paid.append(euros)
        return f"paid {euros} to {to}"


@dataclass
class Receiver:
    """The operator's server, which receives the webhook of each turn."""

    port: int = 0
    heard: dict[str, asyncio.Future[Any]] = field(default_factory=dict)

    def of(self, turn: str) -> asyncio.Future[Any]:
        return self.heard.setdefault(turn, asyncio.get_running_loop().create_future())

    async def _hear(self, request: web.BaseRequest) -> web.Response:
        data = (await request.json())["data"]
        if not (future := self.of(data["turn"])).done():
            future.set_result(data)
        return web.Response(status=204)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        runner = web.ServerRunner(web.Server(self._hear), shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = runner.addresses[0][1]
        try:
            yield
        finally:
            await runner.cleanup()


@dataclass
class Desk:
    server: Server
    receiver: Receiver
    bank: Bank
    owner: Client
    http: httpx2.AsyncClient

    async def asked(self, euros: int) -> tuple[Said, dict[str, str]]:
        """Starts a turn that waits for an approval. Returns the turn, and the path of each approver's link."""
        model = self.server.scripts.model(
            calls_of(("pay", {"euros": euros, "to": SCANNED}, "a")), message_of(text("Done."))
        )
        turn = await self.owner.say(await self.owner.chat(), model=model, tools=["pay"])
        data = await self.receiver.of(turn.url.rpartition("/")[2])
        (call,) = data["calls"]
        assert all(each["url"].startswith(f"{URL}/approvals/") for each in call["links"])
        return turn, {each["for"]: urlsplit(each["url"]).path for each in call["links"]}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def desk(shared_database_url: str, document: Document) -> AsyncIterator[Desk]:
    bank, receiver = Bank(), Receiver()
    async with (
        receiver.listening(),
        serving(
            shared_database_url,
            Toolset(tools_of(bank)),
            **{
                **DOCUMENTED,
                "webhook_url": f"http://127.0.0.1:{receiver.port}/",
                "approval_link_secrets": f"{NEW},{OLD}",
            },
        ) as server,
    ):
        owner = f"owner {uuid4()}"
        async with (
            Client(server.url, document, await server.token(owner), owner) as client,
            httpx2.AsyncClient(base_url=server.url) as http,
        ):
            yield Desk(server, receiver, bank, client, http)


async def test_a_manager_approves_by_link(desk: Desk) -> None:
    turn, links = await desk.asked(1)
    assert links.keys() == {"role:manager", "person:grace"}
    link = links["role:manager"]
    await desk.http.head(link)
    shown = await desk.http.get(link)
    assert (shown.status_code, shown.headers["cache-control"]) == (200, "no-store")
    assert "pay" in shown.text
    assert SCANNED not in shown.text
    assert "&lt;script&gt;" in shown.text
    assert "script-src" not in shown.headers["content-security-policy"]
    assert 1 not in desk.bank.paid
    taken = await desk.http.post(link, data={"decision": "approve"})
    assert (taken.status_code, "approved" in taken.text) == (200, True)
    ended = await finished(desk.owner, turn)
    assert desk.bank.paid.count(1) == 1
    (note,) = [block["notes"]["approval"] for block in ended["blocks"] if block["type"] == "tool_result"]
    assert note == {"decision": "approve", "by": "role:manager"}
    for path in links.values():
        assert (await desk.http.get(path)).status_code == 409
        assert (await desk.http.post(path, data={"decision": "deny"})).status_code == 409
    async with connect(desk.server.database_url, size=1) as database:
        entries = await newest_entries(database, desk.owner.owner, "approval", 1, 10)
    (entry,) = [each for each in entries if each.detail["turn"] == turn.url.rpartition("/")[2]]
    assert str(entry.actor).startswith("link:")


async def test_a_denial_has_the_reason_and_the_person(desk: Desk) -> None:
    turn, links = await desk.asked(2)
    await desk.http.post(links["person:grace"], data={"decision": "deny", "reason": "Too much."})
    ended = await finished(desk.owner, turn)
    (block,) = [block for block in ended["blocks"] if block["type"] == "tool_result"]
    assert block["notes"]["approval"] == {"decision": "denied", "by": "grace"}
    assert "Too much." in block["text"]


async def test_of_two_simultaneous_decisions_one_wins_and_the_other_gets_a_refusal(desk: Desk) -> None:
    turn, links = await desk.asked(3)
    answers = await asyncio.gather(
        desk.http.post(links["role:manager"], data={"decision": "approve"}),
        desk.http.post(links["person:grace"], data={"decision": "deny"}),
    )
    assert sorted(each.status_code for each in answers) == [200, 409]
    await finished(desk.owner, turn)


async def test_a_link_that_was_changed_expired_or_revoked_answers_nothing(desk: Desk) -> None:
    turn, links = await desk.asked(4)
    link, id = links["role:manager"], turn.url.rpartition("/")[2]
    token = link.rpartition("/")[2]
    signer = LinkSigner(URL, (NEW,), 60)
    signed = signer.verify(token)
    assert signed is not None
    payload, _, signature = token.partition(".")
    forged = [
        (LinkSigner(URL, ("x" * 32,), 60).sign(signed), 404),
        (f"{payload}.{signature[:-2]}AA", 404),
        (f"{payload}.{signature}=", 404),
        (f"{token}.{signature}", 404),
        ("x", 404),
        ("é", 404),
        (signer.sign(signed._replace(expires_at=1)), 410),
        (signer.sign(signed._replace(digest="0" * 64)), 404),
        (signer.sign(signed._replace(turn=uuid4())), 404),
        (signer.sign(signed._replace(principal="role:clerk")), 410),
    ]
    for wrong, status in forged:
        for method, data in (("GET", None), ("POST", {"decision": "approve"})):
            answer = await desk.http.request(method, f"/approvals/{wrong}", data=data)
            assert (answer.status_code, "euros" in answer.text) == (status, False), wrong
    for body in ({}, {"decision": "maybe"}, {"decision": "deny", "reason": "x" * 3000}):
        assert (await desk.http.post(link, data=body)).status_code == 422
    assert (await desk.http.post(link, content=b"x" * 20_000)).status_code == 413
    old = replace(signer, secrets=(OLD,)).sign(signed)
    # links that were signed with the old secret are still valid
    assert (await desk.http.get(f"/approvals/{old}")).status_code == 200
    stranger = await desk.server.token(f"stranger {uuid4()}")
    address = f"{turn.url}/links/a"
    headers = {"Authorization": f"Bearer {stranger}"}
    assert (await desk.http.delete(address, headers=headers)).status_code == 404
    assert (await desk.http.get(link)).status_code == 200
    assert (await desk.owner.json("DELETE", address)) == {"revoked": id}
    for path in links.values():
        assert (await desk.http.post(path, data={"decision": "approve"})).status_code == 410
    assert (await desk.owner.json("GET", turn.url))["status"] == "waiting"
    assert 4 not in desk.bank.paid


async def test_the_token_of_a_link_opens_no_other_route(desk: Desk) -> None:
    turn, links = await desk.asked(5)
    token, chat = links["role:manager"].rpartition("/")[2], turn.url.split("/")[3]
    id, count = turn.url.rpartition("/")[2], 0
    for route in (each for each in desk.server.app.routes if isinstance(each, Route)):
        if not route.path.startswith(("/api", "/v1")) or route.path.startswith(OPEN):
            continue
        path = re.sub(r"{[^}]+}", str(uuid4()), route.path.replace("{chat}", chat).replace("{turn}", id))
        for method in set(route.methods or ()) - {"HEAD"}:
            for headers, query in (({"Authorization": f"Bearer {token}"}, ""), ({}, f"?access_token={token}")):
                answer = await desk.http.request(method, path + query, headers=headers)
                assert answer.status_code == 401, (method, path)
                count += 1
    assert count > 60


def settings(**given: Any) -> Settings:
    return Settings(_env_file=None, **given)


async def test_settings_that_make_no_link_are_refused() -> None:
    assert signer_of(settings()) is None
    with pytest.raises(ConfigError, match="must be set together"):
        signer_of(settings(approval_link_url=URL))
    with pytest.raises(ConfigError, match="at least 32 characters"):
        signer_of(settings(approval_link_url=URL, approval_link_secrets=f"{NEW},short"))
    made = signer_of(settings(approval_link_url=URL, approval_link_secrets=f" {NEW} , {OLD}"))
    assert made is not None
    link = Link(uuid4(), "a", "d", "person:grace", 1)
    assert made.verify(LinkSigner(URL, (OLD,), 1).sign(link)) == link
    assert made.sign(link) == LinkSigner(URL, (NEW,), 1).sign(link)
