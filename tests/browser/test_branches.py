"""Branches on the page: they continue from an earlier answer, are copied into a new chat, and are deleted here or by
another client.
"""

import pytest

from tests.browser.conftest import SitDown
from tests.browser.person import Person, new_tab
from tests.browser.test_talk import use
from tests.support.http_client import Client
from tests.support.http_server import Server
from turnstream.libraries.copies.cutting import LEFT_OUT
from turnstream.scripted import message_of, text, tool_use

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def choose(person: Person, entry: str, turn: int) -> None:
    """Chooses an entry of the n-th turn's menu."""
    shown = person.page.locator("#turns .turn").nth(turn)
    await shown.hover()
    await shown.get_by_label("More").click()
    await shown.get_by_role("button", name=entry).click()


async def talk(people: SitDown, site: Server, api: Client, *messages: str) -> Person:
    """Returns a person whose messages have one answer each."""
    chat = await use(api, site.scripts.model(*(message_of(text(f"On {words}.")) for words in [*messages, "more", "x"])))
    ada = await people(site.url, chat)
    for words in messages:
        await ada.say(words)
        await ada.sees(f"On {words}.")
        await ada.sees_end()
    return ada


async def test_a_branch_begins_behind_an_earlier_answer(people: SitDown, site: Server, api: Client) -> None:
    ada = await talk(people, site, api, "tides", "winds")
    await choose(ada, "Branch from here", 1)
    await ada.page.get_by_text("On winds.").wait_for(state="detached")
    await ada.say("ports")
    await ada.sees("On more.")
    await ada.sees_end()
    path = await ada.sees_what_is_stored(api)
    assert len(path) == 4
    assert len(path[2]["siblings"]) == 2
    await ada.press("Previous question", ada.page.locator("#turns .turn").nth(2))
    await ada.sees("On winds.")


@pytest.mark.full
async def test_a_branch_begins_behind_a_part_of_an_answer(people: SitDown, site: Server, api: Client) -> None:
    calls = message_of(text("I look."), tool_use("doc_tree", {}, "c"))
    model = site.scripts.model(calls, message_of(text("Nothing there.")), message_of(text("On more.")))
    ada = await people(site.url, await use(api, model))
    await ada.say("Any?")
    await ada.sees("Nothing there.")
    await ada.sees_end()
    await choose(ada, "Branch after a part", 1)
    await ada.page.get_by_role("button", name="Branch after this part").nth(1).click()
    await ada.page.get_by_text("Nothing there.").wait_for(state="detached")
    await ada.sees("A fork left out what came after this.")
    await ada.say("And then?")
    await ada.sees("On more.")
    await ada.sees_end()
    path = await ada.sees_what_is_stored(api)
    assert [block["type"] for block in path[1]["blocks"]] == ["text", "tool_use", "tool_result"]
    assert path[1]["blocks"][2]["text"] != LEFT_OUT
    assert ada.troubles() == []


@pytest.mark.full
async def test_a_new_chat_continues_from_an_earlier_answer(people: SitDown, site: Server, api: Client) -> None:
    ada = await talk(people, site, api, "tides", "winds")
    before = ada.chat
    await choose(ada, "New chat from here", 1)
    await ada.page.wait_for_function("(chat) => !location.hash.includes(chat)", arg=before)
    await ada.page.get_by_text("On winds.").wait_for(state="detached")
    await ada.sees("On tides.")
    await ada.say("ports")
    await ada.sees("On more.")
    await ada.sees_end()
    assert len(await ada.sees_what_is_stored(api)) == 4
    await ada.page.get_by_role("link", name="tides (fork)").wait_for()


async def test_a_deleted_turn_disappears_from_every_page_of_the_chat(
    people: SitDown, site: Server, api: Client
) -> None:
    ada = await talk(people, site, api, "tides", "winds")
    other = await new_tab(ada.context, ada.page.url)
    await other.sees("On winds.")
    await choose(ada, "Delete from here", 2)
    await ada.press("Delete")
    for person in (ada, other):
        await person.page.get_by_text("On winds.").wait_for(state="detached")
        await person.sees("On tides.")
    await other.say("ports")
    for person in (ada, other):
        await person.sees("On more.")
        await person.sees_end()
        assert len(await person.sees_what_is_stored(api)) == 4


@pytest.mark.full
async def test_the_branch_beside_a_deleted_one_is_shown(people: SitDown, site: Server, api: Client) -> None:
    ada = await talk(people, site, api, "tides", "winds")
    await ada.press("Answer again", ada.last)
    await ada.sees("On more.")
    await ada.sees_end()
    await choose(ada, "Delete from here", 3)
    await ada.press("Delete")
    await ada.sees("On winds.")
    await ada.page.get_by_text("On more.").wait_for(state="detached")
    path = await ada.sees_what_is_stored(api)
    assert path[3]["siblings"] == [path[3]["id"]]
    assert await ada.last.get_by_label("Previous answer").count() == 0
    assert ada.troubles() == []
