"""Approval by others: a policy names the approvers, and Postgres shows approvers only their own calls."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
import pytest_asyncio
from starlette.routing import Route

from tests.integration.api.test_waiting import calls_of, decision, finished, until_waiting
from tests.support.http_client import Client, Said
from tests.support.http_server import Server, serving
from tests.support.openapi_document import Document
from turnstream.domain.errors import StatementRefused
from turnstream.domain.identity import Identity
from turnstream.extensions.inbox.approval_rows import Approvals
from turnstream.libraries.audit_entries import newest_entries
from turnstream.scripted import message_of, text
from turnstream.storage.database import OWNER, Statement, connect
from turnstream.storage.row_security import admit, embedded_api_url
from turnstream.tools.policy import Policy
from turnstream.tools.tool import tool, tools_of
from turnstream.tools.toolset import Toolset

pytestmark = pytest.mark.asyncio(loop_scope="session")


@dataclass
class Bank:
    paid: list[int] = field(default_factory=list)

    @tool(approval="always", approvers=("role:manager", "person:grace"))
    async def pay(self, euros: int) -> str:
        """Pays."""
        self.paid.append(euros)
        return f"paid {euros}"


@pytest.fixture(scope="module")
def bank() -> Bank:
    return Bank()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def desk(shared_database_url: str, bank: Bank) -> AsyncIterator[Server]:
    async with serving(shared_database_url, Toolset(tools_of(bank))) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def clients(desk: Server, document: Document) -> AsyncIterator[Mapping[str, Client]]:
    """Yields clients of the owner, of two approvers, of a former approver, and of another person."""
    roles = {"approver": {"manager"}, "second": {"manager", "other"}, "former": {"other"}}
    names = {name: f"{name} {uuid4()}" for name in ("owner", "approver", "second", "former", "stranger")}
    async with AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(
                Client(desk.url, document, await desk.token(owner, roles=frozenset(roles.get(name, ()))), owner)
            )
            for name, owner in names.items()
        }


async def asked(server: Server, owner: Client, euros: int = 500) -> tuple[Said, Any]:
    """Returns a turn that waits for the approval of a payment, and the call."""
    model = server.scripts.model(calls_of(("pay", {"euros": euros}, "a")), message_of(text("Done.")))
    turn = await owner.say(await owner.chat(), model=model, tools=["pay"])
    waiting = await until_waiting(owner, turn)
    return turn, waiting["actions"][0]


async def test_the_owner_cannot_answer_a_call_that_others_approve(
    desk: Server, clients: Mapping[str, Client], bank: Bank
) -> None:
    turn, call = await asked(desk, clients["owner"], 1)
    for kind in ("approve", "deny"):
        refused = await clients["owner"].json(
            "POST", f"{turn.url}/actions", 403, json={"actions": [decision(kind, call)]}
        )
        assert "role:manager, person:grace" in refused["detail"]
    assert call["can_remember"] is False
    assert (await clients["owner"].json("GET", turn.url))["status"] == "waiting"
    assert 1 not in bank.paid


async def test_an_approver_sees_the_call_and_nothing_else_and_decides(
    desk: Server, clients: Mapping[str, Client], bank: Bank
) -> None:
    turn, call = await asked(desk, clients["owner"], 2)
    id = turn.url.rpartition("/")[2]
    page = await clients["approver"].json("GET", "/api/approvals?limit=200")
    (found,) = [each for each in page["calls"] if each["turn"] == id]
    assert {key: found[key] for key in ("name", "input", "tool_use_id", "type", "input_digest")} == {
        "name": "pay",
        "input": '{"euros":2}',
        "tool_use_id": "a",
        "type": "approval",
        "input_digest": call["input_digest"],
    }
    body = {"actions": [decision("approve", call)]}
    decided = await clients["approver"].json("POST", f"/api/approvals/{id}", json=body)
    assert decided == {"turn": id, "decided": ["a"]}
    ended = await finished(clients["owner"], turn)
    assert 2 in bank.paid
    (note,) = [block["notes"]["approval"] for block in ended["blocks"] if block["type"] == "tool_result"]
    assert note == {"decision": "approve", "by": clients["approver"].owner}
    late = await clients["second"].json("POST", f"/api/approvals/{id}", 409, json=body)
    assert late["code"] in {"call_answered", "call_over"}
    async with connect(desk.database_url, size=1) as database:
        entries = await newest_entries(database, clients["owner"].owner, "approval", 1, 10)
    (entry,) = [each for each in entries if each.detail["turn"] == id]
    assert (entry.kind, str(entry.actor).partition(":")[0]) == ("approval.given", "token")


@pytest.mark.parametrize("name", ["former", "stranger", "owner"])
async def test_nobody_else_sees_or_answers_it(desk: Server, clients: Mapping[str, Client], name: str) -> None:
    turn, call = await asked(desk, clients["owner"], 3)
    id = turn.url.rpartition("/")[2]
    assert (await clients[name].json("GET", "/api/approvals"))["calls"] == []
    await clients[name].json("POST", f"/api/approvals/{id}", 404, json={"actions": [decision("approve", call)]})


async def test_no_other_route_shows_an_approver_anything_of_the_turn(
    desk: Server, clients: Mapping[str, Client]
) -> None:
    turn, _ = await asked(desk, clients["owner"], 4)
    id, chat = turn.url.rpartition("/")[2], turn.url.split("/")[3]
    token = await desk.token(f"manager {uuid4()}", "read", "chat", "approve", roles=frozenset({"manager"}))
    headers = {"Authorization": f"Bearer {token}"}
    routes = [each for each in desk.app.routes if isinstance(each, Route) and "{chat}" in each.path]
    count = 0
    async with httpx2.AsyncClient(base_url=desk.url, headers=headers) as http:
        for route in routes:
            path = re.sub(r"{[^}]+}", str(uuid4()), route.path.replace("{chat}", chat).replace("{turn}", id))
            for method in set(route.methods or ()) - {"HEAD"}:
                answer = await http.request(method, path, json={} if method in {"POST", "PATCH", "PUT"} else None)
                assert answer.status_code in {400, 404, 422}, (method, path, answer.text)
                assert "euros" not in answer.text
                count += 1
    assert count > 15


async def test_of_two_simultaneous_decisions_one_wins_and_the_other_gets_a_refusal(
    desk: Server, clients: Mapping[str, Client], bank: Bank
) -> None:
    turn, call = await asked(desk, clients["owner"], 5)
    id = turn.url.rpartition("/")[2]
    async with connect(desk.database_url, size=1) as database, database.transaction() as held:
        await held.rows(Statement("SELECT FROM turns WHERE id = :turn FOR UPDATE"), turn=id)
        tokens = [clients[name] for name in ("approver", "second")]
        sent = [
            asyncio.create_task(each.request("POST", f"/api/approvals/{id}", json={"actions": [decision(kind, call)]}))
            for each, kind in zip(tokens, ("approve", "deny"), strict=True)
        ]
        while len(await held.rows(Statement("SELECT FROM pg_locks WHERE NOT granted"))) < 2:
            pass
    answers = sorted([response.status_code for response in await asyncio.gather(*sent)])
    assert answers == [200, 409]
    await finished(clients["owner"], turn)
    assert bank.paid.count(5) <= 1


async def test_postgres_believes_signed_principals_alone(desk: Server, clients: Mapping[str, Client]) -> None:
    turn, _ = await asked(desk, clients["owner"], 6)
    id = turn.url.rpartition("/")[2]
    url = await embedded_api_url(desk.database_url)
    key = await admit(desk.database_url, url)
    async with connect(url, size=1, key=key) as database:
        manager = Identity("somebody", roles=frozenset({"manager"}))
        assert len(await Approvals(database).of_turn(manager, turn=UUID(id))) == 1
        assert await Approvals(database).of_turn(Identity("somebody"), turn=UUID(id)) == []
        forged = Statement("SELECT * FROM asks_to_approve(:principals, NULL, 100)")
        with pytest.raises(Exception, match="not signed"):
            await database.rows(forged, principals='["role:manager"]')
        OWNER.set(clients["owner"].owner)
        answer = Statement(
            """UPDATE asks SET answer = '{"kind": "approve"}', answered_at = now() WHERE turn_id = :turn RETURNING 1"""
        )
        with pytest.raises(StatementRefused, match="is not answered by this request"):
            await database.rows(answer, turn=id)
        OWNER.set("somebody")
        assert await database.rows(Statement("SELECT * FROM asks WHERE turn_id = :turn"), turn=id) == []


async def test_a_short_lived_token_leaves_an_entry_that_names_who_made_it(
    desk: Server, clients: Mapping[str, Client]
) -> None:
    await clients["approver"].json("POST", "/api/tokens", json={"scopes": ["approve"]})
    async with connect(desk.database_url, size=1) as database:
        (entry,) = await newest_entries(database, clients["approver"].owner, "token.exchanged", 1, 10)
    assert str(entry.actor).startswith("token:")
    assert entry.detail["scopes"] == ["approve"]
    assert entry.detail["roles"] == ["manager"]


async def test_an_approver_has_one_of_two_forms() -> None:
    with pytest.raises(ValueError, match="`approvers` must have the form"):
        Policy(approval="always", approvers=("manager",))
