"""Notes of the server within an answer: shortened tool results, and the verdict on an output."""

import asyncio
import re

import pytest
from playwright.async_api import Route

from tests.browser.conftest import SitDown
from tests.browser.test_talk import use
from tests.support.http_client import Client
from tests.support.http_server import Server, pausing
from turnstream.llm.models.catalog import Model, ProviderModels
from turnstream.scripted import Pause, Reply, ScriptedProvider, message_of, text, tool_use

pytestmark = pytest.mark.asyncio(loop_scope="session")

CAN = frozenset({"tools", "structured_output"})
YEAR = {
    "type": "object",
    "properties": {"year": {"type": "integer"}},
    "required": ["year"],
    "additionalProperties": False,
}


def reads(day: int) -> Reply:
    return message_of(tool_use("logbook", {"day": day}, f"call-{day}"), usage={"input_tokens": 1000 * day})


async def test_one_line_shows_shortened_results_and_the_verdict_on_an_output_with_the_facts_folded(
    people: SitDown, site: Server, api: Client
) -> None:
    outputs = [message_of(text(year)) for year in ('{"year": "late"}', '{"year": 1969}')]
    replies = [*map(reads, range(1, 8)), message_of(text("A quiet week.")), *outputs]
    site.scripts.offers.append(
        ProviderModels(ScriptedProvider(replies), [Model("pilot-1", context_window=6000, can=CAN)])
    )
    chat = await use(api, "pilot-1", "The week of the pilot")
    said = await api.ask(f"/api/chats/{chat}", "What happened this week?", limits={"max_rounds": 9})
    ada = await people(site.url, chat)
    await api.say(f"/api/chats/{chat}", "In which year was the harbour built?", output={"schema": YEAR})
    await ada.sees("Output accepted")
    done = next(block["data"] for block in said.assistant["blocks"] if block["type"] == "shortened")
    sent = 500 * done["results"]
    lines = await ada.page.locator(".aside > summary").all_inner_texts()
    characters = f"{sent + done['left_out']:,} → {sent:,} characters"
    assert lines[0] == f"{done['results']} older tool results sent shortened · {characters}"
    assert lines[-2:] == ["Output not accepted: `year`: 'late' is not of type 'integer'.", "Output accepted"]
    await ada.page.locator(".aside > summary").first.click()
    facts = ada.page.locator(".aside .facts").first
    assert await facts.locator("dt").all_inner_texts() == ["From", "To", "Before", "Now"]
    last = done["last"]["round"]
    values = await facts.locator("dd").all_inner_texts()
    assert values[:2] == ["round 1 of this answer", f"round {last} of this answer"]
    await ada.sees_what_is_stored(api)


@pytest.mark.full
async def test_a_reached_limit_is_shown_below_the_answer(people: SitDown, site: Server, api: Client) -> None:
    chat = await use(api, site.scripts.model(reads(1), message_of(text("A quiet day."))))
    said = await api.ask(f"/api/chats/{chat}", "What happened?", limits={"max_rounds": 1})
    (reached,) = said.assistant["degraded"]
    assert (reached["what"], reached["limit"], reached["used"]) == ("max_rounds", 1, 1)
    ada = await people(site.url, chat)
    await ada.sees("The limit of tool rounds was reached (1 of 1).")


@pytest.mark.full
async def test_an_answer_that_does_not_move_says_why(people: SitDown, site: Server, api: Client) -> None:
    pause = Pause()
    ada = await people(site.url)
    await ada.page.clock.install()
    chat = await use(api, site.scripts.model(pausing(pause, "Hel", "lo.")))
    await ada.open(chat)
    await ada.say("Good evening")
    await pause.reached.wait()
    await ada.page.locator(".turn.assistant").wait_for()
    why = ada.page.locator(".turn.assistant .why", has_text=re.compile("model|replica|queue"))
    while not await why.count():  # which reason is first depends on the replica's latest report
        await ada.page.clock.fast_forward(11_000)
    asked, ended = asyncio.Event(), asyncio.Event()

    async def hold(route: Route) -> None:
        asked.set()
        await ended.wait()
        await route.continue_()

    await ada.page.route("**/why", hold)
    await ada.page.clock.fast_forward(11_000)
    await asked.wait()
    pause.go.set()
    await ada.page.clock.resume()
    await ada.sees_end()
    async with ada.page.expect_response("**/why") as late:
        ended.set()
    await (await late.value).finished()
    assert await ada.page.locator(".why:empty").count() == await ada.page.locator(".why").count()
