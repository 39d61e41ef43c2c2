"""Schedules and triggers on the page: how they are created, run, paused and deleted, with their next and last runs."""

import time
from collections.abc import AsyncIterator
from uuid import uuid4

import httpx2
import pytest
import pytest_asyncio
from playwright.async_api import Locator, expect

from tests.browser.conftest import SitDown
from tests.browser.person import Person
from tests.browser.test_budgets import violations
from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from turnstream.libraries.outgoing.signature import headers_of

pytestmark = [pytest.mark.extensions("schedules"), pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(loop_scope="session")
async def site(database_url: str) -> AsyncIterator[Server]:
    async with serving(database_url) as server:
        yield server


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_person_makes_schedules_and_triggers(people: SitDown, site: Server, scheme: str) -> None:
    async with Client(site.url) as api, httpx2.AsyncClient(trust_env=False) as other:
        ada = await people(site.url, color_scheme=scheme)
        await ada.page.get_by_role("button", name="Schedules and triggers").click()
        dialog = ada.page.get_by_role("dialog")
        await expect(dialog.get_by_text("There are none yet.")).to_be_visible()

        await dialog.get_by_label("Name", exact=True).fill("Tides")
        await dialog.get_by_label("Message", exact=True).fill("When is the tide high?")
        await dialog.get_by_label("Minutes between two messages").fill("90")
        await dialog.get_by_role("button", name="Create").click()
        tides = dialog.get_by_role("listitem").filter(has_text="Tides")
        await expect(tides).to_contain_text("every 90 minutes")
        await expect(tides).to_contain_text("next")
        await expect(dialog.get_by_text("There are none yet.")).to_be_hidden()
        (schedule,) = (await api.json("GET", "/api/schedules"))["schedules"]

        await tides.get_by_role("button", name="Run Tides now").click()
        await dialog.get_by_label("Name", exact=True).focus()  # the page does not redraw a focused field
        await expect(tides.get_by_role("link")).to_contain_text("done")
        await _pause_and_change(ada, dialog, tides, api, schedule["id"])

        await dialog.get_by_label("Sends").select_option("for each signed message")
        await dialog.get_by_label("Name", exact=True).fill("Builds")
        await dialog.get_by_label("Message", exact=True).fill("Why has it failed?")
        await dialog.get_by_role("button", name="Create").click()
        builds = dialog.get_by_role("listitem").filter(has_text="Builds")
        address = await builds.get_by_label("Address for messages", exact=True).input_value()
        first = await builds.get_by_label("Secret", exact=True).input_value()
        await builds.get_by_role("button", name="Make another secret of Builds").click()
        await expect(builds.get_by_label("Secret", exact=True)).not_to_have_value(first)
        second = await builds.get_by_label("Secret", exact=True).input_value()
        assert await violations(ada) == []
        for secret in (first, second):
            headers = headers_of(secret, uuid4().hex, int(time.time()), b"{}")
            assert (await other.post(address, content=b"{}", headers=headers)).status_code == 202
        await _change_trigger(ada, dialog, builds, api, other)
        await builds.get_by_role("button", name="Pause Builds").click()
        await expect(builds).to_contain_text("paused")
        await expect(builds.get_by_label("Secret", exact=True)).to_have_count(0)

        await dialog.get_by_label("Sends").select_option("by a cron expression")
        await dialog.get_by_label("Minute, hour, day, month, weekday").fill("every day")
        ada.expects("422")
        await dialog.get_by_role("button", name="Create").click()
        await expect(dialog.get_by_role("alert")).not_to_be_empty()

        await builds.get_by_role("button", name="Delete Builds").click()
        await ada.page.get_by_role("dialog").last.get_by_role("button", name="Delete", exact=True).click()
        await expect(builds).to_have_count(0)
        assert (await api.json("GET", "/api/triggers"))["triggers"] == []
        await tides.get_by_role("link").click()
        await expect(dialog).to_have_count(0)
        await expect(ada.page.get_by_role("heading", name="Tides")).to_be_visible()


async def _change_trigger(
    ada: Person, dialog: Locator, builds: Locator, api: Client, other: httpx2.AsyncClient
) -> None:
    (before,) = (await api.json("GET", "/api/triggers"))["triggers"]
    secret = await builds.get_by_label("Secret", exact=True).input_value()
    await builds.get_by_role("button", name="Change Builds").click()
    change = dialog.get_by_role("region", name="Change Builds")
    await expect(change.get_by_label("Messages in a minute, at most")).to_have_value("60")
    await expect(change.get_by_label("Sends")).to_have_count(0)  # a trigger cannot become a schedule
    await change.get_by_label("Message", exact=True).fill("Never mind.")
    await change.get_by_role("button", name="Cancel").click()
    (kept,) = (await api.json("GET", "/api/triggers"))["triggers"]
    assert (kept["request"], kept["per_minute"]) == (before["request"], 60)

    await builds.get_by_role("button", name="Change Builds").click()
    await expect(change.get_by_label("Message", exact=True)).to_have_value("Why has it failed?")
    await change.get_by_label("Message", exact=True).fill("Which step has failed?")
    await change.get_by_label("Messages in a minute, at most").fill("0")
    assert await violations(ada) == []
    ada.expects("422")
    await change.get_by_role("button", name="Save").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("per_minute")
    await change.get_by_label("Messages in a minute, at most").fill("6")
    await change.get_by_role("button", name="Save").click()
    await expect(builds).to_contain_text("signed messages, at most 6 in a minute")
    await expect(builds.get_by_label("Secret", exact=True)).to_have_value(secret)
    (after,) = (await api.json("GET", "/api/triggers"))["triggers"]
    assert (after["id"], after["path"], after["per_minute"]) == (before["id"], before["path"], 6)
    address = await builds.get_by_label("Address for messages", exact=True).input_value()
    headers = headers_of(secret, uuid4().hex, int(time.time()), b"{}")
    chat = (await other.post(address, content=b"{}", headers=headers)).json()["chat"]
    message, _ = (await api.json("GET", f"/api/chats/{chat}/turns"))["turns"]
    assert message["blocks"][0]["text"] == "Which step has failed?"


async def _pause_and_change(ada: Person, dialog: Locator, tides: Locator, api: Client, id: str) -> None:
    await tides.get_by_role("button", name="Pause Tides").click()
    await expect(tides).to_contain_text("paused")
    assert (await api.json("GET", f"/api/schedules/{id}"))["paused"] == "person"
    await tides.get_by_role("button", name="Resume Tides").click()
    await expect(tides).to_contain_text("next")

    await tides.get_by_role("button", name="Change Tides").click()
    change = dialog.get_by_role("region", name="Change Tides")
    await expect(change.get_by_label("Message", exact=True)).to_have_value("When is the tide high?")
    await change.get_by_label("Message", exact=True).fill("When is the tide low?")
    await change.get_by_label("Sends").select_option("by a cron expression")
    await change.get_by_label("Minute, hour, day, month, weekday").fill("30 7 * *")
    assert await violations(ada) == []
    ada.expects("422")
    await change.get_by_role("button", name="Save").click()
    await expect(dialog.get_by_role("alert")).not_to_be_empty()
    await change.get_by_label("Minute, hour, day, month, weekday").fill("30 7 * * *")
    await change.get_by_label("Time zone").fill("Europe/Berlin")
    await change.get_by_label("Messages that are late").select_option("are left out")
    await change.get_by_role("button", name="Save").click()
    await expect(tides).to_contain_text("30 7 * * * Europe/Berlin")
    changed = await api.json("GET", f"/api/schedules/{id}")
    assert (changed["missed"], changed["every"], changed["paused"]) == ("skip", None, None)
    assert changed["request"]["blocks"] == [{"type": "text", "text": "When is the tide low?"}]
