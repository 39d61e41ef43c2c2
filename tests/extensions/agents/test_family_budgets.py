"""A turn and all agents below it share one token budget."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from tests.support.agents import call, ended, post, results, script
from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from turnstream.domain.charges import Charge
from turnstream.domain.limits import FamilyUse
from turnstream.domain.rounds import BilledTokens
from turnstream.domain.turns import Limits, Turn, TurnRequest
from turnstream.extensions.agents.agent import Agent
from turnstream.extensions.agents.tool import agent_tool
from turnstream.llm.models.catalog import ProviderModels
from turnstream.llm.provider import ModelRequest
from turnstream.scripted import Reply, ScriptedProvider, message_of, text, tool_use
from turnstream.storage.owners.accounts import Accounts
from turnstream.tools.tool import tool
from turnstream.tools.toolset import Toolset

A_ROUND = 15  # tokens that each scripted reply uses
CHILDREN = "chats JOIN turns ON turns.chat_id = chats.id WHERE of_turn IS NOT NULL AND role = 'assistant'"


class Meeting:
    """A barrier: each call waits until `number` calls have joined."""

    def __init__(self, number: int) -> None:
        self._missing = number
        self._all = asyncio.Event()

    async def join(self) -> None:
        self._missing -= 1
        if self._missing <= 0:
            self._all.set()
        await self._all.wait()


@pytest.fixture
def meeting() -> Meeting:
    return Meeting(3)


@pytest.fixture
async def server(database_url: str, meeting: Meeting) -> AsyncIterator[Server]:
    @tool(read_only=True)
    async def look(place: int) -> str:
        """Look."""
        await meeting.join()
        return f"nothing at {place}"

    agents = [
        agent_tool(Agent("echo", "Answers.", "Answer in one word.")),
        agent_tool(Agent("scout", "Scouts.", "Scout.", tools=("look",), max_rounds=50)),
        agent_tool(Agent("lead", "Leads.", "Lead.", tools=("echo",))),
    ]
    async with serving(database_url, Toolset([*agents, look])) as started:
        yield started


@pytest.fixture
async def api(server: Server) -> AsyncIterator[Client]:
    async with Client(server.url) as client:
        yield client


def within(model: str, **limits: float) -> dict[str, Any]:
    return {**post(model), "limits": limits}


async def test_agents_side_by_side_use_one_budget_and_end_with_it(
    server: Server, api: Client, database_url: str
) -> None:
    """Each of the three agents alone would use up the budget."""
    count = 0

    def reply(request: ModelRequest) -> Reply:
        nonlocal count
        count += 1
        if request.system == "Scout.":
            return message_of(tool_use("look", {"place": count}, f"look_{count}"))
        return message_of(*(call("scout", name) for name in "abc"))

    model = f"script-{uuid4().hex}"
    server.scripts.offers.append(ProviderModels(ScriptedProvider(reply), [model]))
    budget = 12 * A_ROUND
    turn = await ended(api, await api.json("POST", "/api/turns", 201, json=within(model, budget_tokens=budget)))
    assert (turn["status"], turn["error"]["type"]) == ("error", "budget")
    assert turn["error"]["message"].startswith("The turn and its family have used ")
    connection = await asyncpg.connect(database_url)
    children = await connection.fetch(f"SELECT status, error->>'type' AS type FROM {CHILDREN}")
    used = await connection.fetchval("SELECT sum(input_tokens + output_tokens) FROM charges")
    left = await connection.fetchval("SELECT count(*) FROM reservations")
    await connection.close()
    assert [tuple(row) for row in children] == [("error", "budget")] * 3
    assert all("`limits.budget_tokens` is 180" in result for result in results(turn).values())
    assert turn["error"]["details"] == {"name": "budget_tokens", "limit": budget, "used": used}
    assert budget <= used <= budget + 2 * A_ROUND, "a reply that has begun comes to its end"
    assert left == 0


async def test_the_use_of_grandchildren_counts_and_a_call_without_budget_is_refused(
    server: Server, api: Client, database_url: str
) -> None:
    model, provider = script(
        server,
        message_of(call("lead", "a")),
        message_of(call("echo", "b")),
        message_of(text("Deep.")),
        message_of(text("Up.")),
        message_of(call("echo", "c")),
        message_of(text("Never.")),
    )
    turn = await ended(api, await api.json("POST", "/api/turns", 201, json=within(model, budget_tokens=5 * A_ROUND)))
    assert turn["error"]["type"] == "budget"
    assert turn["error"]["details"] == {"name": "budget_tokens", "limit": 75, "used": 75}
    assert results(turn)["a"] == "Up."
    assert "its family have used 75 tokens" in results(turn)["c"]
    assert len(provider.requests) == 5
    connection = await asyncpg.connect(database_url)
    roots = await connection.fetch("SELECT DISTINCT root_turn FROM charges WHERE root_turn IS NOT NULL")
    await connection.close()
    assert [row["root_turn"] for row in roots] == [UUID(turn["id"])]


async def test_an_agent_has_the_seconds_that_the_turn_has_left(server: Server, api: Client) -> None:
    model, _ = script(server, message_of(call("echo", "a")), message_of(text("One.")), message_of(text("So.")))
    turn = await ended(api, await api.json("POST", "/api/turns", 201, json=within(model, budget_seconds=600)))
    data = next(block["data"] for block in turn["blocks"] if block["type"] == "tool_result")
    child = await server.services.storage.turns.get("local", UUID(data["chat"]), UUID(data["turn"]))
    assert child.request is not None
    assert child.request.root_turn == UUID(turn["id"])
    assert child.request.limits.budget_seconds is not None
    assert 0 < child.request.limits.budget_seconds < 600


async def test_simultaneous_calls_see_the_reservations_of_each_other(server: Server) -> None:
    """Each of the ten requests reserves ten tokens of a budget of 35. Four requests start, because the earlier
    reservations are still below the budget.
    """
    accounts, root = Accounts(server.services.storage.database), uuid4()
    request = TurnRequest("plain", limits=Limits(budget_tokens=35), root_turn=root)
    turns = [Turn(uuid4(), uuid4(), None, "assistant", "running", 1, request) for _ in range(10)]
    charge = Charge("round", "1.1", "plain", BilledTokens(10, 0, 0, 0), None)
    took = await asyncio.gather(*(accounts.take_of_family("ada", root, turn, charge) for turn in turns))
    assert sorted(use.tokens for use in took) == [0, 10, 20, 30, *[40] * 6]
    assert await accounts.family_use("ada", root) == FamilyUse(40, 0)
    first = next(turn for turn, use in zip(turns, took, strict=True) if use.tokens == 0)
    assert (await accounts.take_of_family("ada", root, first, charge)).tokens == 30, "once, however often"
    assert await accounts.family_use("ada", root) == FamilyUse(40, 0)
