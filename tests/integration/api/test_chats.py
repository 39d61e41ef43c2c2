import asyncio
from uuid import UUID

import pytest

from tests.integration.api.conftest import NewOwner
from tests.support.http_client import Client, said
from tests.support.http_server import Server, pausing
from tests.support.locks import Locker
from turnstream.libraries.searches import places
from turnstream.scripted import Pause, message_of, text, thinking

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_chat_that_was_created_can_be_read(api: Client) -> None:
    body = {"title": "Tides", "system_prompt": "Be brief.", "settings": {"model": "plain", "limits": {"max_rounds": 2}}}
    created = await api.post("/api/chats", json=body)
    assert created.status_code == 201
    assert {name: created.json()[name] for name in body} == body
    assert (await api.get(created.headers["location"])).json() == created.json()


async def test_a_chat_can_be_created_with_nothing_to_say_about_it(api: Client) -> None:
    for answer in (await api.post("/api/chats"), await api.post("/api/chats", json={})):
        chat = answer.json()
        assert (chat["title"], chat["system_prompt"], chat["settings"]) == (None, None, {})


async def test_provider_parameters_are_kept_as_they_were_given(api: Client) -> None:
    params = {"thinking": {"type": "enabled", "budget": 10**30, "none": None, "b": 1, "a": [1.5, {"x": "é"}]}}
    chat = await api.chat(settings={"params": params})
    assert (await api.json("GET", chat))["settings"] == {"params": params}


@pytest.mark.extensions("documents")
async def test_a_change_of_settings_keeps_omitted_members_and_null_removes(api: Client) -> None:
    settings = {
        "model": "plain",
        "params": {"max_tokens": 9, "stop_sequences": ["x"]},
        "tools": ["doc_view"],
        "limits": {"max_rounds": 2, "recovery": "retry"},
    }
    chat = await api.chat(system_prompt="Be brief.", settings=settings)
    for changes, expected in (
        ({}, settings),
        ({"tools": []}, {"tools": []}),
        ({"params": {"max_tokens": 5}}, {"params": {"max_tokens": 5, "stop_sequences": ["x"]}}),
        ({"params": {"stop_sequences": None}}, {"params": {"max_tokens": 5}}),
        ({"params": {"temperature": None}}, {}),
        ({"limits": {"max_rounds": None, "max_recoveries": 1}}, {"limits": {"recovery": "retry", "max_recoveries": 1}}),
    ):
        settings = {**settings, **expected}
        changed = await api.json("PATCH", chat, json={"settings": changes})
        assert (changed["settings"], changed["system_prompt"]) == (settings, "Be brief.")
    gone = {"model": None, "params": None, "tools": None}
    assert (await api.json("PATCH", chat, json={"settings": gone}))["settings"] == {"limits": settings["limits"]}
    assert (await api.json("PATCH", chat, json={"settings": None}))["settings"] == {}


async def test_settings_that_are_changed_at_once_are_all_kept(api: Client) -> None:
    chat = await api.chat()
    limits = {"max_rounds": 1, "max_failed_rounds": 2, "max_recoveries": 3, "compact_at": 0.5}
    changes = [{"settings": {"limits": {name: value}}} for name, value in limits.items()]
    await asyncio.gather(*(api.json("PATCH", chat, json=change) for change in changes))
    assert (await api.json("GET", chat))["settings"] == {"limits": limits}


async def test_a_parameter_is_that_of_the_model_which_the_chat_then_has(api: Client) -> None:
    chat = await api.chat(settings={"params": {"max_tokens": 9}})
    refused = await api.json("PATCH", chat, 422, json={"settings": {"model": "none such", "params": {"seed": 1}}})
    assert [error["field"] for error in refused["errors"]] == ["settings.model"]
    refused = await api.json("PATCH", chat, 422, json={"settings": {"params": {"seed": 1}}})
    assert [error["field"] for error in refused["errors"]] == ["settings.params.seed"]
    assert (await api.json("GET", chat))["settings"] == {"params": {"max_tokens": 9}}


