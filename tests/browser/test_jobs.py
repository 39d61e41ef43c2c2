"""Background calls: their cards, a button that stops one call, and their number in the list of chats."""

import asyncio
import re
from dataclasses import dataclass, field

import pytest
from playwright.async_api import Locator, expect

from tests.browser.conftest import SitDown
from tests.browser.person import Person, new_tab
from tests.browser.scenes import Harbour
from tests.browser.test_talk import use
from tests.support.http_client import Client
from tests.support.http_server import Server
from turnstream.scripted import message_of, text, tool_use
from turnstream.tools.tool import Detached, PersonQuestion, ToolContext, tool

pytestmark = pytest.mark.asyncio(loop_scope="session")


@dataclass
class Yard(Harbour):
    """A harbour with tools that run in the background."""

    done: dict[str, asyncio.Event] = field(default_factory=dict)

    @tool(background=True, read_only=True)
    async def survey(self, context: ToolContext, ship: str) -> str:
        """Surveys a ship."""
        context.progress(f"below the waterline of the {ship}")
        await self.done.setdefault(ship, asyncio.Event()).wait()
        return f"The {ship} is sound."

    @tool(background=True)
    async def pilot(self, context: ToolContext) -> str | Detached:
        """Sends a pilot, whom the person names."""
        if context.handle is None:
            form = '{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}'
            return Detached("asked", question=PersonQuestion("Which pilot?", 600, form))
        answer = context.answer
        return "No pilot came." if answer is None or answer.content is None else f"{answer.content['name']} came."

    @tool(background=True, reports=True, read_only=True)
    async def salvage(self, ship: str) -> str:
        """Salvages a ship, and reports."""
        await self.done.setdefault(ship, asyncio.Event()).wait()
        return f"The {ship} is afloat."


@pytest.fixture
def harbour() -> Harbour:
    return Yard()


async def surveys(people: SitDown, site: Server, api: Client, *ships: str) -> Person:
    """Returns a person whose answer has one background call for each ship."""
    calls = [tool_use("survey", {"ship": ship}, f"call-{ship}") for ship in ships]
    ada = await people(
        site.url, await use(api, site.scripts.model(message_of(*calls), message_of(text("That is all."))))
    )
    await ada.say("Survey them")
    for ship in ships:
        await expect(card(ada, ship).locator(".news")).to_have_text(f"below the waterline of the {ship}")
        await expect(card(ada, ship).locator(".where")).to_have_text("In the background")
    return ada


def card(person: Person, ship: str) -> Locator:
    return person.page.locator(".card", has_text=f'"{ship}"')


async def test_a_stop_is_that_of_one_call_in_all_tabs(
    people: SitDown, site: Server, api: Client, harbour: Yard
) -> None:
    ada = await surveys(people, site, api, "Anna", "Berta", "Clara")
    listed = ada.page.locator(f'#chats [data-chat="{ada.chat}"] .jobs')
    await expect(listed).to_have_text("3 running")
    await expect(ada.page.get_by_role("img", name="Answering")).to_have_count(1)  # the turn waits only for a job
    await expect(ada.page.locator(".turn.assistant .stage")).to_have_text("3 calls in the background")
    other = await new_tab(ada.context, f"{site.url}/#{ada.chat}")  # it missed all reports, like a page after a reload
    for tab in (other, ada):
        await expect(card(tab, "Berta").locator(".news")).to_have_text("below the waterline of the Berta")
        await expect(card(tab, "Berta").get_by_role("timer")).to_have_text(re.compile(r"\d+:\d\d"))
    await card(other, "Berta").get_by_role("button", name="Stop this call of survey").focus()
    await other.page.keyboard.press("Enter")
    for tab in (ada, other):
        await expect(card(tab, "Berta")).to_have_attribute("data-state", "stopped")
        await expect(card(tab, "Berta").locator(".job")).to_be_hidden()
        await expect(card(tab, "Anna").locator(".job")).to_be_visible()
    await expect(listed).to_have_text("2 running")
    await ada.reload()
    await expect(card(ada, "Clara").locator(".where")).to_have_text("In the background")
    for event in harbour.done.values():
        event.set()
    for tab in (ada, other):
        await tab.sees_end()
        await expect(card(tab, "Anna")).to_have_attribute("data-state", "done")
    await expect(listed).to_have_count(0)
    await ada.sees_what_is_stored(api)
    assert other.troubles() == []


async def test_the_page_catches_up_with_jobs_after_its_connection_was_lost(
    people: SitDown, site: Server, api: Client, harbour: Yard
) -> None:
    ada = await surveys(people, site, api, "Anna", "Berta")
    ada.expects("ERR_INTERNET_DISCONNECTED", "ERR_NETWORK_CHANGED")
    await ada.context.set_offline(True)
    turn = (await api.json("GET", f"/api/chats/{ada.chat}/turns"))["turns"][-1]
    await api.json("POST", f"/api/chats/{ada.chat}/turns/{turn['id']}/calls/call-Anna/cancel", 202)
    await ada.context.set_offline(False)
    await expect(card(ada, "Anna")).to_have_attribute("data-state", "stopped")
    await expect(ada.page.locator("#chats .jobs")).to_have_text("1 running")
    harbour.done["Berta"].set()
    await ada.sees_end()


