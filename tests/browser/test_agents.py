"""The card of an agent call: its state and cost, the link to the agent's chat, and its stop button."""

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.browser.conftest import SitDown
from tests.browser.scenes import paused
from tests.browser.test_budgets import violations
from tests.browser.test_talk import use
from tests.support.agents import call
from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from turnstream.domain.rounds import Prices
from turnstream.extensions.agents.agent import Agent
from turnstream.extensions.agents.tool import agent_tool
from turnstream.llm.models.catalog import Model, ProviderModels
from turnstream.scripted import Pause, ScriptedProvider, message_of, text, tool_use
from turnstream.tools.tool import tool
from turnstream.tools.toolset import Toolset

pytestmark = [pytest.mark.extensions("agents"), pytest.mark.asyncio(loop_scope="session")]


@tool(approval="always")
async def pay() -> str:
    """Pay."""
    return "paid"


@pytest_asyncio.fixture(loop_scope="session")
async def site(database_url: str) -> AsyncIterator[Server]:
    scout = agent_tool(Agent("scout", "Scouts.", "Scout.", tools=("pay",)))
    async with serving(database_url, Toolset([scout, pay])) as server:
        yield server


async def test_the_card_of_an_agent_shows_its_state_and_cost_opens_its_chat_and_stops_it(
    people: SitDown, site: Server, api: Client
) -> None:
    pause = Pause()
    replies = [message_of(call("scout", "a")), message_of(tool_use("pay", {}, "b")), paused(pause, "Half ", "whole.")]
    name, provider = f"priced-{uuid4().hex}", ScriptedProvider([*replies, message_of(text("Then not."))])
    site.scripts.offers.append(ProviderModels(provider, [Model(name, prices=Prices(1_000.0, 10_000.0))]))
    ada = await people(site.url, await use(api, name))
    await ada.say("Research it")
    card = ada.page.locator(".card", has_text="scout").first
    await expect(card.locator(".where")).to_have_text("Waits")
    await expect(ada.page.locator(f'#chats [data-chat="{ada.chat}"] .jobs')).to_have_text("1 running")

    (root,) = [turn for turn in (await api.json("GET", f"/api/chats/{ada.chat}/turns"))["turns"] if turn["jobs"]]
    child = root["jobs"][0]["child"]
    path = f"/api/chats/{child['chat']}/turns/{child['turn']}"
    (asked,) = (await api.json("GET", path))["actions"]
    approval = {"type": "approve", "tool_use_id": asked["tool_use_id"], "input_digest": asked["input_digest"]}
    await api.json("POST", f"{path}/actions", 202, json={"actions": [approval]})
    await pause.reached.wait()
    await expect(card.locator(".where")).to_have_text("Works")
    await expect(card.locator(".cost")).to_contain_text("0.")
    assert await violations(ada) == []

    await card.get_by_role("link", name="Open the chat of scout").click()
    await expect(ada.page.locator(".turn.assistant").last).to_contain_text("Half")
    await ada.page.go_back()
    await card.get_by_role("button", name="Stop this call of scout").click()
    await expect(card).to_have_attribute("data-state", "stopped")
    await expect(card.locator(".job")).to_be_hidden()
    await ada.sees("Then not.")
    await api.events(f"{path}/stream")
    assert (await api.json("GET", path))["status"] == "cancelled"