async def test_chats_are_listed_last_changed_first_page_by_page(api: Client) -> None:
    chats = [await api.chat(title=str(number)) for number in range(5)]
    await api.json("PATCH", chats[1], json={"title": "1 again"})
    await api.say(chats[0])
    pages, before = [], None
    while True:
        page = await api.json("GET", "/api/chats", params={"limit": 2} | ({"before": before} if before else {}))
        pages.append([chat["title"] for chat in page["chats"]])
        before = page["next"]
        if before is None:
            break
    assert pages == [["0", "1 again"], ["4", "3"], ["2"]]


async def test_a_page_that_is_exactly_full_has_no_next_one(api: Client) -> None:
    for _ in range(2):
        await api.chat()
    assert (await api.json("GET", "/api/chats?limit=2"))["next"] is None
    assert (await api.json("GET", "/api/chats?limit=1"))["next"] is not None


async def test_the_mark_of_a_page_may_be_pasted_into_an_address_unencoded(api: Client) -> None:
    first, second = await api.chat(), await api.chat()
    mark = (await api.json("GET", "/api/chats?limit=1"))["next"]
    page = await api.json("GET", f"/api/chats?before={mark}")
    assert [f"/api/chats/{chat['id']}" for chat in page["chats"]] == [first] != [second]


@pytest.mark.parametrize(
    "before",
    [
        "x",
        "_",
        "2026-01-01",
        f"2026-01-01_{UUID(int=1)}",
        f"2026-01-01T00:00:00_{UUID(int=1)}",
        f"0001-01-01T00:00:00+14:00_{UUID(int=1)}",
        f"9999-12-31T23:59:59-14:00_{UUID(int=1)}",
        "2026-01-01T00:00:00+00:00_1",
        "\0",
    ],
)
async def test_a_mark_that_was_never_given_is_refused(api: Client, before: str) -> None:
    refused = await api.json("GET", "/api/chats", 400, params={"before": before})
    assert refused["errors"][0]["field"] == "before"


async def test_members_that_a_change_leaves_out_stay(api: Client) -> None:
    chat = await api.chat(title="A", system_prompt="B", settings={"tools": []})
    changed = await api.json("PATCH", chat, json={"title": "C"})
    assert (changed["title"], changed["system_prompt"], changed["settings"]) == ("C", "B", {"tools": []})
    assert await api.json("PATCH", chat, json={}) == await api.json("GET", chat)


async def test_null_in_a_change_clears(api: Client) -> None:
    chat = await api.chat(title="A", system_prompt="B", settings={"tools": []})
    changed = await api.json("PATCH", chat, json={"title": None, "system_prompt": None, "settings": None})
    assert (changed["title"], changed["system_prompt"], changed["settings"]) == (None, None, {})


async def test_two_changes_at_once_are_both_kept(api: Client, database: Locker) -> None:
    chat = await api.chat(title="A", system_prompt="B")
    identity = UUID(chat.rpartition("/")[2])
    async with database.holding("UPDATE chats SET title = 'C' WHERE id = $1", identity, commit=True):
        change = asyncio.create_task(api.json("PATCH", chat, json={"system_prompt": "D"}))
        await database.waiting()
    await change
    changed = await api.json("GET", chat)
    assert (changed["title"], changed["system_prompt"]) == ("C", "D")


async def test_a_chat_without_a_title_gets_the_beginning_of_its_first_message(api: Client) -> None:
    chat = await api.chat()
    await api.ask(chat, "  Why are there\n tides? ")
    await api.ask(chat, "And else?")
    assert (await api.json("GET", chat))["title"] == "Why are there tides?"


