"""Forms on the page: approvals, a yes-or-no question, a location, and the token."""

import json

import pytest

from tests.browser.conftest import SitDown
from tests.browser.person import new_tab
from tests.browser.scenes import Harbour, one_call
from tests.browser.test_talk import use
from tests.support.http_client import Client
from tests.support.http_server import Server
from turnstream.scripted import message_of, text

pytestmark = pytest.mark.asyncio(loop_scope="session")

BERTH = {"port": "Cuxhaven", "nights": 2}


async def test_a_call_runs_when_it_is_allowed(people: SitDown, site: Server, api: Client, harbour: Harbour) -> None:
    ada = await people(
        site.url, await use(api, site.scripts.model(one_call("book_berth", BERTH), message_of(text("Booked."))))
    )
    await ada.say("Book a berth")
    await ada.page.locator(".ask .input").get_by_text('"Cuxhaven"').wait_for()
    assert harbour.booked == []
    await ada.sees_what_is_stored(api)
    await ada.press("Allow")
    await ada.sees_end()
    assert harbour.booked == ["Cuxhaven 2"]
    await ada.sees_what_is_stored(api)


@pytest.mark.full
async def test_a_call_runs_with_the_input_that_a_person_edited(
    people: SitDown, site: Server, api: Client, harbour: Harbour
) -> None:
    ada = await people(
        site.url, await use(api, site.scripts.model(one_call("book_berth", BERTH), message_of(text("Booked."))))
    )
    await ada.say("Book a berth")
    await ada.press("Edit", ada.page.locator(".ask"))
    field = ada.page.get_by_role("textbox", name="Input of book_berth")
    await field.fill('{"port": "Hamburg", "nights": "many"}')
    ada.expects("422")
    await ada.press("Allow")
    await ada.page.locator(".ask .trouble").get_by_text("nights").wait_for()
    await field.fill('{"port": "Hamburg", "nights": 3}')
    await ada.press("Allow")
    await ada.sees_end()
    assert harbour.booked == ["Hamburg 3"]
    await ada.sees_what_is_stored(api)
    await ada.page.get_by_text("allowed, with another input").wait_for()


@pytest.mark.full
async def test_a_call_is_allowed_for_the_chat_until_that_is_revoked(
    people: SitDown, site: Server, api: Client, harbour: Harbour
) -> None:
    calls = [one_call("book_berth", {**BERTH, "nights": nights}, f"call-{nights}") for nights in (2, 3, 4)]
    replies = [reply for call in calls for reply in (call, message_of(text("Booked.")))]
    ada = await people(site.url, await use(api, site.scripts.model(*replies)))
    await ada.say("Book a berth")
    await ada.page.get_by_text("For this chat, only where").click()
    await ada.page.get_by_label('port is "Cuxhaven"').check()
    await ada.press("Allow for this chat")
    await ada.sees_end()
    await ada.say("And another")
    await ada.page.locator("#turns .turn").nth(3).wait_for()
    await ada.sees_end()
    assert harbour.booked == ["Cuxhaven 2", "Cuxhaven 3"]
    await ada.sees_what_is_stored(api)  # also unfolds the calls
    await ada.sees("allowed for this chat")
    await ada.press("Model and settings")
    await ada.page.locator("#grants").get_by_text('where port is "Cuxhaven"').wait_for()
    await ada.press("Revoke book_berth")
    await ada.page.locator("#grants li").wait_for(state="detached")
    await ada.press("Keep as it was")
    await ada.say("And a third")
    await ada.press("Deny", ada.page.locator(".ask"))
    await ada.sees_end()
    assert len(harbour.booked) == 2
    await ada.sees_what_is_stored(api)


@pytest.mark.full
async def test_a_denial_tells_the_model_why_and_closes_the_question_in_every_tab(
    people: SitDown, site: Server, api: Client, harbour: Harbour
) -> None:
    chat = await use(api, site.scripts.model(one_call("book_berth", BERTH), message_of(text("Then not."))))
    ada = await people(site.url, chat)
    await ada.say("Book a berth")
    other = await new_tab(ada.context, f"{site.url}/#{chat}")
    await other.page.locator(".ask").wait_for()
    await ada.page.get_by_role("textbox", name="Reason").fill("too dear")
    await ada.press("Deny")
    for tab in (ada, other):
        await tab.sees_end()
        await tab.page.locator(".ask").wait_for(state="detached")
    assert harbour.booked == []
    turns = await ada.sees_what_is_stored(api)
    assert "too dear" in turns[1]["blocks"][1]["text"]
    assert other.troubles() == []


async def test_a_tool_that_runs_asks_a_person_by_a_form(people: SitDown, site: Server, api: Client) -> None:
    model = site.scripts.model(one_call("register", {"ship": "Swan"}), message_of(text("Registered.")))
    ada = await people(site.url, await use(api, model))
    await ada.say("Register the Swan")
    await ada.page.get_by_text("Who sails the Swan?", exact=True).wait_for()
    await ada.page.locator("#waiting summary").get_by_text("1 call waits for you").wait_for()
    await ada.press("Answer")  # the button has no effect while the form is incomplete
    await ada.page.get_by_label("Captain").fill("Ada")
    await ada.page.get_by_label("Crew").fill("3")
    await ada.page.get_by_label("Flag").select_option("blue")
    await ada.page.get_by_label("Carries cargo").check()
    await ada.press("Answer")
    await ada.sees_end()
    turns = await ada.sees_what_is_stored(api)
    (result,) = [block["text"] for block in turns[1]["blocks"] if block["type"] == "tool_result"]
    assert json.loads(result) == {"captain": "Ada", "crew": 3, "flag": "blue", "cargo": True}
    await ada.page.locator("#waiting").wait_for(state="hidden")


@pytest.mark.full
async def test_the_page_runs_tools_of_its_own(people: SitDown, site: Server, api: Client) -> None:
    model = site.scripts.model(
        one_call("confirm", {"question": "Shall I go on?"}, "call-1"),
        one_call("geolocation", {"reason": "for the nearest port"}, "call-2"),
        message_of(text("You are in Cuxhaven.")),
    )
    place = {"latitude": 53.86, "longitude": 8.7}
    ada = await people(site.url, geolocation=place, permissions=["geolocation"])
    await ada.press("Model and settings")
    await ada.page.get_by_label("Model", exact=True).fill(model)
    await ada.press("Save")
    await ada.page.locator("#settings").wait_for(state="hidden")
    await ada.say("Where am I?")
    await ada.page.get_by_text("Shall I go on?", exact=True).wait_for()
    await ada.press("Yes")
    await ada.page.get_by_text("for the nearest port", exact=True).wait_for()
    await ada.press("Share my place")
    await ada.sees_end()
    turns = await ada.sees_what_is_stored(api)
    results = [block["text"] for block in turns[1]["blocks"] if block["type"] == "tool_result"]
    assert results[0] == '{"confirmed":true}'
    assert '"latitude":53.86' in results[1]


async def test_a_token_is_asked_for_once_and_never_in_a_url(people: SitDown, site: Server) -> None:
    token = await site.token("ada")
    asked: list[str] = []
    ada = await people(f"{site.url}/static/theme.js")
    ada.page.on("request", lambda request: asked.append(request.url))
    ada.expects("401", "favicon")
    await ada.page.goto(site.url)
    await ada.page.get_by_label("Token", exact=True).fill(token)
    await ada.press("Go on")
    await ada.ready()
    await ada.say("Hello")
    await ada.sees_end()
    await ada.reload()
    await ada.sees_end()
    assert not any(token in url for url in asked)
    assert await ada.page.locator("#ask-token[open]").count() == 0