async def test_a_report_begins_an_answer_of_its_own_without_an_empty_message(
    people: SitDown, site: Server, api: Client, harbour: Yard
) -> None:
    call = message_of(tool_use("salvage", {"ship": "Dora"}, "call-Dora"))
    words = [message_of(text(said)) for said in ("It is under way.", "Dora floats.")]
    ada = await people(site.url, await use(api, site.scripts.model(call, *words)))
    await ada.say("Raise the Dora")
    await expect(ada.page.locator(".turn.assistant").last).to_contain_text("It is under way.")
    first = (await api.json("GET", f"/api/chats/{ada.chat}/turns"))["turns"][-1]
    assert [(report["name"], report["delivery"]) for report in first["reports"]] == [("salvage", None)]
    harbour.done.setdefault("Dora", asyncio.Event()).set()
    for _ in range(2):  # the notes are checked live, and after a reload
        answers = ada.page.locator(".turn.assistant")
        await expect(answers).to_have_count(2)
        await expect(answers.last).to_contain_text("Result of salvage, from the background")
        await expect(answers.last).to_contain_text("Dora floats.")
        await expect(ada.page.locator(".turn.user:visible")).to_have_count(1)
        await ada.reload()
    (report,) = (await api.json("GET", f"/api/chats/{ada.chat}/turns/{first['id']}"))["reports"]
    assert (report["state"], report["delivery"], report["round"]) == ("settled", "started", 0)


async def test_a_call_that_reports_is_stopped_after_its_turn_has_ended_in_all_tabs(
    people: SitDown, site: Server, api: Client, harbour: Yard
) -> None:
    calls = [tool_use("salvage", {"ship": ship}, f"call-{ship}") for ship in ("Dora", "Emma")]
    words = [message_of(text(said)) for said in ("They are under way.", "Dora is lost.", "Emma floats.")]
    ada = await people(site.url, await use(api, site.scripts.model(message_of(*calls), *words)))
    await ada.say("Raise them")
    await expect(ada.page.locator(".turn.assistant").last).to_contain_text("They are under way.")
    other = await new_tab(ada.context, f"{site.url}/#{ada.chat}")
    listed = [tab.page.locator(f'#chats [data-chat="{ada.chat}"] .jobs') for tab in (ada, other)]
    for tab in (ada, other):
        for ship in ("Dora", "Emma"):
            await expect(card(tab, ship)).to_have_attribute("data-state", "running")
            await expect(card(tab, ship).locator(".where")).to_have_text("In the background")
            await expect(card(tab, ship).get_by_role("timer")).to_have_text(re.compile(r"\d+:\d\d"))
    for count in listed:
        await expect(count).to_have_text("2 running")
    await expect(ada.page.get_by_role("img", name="Answering")).to_have_count(0)
    await card(other, "Dora").get_by_role("button", name="Stop this call of salvage").click()
    for tab in (other, ada):
        await expect(card(tab, "Dora")).to_have_attribute("data-state", "stopped")
        await expect(card(tab, "Dora").locator(".job")).to_be_hidden()
        await expect(card(tab, "Dora").locator(".news")).to_have_text("Its report begins an answer below")
        await expect(tab.page.locator(".turn.assistant").last).to_contain_text("Dora is lost.")
        await expect(card(tab, "Emma").locator(".job")).to_be_visible()
    for count in listed:
        await expect(count).to_have_text("1 running")
    await ada.reload()
    await expect(listed[0]).to_have_text("1 running")
    await expect(ada.page.get_by_role("img", name="A new answer")).to_have_count(0)
    harbour.done["Emma"].set()
    for tab in (ada, other):
        await expect(tab.page.locator(".turn.assistant").last).to_contain_text("Emma floats.")
        await expect(card(tab, "Emma")).to_have_attribute("data-state", "done")
        await expect(card(tab, "Emma").locator(".job")).to_be_hidden()
    for count in listed:
        await expect(count).to_have_count(0)
    assert other.troubles() == []


async def test_a_question_of_a_call_in_the_background_is_answered_in_a_form(
    people: SitDown, site: Server, api: Client
) -> None:
    ada = await people(
        site.url,
        await use(api, site.scripts.model(message_of(tool_use("pilot", {}, "a")), message_of(text("Thanks.")))),
    )
    await ada.say("Send a pilot")
    form = ada.page.locator(".ask")
    await expect(form).to_contain_text("Which pilot?")
    await ada.sees_what_is_stored(api)
    other = await new_tab(ada.context, f"{site.url}/#{ada.chat}")
    await expect(other.page.locator(".ask")).to_contain_text("Which pilot?")
    await form.get_by_role("textbox").fill("Ada")
    await ada.press("Answer", form)
    await ada.sees_end()
    await expect(ada.page.locator(".card", has_text="Ada came.")).to_have_count(1)
    await expect(other.page.locator(".ask")).to_have_count(0)
    await ada.sees_what_is_stored(api)