@pytest.mark.parametrize(
    ("words", "title"), [("word " * 30, "word " * 11 + "word…"), ("é" * 60, "é" * 60), (" \n ", None)]
)
async def test_a_title_made_from_words_is_one_short_line_or_none(api: Client, words: str, title: str | None) -> None:
    answer = await api.json("POST", "/api/turns", 201, json=said(words))
    assert (await api.json("GET", f"/api/chats/{answer['user_turn']['chat_id']}"))["title"] == title


async def test_a_given_title_stays(api: Client) -> None:
    chat = await api.chat(title="Mine")
    await api.say(chat, "Words")
    assert (await api.json("GET", chat))["title"] == "Mine"


async def test_a_chat_that_was_deleted_is_gone_with_its_turns(api: Client) -> None:
    chat = await api.chat()
    turn = await api.ask(chat)
    assert await api.json("DELETE", chat) == {"deleted": chat.rpartition("/")[2]}
    for path in (chat, f"{chat}/turns", turn.url, turn.stream_url):
        await api.json("GET", path, 404)
    await api.json("DELETE", chat, 404)
    assert (await api.json("GET", "/api/chats"))["chats"] == []


async def test_deleting_a_chat_stops_its_turn_and_ends_its_streams(api: Client, server: Server) -> None:
    pause = Pause()
    model, provider = server.scripts.provider(pausing(pause, "One ", "two."))
    chat = await api.chat()
    turn = await api.say(chat, model=model)
    async with api.follow(turn.stream_url) as events:
        async for event in events:
            if event.name == "block_delta":
                break
        await pause.reached.wait()
        await api.json("DELETE", chat)
        *_, end = [event async for event in events if event.id is not None]
        assert (end.name, end.data["stop_reason"]) == ("turn_cancelled", "deleted")
    assert turn.stream_url
    assert provider.requests
    assert not server.services.live.directory.running(UUID(turn.assistant["id"]))


async def found(api: Client, q: str, **more: str) -> list[str]:
    return [chat["title"] for chat in (await api.json("GET", "/api/chats", params={"q": q, **more}))["chats"]]


async def test_chats_are_found_by_their_title_and_their_messages(api: Client, server: Server) -> None:
    model = server.scripts.model(message_of(thinking("Of whales."), text("Die Flut kommt um VIER.")))
    for title, words in (("Ärger im Hafen", "Any ferries?"), ("100% sure_", "Nothing"), ("Sailing", "Tides?")):
        chat = await api.chat(title=title)
        await api.ask(chat, words, model=model if title == "Sailing" else "plain")
    assert await found(api, "hafen") == ["Ärger im Hafen"]
    assert await found(api, "ÄRGER") == ["Ärger im Hafen"]
    assert await found(api, "tide vier") == ["Sailing"], "each word somewhere: in the question, in the answer"
    assert await found(api, "hello") == ["100% sure_", "Ärger im Hafen"]
    assert await found(api, "sure_ %") == ["100% sure_"], "no character stands for another"
    assert await found(api, "tide ferries") == []
    assert await found(api, "whales") == [], "what was thought was not said"
    assert await found(api, " ") == ["Sailing", "100% sure_", "Ärger im Hafen"]


async def excerpts(api: Client, q: str) -> list[tuple[str | None, str]]:
    """Returns, for each chat that the search found, the turn and its text with marks around the matches."""
    found = [chat["excerpt"] for chat in (await api.json("GET", "/api/chats", params={"q": q}))["chats"]]
    marks = {True: "[{}]", False: "{}"}
    return [(e["turn"], "".join(marks[piece["found"]].format(piece["text"]) for piece in e["pieces"])) for e in found]


