"""How the page shows models, costs and errors, and what a person can do after an error."""

import pytest
from playwright.async_api import expect

from tests.browser.conftest import SitDown
from tests.browser.scenes import paused
from tests.browser.test_budgets import violations
from tests.browser.test_talk import use
from tests.integration.test_charges import PRICES
from tests.support.http_client import Client
from tests.support.http_server import Server
from turnstream.domain.errors import PermanentError, TransientError
from turnstream.llm.models.catalog import Model, ProviderModels
from turnstream.scripted import Pause, Reply, ScriptedProvider, message_of, text

pytestmark = pytest.mark.asyncio(loop_scope="session")


def offer(site: Server, *replies: Reply) -> None:
    """Adds a model with these capabilities and prices. `replies` are its answers."""
    able = Model(
        "tide-1", context_window=200_000, can=frozenset({"images", "tools"}), prices=PRICES["scripted"], currency="EUR"
    )
    site.scripts.offers.append(ProviderModels(ScriptedProvider(replies), [able]))


async def test_the_page_shows_the_model_for_its_choice_and_under_each_answer_with_its_cost(
    people: SitDown, site: Server, api: Client
) -> None:
    usage = {"input_tokens": 1_000, "output_tokens": 2_000}
    offer(site, message_of(text("One."), usage=usage), message_of(text("Two."), usage=usage))
    ada = await people(site.url)
    picker, cost = ada.page.locator("#open-models"), ada.page.locator("#cost")
    await expect(picker).to_have_text("plain")
    await picker.click()
    option = ada.page.get_by_role("button", name="tide-1")
    await expect(option).to_contain_text("images, tools")
    await expect(option).to_contain_text("reads 200,000 tokens")
    await expect(option).to_contain_text("€1 in, €10 out for a million tokens")
    assert await violations(ada) == []
    await option.click()
    await expect(picker).to_have_text("tide-1")
    await ada.say("Hello")
    await ada.sees("One.")
    await expect(ada.last.locator(".figures")).to_contain_text("tide-1")
    await expect(ada.last.locator(".figures")).to_contain_text("cost €0.021")
    await expect(cost).to_have_text("cost €0.021")
    await ada.reload()
    await expect(ada.last.locator(".figures")).to_contain_text("cost €0.021")
    await picker.click()
    await ada.page.get_by_role("button", name="plain default").click()
    await expect(picker).to_have_text("plain")
    assert (await api.json("GET", f"/api/chats/{ada.chat}"))["settings"]["model"] == "plain"
    await ada.last.get_by_label("More").click()
    await ada.press("Answer again with …")
    await ada.page.get_by_role("button", name="tide-1").click()
    await ada.sees("Two.")
    await ada.sees_end()
    assert (await ada.sees_what_is_stored(api))[-1]["model"] == "tide-1"


@pytest.mark.parametrize(
    ("failure", "acts"),
    [
        (PermanentError("authentication_error", "invalid x-api-key"), "Invalid x-api-key. The operator of this server"),
        pytest.param(
            PermanentError("invalid_request_error", "No such image."),
            "Another model may take it",
            marks=pytest.mark.full,
        ),
        pytest.param(
            TransientError("overloaded_error", "Overloaded"), "a problem that may pass", marks=pytest.mark.full
        ),
    ],
)
async def test_a_failure_says_who_must_act_and_offers_it(
    people: SitDown, site: Server, api: Client, failure: PermanentError | TransientError, acts: str
) -> None:
    begun = list(message_of(text("The tide is ", "high.")))[:3]
    limits = {"max_recoveries": 0}
    chat = await use(api, site.scripts.model([*begun, failure], message_of(text("On."))), limits=limits)
    ada = await people(site.url, chat)
    await ada.say("When?")
    await ada.page.locator(".failure", has_text=acts).wait_for()
    assert await violations(ada) == []
    await ada.press("Go on from here")
    await ada.sees("On.")
    await ada.sees_end()
    assert len(await ada.sees_what_is_stored(api)) == 4


@pytest.mark.full
async def test_another_model_is_chosen_for_an_answer_that_failed(people: SitDown, site: Server, api: Client) -> None:
    chat = await use(api, site.scripts.model([PermanentError("billing_error", "No credit.")]))
    ada = await people(site.url, chat)
    await ada.say("When?")
    await ada.press("Choose another model")
    await ada.page.get_by_role("button", name="plain").click()
    await ada.sees("Hello.")
    await ada.sees_end()
    await ada.last.get_by_text("2 / 2").wait_for()


@pytest.mark.full
async def test_the_list_marks_chats_with_an_answer_that_nobody_has_seen_and_a_notification_leads_there(
    people: SitDown, site: Server, api: Client
) -> None:
    pause = Pause()
    chat = await use(api, site.scripts.model(paused(pause, "One ", "two.")), "Tides")
    failing = await use(api, site.scripts.model([PermanentError("billing_error", "No credit.")]), "Money")
    ada = await people(site.url, chat, permissions=["notifications"])
    await ada.page.evaluate(
        """() => {
          window.noted = []
          window.Notification = class extends EventTarget {
            static permission = 'granted'
            static requestPermission = async () => 'granted'
            constructor(title, options) { super(); window.noted.push([title, options.body]); window.note = this }
            close() {}
          }
        }"""
    )
    await ada.press("Notifications: off")
    await ada.say("Count")
    await ada.sees("One")
    await ada.page.click("#new-chat")
    await api.say(f"/api/chats/{failing}")
    await ada.page.get_by_role("img", name="The answer failed").wait_for()
    await ada.page.evaluate("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
    pause.go.set()
    await ada.page.get_by_role("img", name="A new answer").wait_for()
    await ada.page.wait_for_function("() => window.noted.length")
    assert await ada.page.evaluate("window.noted") == [["Tides", "The answer is complete."]]
    await ada.page.evaluate("delete document.hidden")
    await ada.reload()
    await ada.page.get_by_role("img", name="A new answer").wait_for()
    await ada.page.get_by_role("link", name="Tides").click()
    await expect(ada.page.get_by_role("img", name="A new answer")).to_have_count(0)
    await ada.page.click("#new-chat")
    await ada.reload()  # the feed repeats recent events
    await ada.page.get_by_role("img", name="The answer failed").wait_for()
    await expect(ada.page.get_by_role("img", name="A new answer")).to_have_count(0)
    await expect(ada.page.get_by_role("img", name="The answer failed")).to_have_count(1)


@pytest.mark.full
async def test_escape_stops_from_anywhere_and_a_key_shows_the_keys(people: SitDown, site: Server, api: Client) -> None:
    ada = await people(site.url, await use(api, site.scripts.model(paused(Pause(), "I begin ", "and never end."))))
    await ada.say("Talk")
    await ada.sees("I begin")
    await ada.page.locator("#transcript").focus()
    await ada.page.keyboard.press("?")
    await ada.page.get_by_role("dialog", name="Keys").get_by_text("stops the answer").wait_for()
    assert await violations(ada) == []
    await ada.page.keyboard.press("Escape")
    await ada.page.get_by_role("dialog", name="Keys").wait_for(state="hidden")
    await ada.page.locator("#transcript").focus()
    await ada.page.keyboard.press("Escape")
    await ada.sees_end("cancelled")
    await ada.last.get_by_role("button", name="Go on from here").wait_for()