async def test_a_match_has_an_excerpt_of_the_first_message_that_matches(api: Client) -> None:
    chat = await api.chat(title="Sailing")
    await api.ask(chat, "Nothing of that.")
    long = f"{'before ' * 40}the LIGHTHOUSE\n\nof the <b>harbour</b> {'behind ' * 40}"
    first = await api.ask(chat, long)
    await api.ask(chat, "The lighthouse again, and the harbour.")
    ((turn, words),) = await excerpts(api, "harbour lighthouse")
    assert turn == first.user["id"]
    assert words.startswith("… before before")
    assert "before the [LIGHTHOUSE] of the <b>[harbour]</b> behind" in words
    assert words.endswith("behind …")
    assert len(words) < 240
    assert await excerpts(api, "nothing sail") == [
        ((await api.json("GET", f"{chat}/turns"))["turns"][0]["id"], "[Nothing] of that.")
    ]


async def test_a_chat_that_is_found_by_its_title_alone_shows_the_title(api: Client) -> None:
    await api.ask(await api.chat(title="Ärger im Hafen"), "Im Hafen?")
    assert await excerpts(api, "HAFEN ä") == [(None, "[Ä]rger im [Hafen]")]
    listed = (await api.json("GET", "/api/chats"))["chats"]
    assert [chat["excerpt"] for chat in listed] == [None]


async def test_an_excerpt_is_of_an_answer_and_of_other_branches_too(api: Client, server: Server) -> None:
    chat = await api.chat(title="Sailing")
    model = server.scripts.model(message_of(thinking("The tide."), text("A pilot's tide.")), message_of(text("Other.")))
    asked = await api.ask(chat, "When?", model=model)
    await api.json("POST", f"{asked.url}/regenerate", 201, json={})
    assert await excerpts(api, "tide") == [(asked.assistant["id"], "A pilot's [tide].")]


async def test_matches_are_returned_page_by_page(api: Client) -> None:
    for number in range(5):
        await api.chat(title=f"{'even' if number % 2 == 0 else 'odd'} {number}")
    page = await api.json("GET", "/api/chats", params={"q": "even", "limit": 2})
    assert [chat["title"] for chat in page["chats"]] == ["even 4", "even 2"]
    assert await found(api, "even", before=page["next"]) == ["even 0"]


async def test_no_owner_finds_messages_of_another(api: Client, new_owner: NewOwner) -> None:
    await api.ask(await api.chat(title="Mine"), "The secret harbour")
    stranger = await new_owner()
    await stranger.ask(await stranger.chat(title="Theirs"), "Another harbour")
    assert await found(stranger, "harbour") == ["Theirs"]
    assert await found(stranger, "secret") == await found(stranger, "mine") == []


@pytest.mark.parametrize("q", ["x" * 201, "a\0b", "1 2 3 4 5 6 7 8 9"])
async def test_a_search_that_is_not_valid_is_refused(api: Client, q: str) -> None:
    problem = await api.json("GET", "/api/chats", 422, params={"q": q})
    assert [error["field"] for error in problem["errors"]] == ["q"]


async def test_searches_leave_room_for_everybody_else(
    api: Client, database: Locker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "SEARCH_TIMEOUT", 60.0)
    async with database.holding("LOCK TABLE search_segments IN ACCESS EXCLUSIVE MODE"):
        searches = [asyncio.create_task(found(api, "words")) for _ in range(15)]
        await database.waiting(2)
        assert (await api.json("GET", "/api/chats"))["chats"] == []
        assert not any(search.done() for search in searches)
    assert await asyncio.gather(*searches) == [[]] * 15


async def test_a_search_that_takes_too_long_is_ended_and_one_that_waits_too_long_for_its_place(
    api: Client, database: Locker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "SEARCH_TIMEOUT", 0.05)
    async with database.holding("LOCK TABLE search_segments IN ACCESS EXCLUSIVE MODE"):
        searches = [api.json("GET", "/api/chats", 422, params={"q": "words"}) for _ in range(4)]
        problems = await asyncio.gather(*searches)
    for problem in problems:
        assert "takes too long" in problem["errors"][0]["message"]
    monkeypatch.undo()
    assert await found(api, "words") == []
