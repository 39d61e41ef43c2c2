"""The search (words, stems, ranks, excerpts, filters and pages), and how texts are indexed."""

from collections.abc import Mapping
from typing import Any, get_args
from uuid import UUID

import pytest

from tests.integration.api.conftest import NewOwner
from tests.support.http_client import Client
from tests.support.http_server import Server
from tests.support.locks import Locker
from tests.support.sweeping import swept
from turnstream.api.schemas.requests import SearchLanguage
from turnstream.extensions.search.index import SearchIndex
from turnstream.scripted import message_of, text, tool_use
from turnstream.storage.database import Statement

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def found(api: Client, q: str, **more: str) -> Mapping[str | None, str]:
    """Returns the found chats in the order of their rank: each title with its excerpt, in which brackets mark the found
    words.
    """
    page = await api.json("GET", "/api/chats", params={"q": q, **more})
    return {
        chat["title"]: "".join(f"[{p['text']}]" if p["found"] else p["text"] for p in chat["excerpt"]["pieces"])
        for chat in page["chats"]
    }


async def catch_up(server: Server) -> None:
    await swept(SearchIndex(server.services.storage.database).catch_up())


async def test_words_are_found_by_their_beginning_and_in_the_language_of_the_chat_by_their_stem(
    api: Client, server: Server
) -> None:
    for title, language, said in (
        ("deutsch", "german", "Die alten Häuser am Hafen."),
        ("english", "english", "They were sailing past lighthouses."),
        ("simple", None, "Lampenhaus"),
    ):
        await api.ask(await api.chat(title=title, settings={"search_language": language}), said)
    assert [*(await found(api, "HAUS")).items()] == [
        ("deutsch", "Die alten [Häuser] am Hafen."),
        ("simple", "Lampen[haus]"),
    ]
    assert await found(api, "lighthouse sails") == {"english": "They were sailing past [lighthouse]s."}
    assert await found(api, "light") == {"english": "They were sailing past [light]houses."}
    assert await found(api, "house") == {"english": "They were sailing past light[house]s."}


@pytest.mark.parametrize(
    ("said", "q", "marked"),
    [
        ("What does <img src=x> say?", "img", "What does <[img] src=x> say?"),
        (
            "See app/turnstream/storage/search.py of 3.14",
            "search.py 3.14",
            "See app/turnstream/storage/[search.py] of [3.14]",
        ),
        ("今日は良い天気です", "良い天", "今日は[良い天]気です"),
        ("It's 'quoted': a & b | !c", "'quoted' !c", "It's ['quoted']: a & b | [!c]"),
        ("snake_case and camelCase", "case camel", "snake_[case] and [camel][Case]"),
    ],
)
async def test_signs_part_words_and_scripts_without_blanks_have_pairs(
    api: Client, said: str, q: str, marked: str
) -> None:
    await api.ask(await api.chat(title="t"), said)
    assert await found(api, q) == {"t": marked}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("Ahoy, (you)! ahoy", "ahoy you"),
        (f"a {'x' * 100} {'y' * 101}", f"a {'x' * 100}"),
        (f"{'漢' * 2} {'é' * 50} {'ü' * 51}", f"漢漢 漢 {'é' * 50}"),
        ("", ""),
    ],
)
async def test_each_word_is_kept_once_unless_it_is_too_long(database: Locker, said: str, words: str) -> None:
    kept = await database.connection.fetchval("SELECT tsvector_to_array(search_vector('simple', $1))", said)
    assert sorted(kept) == sorted(words.split())


async def test_first_messages_of_chats_do_not_wait_for_one_another(api: Client, database: Locker) -> None:
    chats = [await api.chat() for _ in range(2)]
    lock = "SELECT FROM search_segments WHERE owner = $1 FOR UPDATE"
    async with database.holding(lock, api.owner):
        for number, chat in enumerate(chats):
            await api.ask(chat, f"Where is harbour {number}?")
    assert len(await found(api, "harbour")) == 2


async def test_titles_come_first_then_words_in_one_message_then_whole_words(api: Client) -> None:
    for title, messages in (
        ("apart", ["A harbour.", "A light."]),
        ("begun", ["The lights of harbours."]),
        ("together", ["The light of the harbour."]),
        ("Harbour light", ["Nothing."]),
    ):
        chat = await api.chat(title=title)
        for each in messages:
            await api.ask(chat, each)
    assert [*await found(api, "light harbour")] == ["Harbour light", "together", "begun", "apart"]


async def covered(server: Server, database: Locker, owner: str) -> None:
    """Indexes all texts, and then collects the words of each segment."""
    await catch_up(server)
    await database.connection.execute(
        "SELECT search_cover(id, clock_timestamp()) FROM search_segments WHERE owner = $1", owner
    )


async def test_parts_inside_of_words_are_found_in_texts_titles_and_results_of_tools(
    api: Client, server: Server, database: Locker
) -> None:
    model = server.scripts.model(message_of(tool_use("doc_tree", {}, "c")), message_of(text("Nothing.")))
    await api.json("PUT", "/api/search/settings", json={"tool_results": True})
    await api.json("PUT", "/api/documents/shipyards.md", 201, content=b"x")
    await api.ask(await api.chat(title="text"), "Past two lighthouses.")
    await api.ask(await api.chat(title="The Boathouse"), "Hello.")
    await api.ask(await api.chat(title="tool"), "What?", model=model, tools=["doc_tree"])
    for _ in "fresh", "collected":
        assert await found(api, "house") == {"The Boathouse": "The Boat[house]", "text": "Past two light[house]s."}
        assert await found(api, "ghth ast") == {"text": "P[ast] two li[ghth]ouses."}
        assert await found(api, "hipya") == {}
        assert [*await found(api, "hipya", tools="true")] == ["tool"]
        await covered(server, database, api.owner)
    await api.ask(await api.chat(title="later"), "A warehouse.")
    assert [*await found(api, "house")] == ["The Boathouse", "later", "text"], "one is not collected yet"


async def test_parts_inside_of_words_come_after_beginnings_of_words_and_words(api: Client) -> None:
    for title, said in (
        ("begun", "A housekeeper, and a light."),
        ("whole", "A house, and a light."),
        ("Alight", "A house."),
        ("inside", "A lighthouse and no house, in moonlight."),
        ("inside of both", "A boathouse, in moonlight."),
        ("My moonlight", "A boathouse."),
    ):
        await api.ask(await api.chat(title=title), said)
    by_beginnings, inside = ["whole", "inside", "begun"], ["Alight", "My moonlight", "inside of both"]
    assert [*await found(api, "house light")] == by_beginnings + inside


async def test_parts_of_one_or_two_characters_are_looked_for_at_beginnings_alone(
    api: Client, server: Server, database: Locker
) -> None:
    await api.ask(await api.chat(title="one"), "A lighthouse.py, 今日は良い天気です")
    for _ in "fresh", "collected":
        assert await found(api, "us") == await found(api, "se") == {}
        assert await found(api, "日は良") == {"one": "A lighthouse.py, 今[日は良]い天気です"}
        assert await found(api, "house.py") == {"one": "A light[house.py], 今日は良い天気です"}
        assert await found(api, "house.y") == {}
        await covered(server, database, api.owner)


async def test_a_part_inside_of_many_words_is_found_in_all_of_them_and_not_in_stems(
    api: Client, server: Server, database: Locker
) -> None:
    english = {"search_language": "english"}
    many = [f"{first}{second}apiary" for first in "bcdfghkl" for second in "mnprstvw"]
    for number, said in enumerate((*many[:3], " ".join(many[3:]), "A happy therapy.")):
        await api.ask(await api.chat(title=f"{number}", settings=english), said)
    for _ in "fresh", "collected":
        assert {*await found(api, "api")} == {"0", "1", "2", "3"}
        assert await found(api, "api vwapi") == await found(api, "api nowhere") == {}
        assert await found(api, "api vwa hap") == {}
        assert [*await found(api, f"api {many[0][:4]}")] == ["0"]
        assert await found(api, "erapi") == {}, "that is in the stem of therapy"
        assert await found(api, "erapy happiness") == {"4": "A happy th[erapy]."}
        await covered(server, database, api.owner)


async def test_every_chat_is_on_one_page_while_the_search_goes_from_beginnings_to_insides(
    api: Client, server: Server, database: Locker
) -> None:
    titles = "'bright ' || n, 'the brightest ' || n, 'a firebright ' || n, 'a dark ' || n"
    await database.connection.execute(
        f"INSERT INTO chats (id, owner, title) SELECT gen_random_uuid(), $1, (ARRAY[{titles}])[1 + n % 4]"
        " FROM generate_series(1, 800) AS n",
        api.owner,
    )
    await catch_up(server)
    for limit in (70, 100, 133):
        pages: list[list[str]] = []
        before = None
        while before is not None or not pages:
            page = await api.json("GET", "/api/chats", params={"q": "right", "limit": limit, "before": before or ""})
            assert page["chats"] or not page["next"]
            before = page["next"]
            pages.append([chat["title"] for chat in page["chats"]])
        found_titles = [title for page in pages for title in page]
        assert len(found_titles) == len({*found_titles}) == 600
        pages, before = [], None
        while before is not None or not pages:
            page = await api.json("GET", "/api/chats", params={"q": "bright", "limit": limit, "before": before or ""})
            before = page["next"]
            pages.append([chat["title"].rpartition(" ")[0] for chat in page["chats"]])
        kinds = [kind for page in pages for kind in page]
        assert sorted(kinds[:400]) == ["bright"] * 200 + ["the brightest"] * 200
        assert kinds[400:] == ["a firebright"] * 200
        await covered(server, database, api.owner)


async def test_parts_of_words_in_deleted_chats_and_of_other_owners_are_not_found(
    api: Client, new_owner: NewOwner, server: Server, database: Locker
) -> None:
    stranger = await new_owner()
    await stranger.ask(await stranger.chat(title="The boathouse"), "A lighthouse.")
    chat = await api.chat(title="The warehouse")
    gone = await api.ask(chat, "A lighthouse.")
    await covered(server, database, api.owner)
    assert [*await found(api, "house")] == ["The warehouse"]
    assert await found(api, "oatho") == {}
    await api.json("DELETE", gone.user_url)
    assert await found(api, "ightho") == {}
    assert [*await found(api, "arehou")] == ["The warehouse"]
    await api.json("DELETE", chat)
    assert await found(api, "house") == {}
    other = (await stranger.json("GET", "/api/chats"))["chats"][0]["id"]
    assert await found(api, "house", chat=other) == {}
    assert [*await found(stranger, "house", chat=other, since="2020-01-01")] == ["The boathouse"]
    assert await found(stranger, "house", until="2020-01-01") == {}


async def test_a_search_is_narrowed_to_a_chat_and_to_a_time(api: Client) -> None:
    chats = {title: await api.chat(title=title) for title in ("one", "two")}
    times = [(await api.ask(chat, "A harbour.")).user["created_at"] for chat in chats.values()]
    assert [*await found(api, "harbour")] == ["two", "one"]
    assert [*await found(api, "harbour", chat=chats["one"].rpartition("/")[2])] == ["one"]
    assert [*await found(api, "harbour", since=times[1])] == ["two"]
    assert [*await found(api, "harbour", until=times[1])] == ["one"]
    assert [*await found(api, "harbour", since="2020-01-01", until="2020-02-01")] == []
    for name in ("since", "until", "chat", "tools"):
        problem = await api.json("GET", "/api/chats", 422, params={"q": "harbour", name: "yesterday"})
        assert [error["field"] for error in problem["errors"]] == [name]
    for wrong in ("x", "i", "1_2", "99999999999999999999", "1700000000000000_" + "0" * 32):
        await api.json("GET", "/api/chats", 400, params={"q": "harbour", "before": wrong})


async def test_an_owner_sets_language_and_results_of_tools_and_older_texts_follow(api: Client, server: Server) -> None:
    model = server.scripts.model(message_of(tool_use("doc_tree", {}, "c")), message_of(text("Es gibt Häuser.")))
    assert await api.json("GET", "/api/search/settings") == {"language": None, "tool_results": False}
    chat = await api.chat(title="one")
    await api.ask(chat, "Was?", model=model, tools=["doc_tree"])
    assert await found(api, "haus") == {}
    settings = {"language": "german", "tool_results": True}
    assert await api.json("PUT", "/api/search/settings", json=settings) == settings
    assert await api.json("GET", "/api/search/settings") == settings
    await catch_up(server)
    assert await found(api, "haus") == {"one": "Es gibt [Häuser]."}
    (result,) = [
        block["text"]
        for turn in (await api.json("GET", f"{chat}/turns"))["turns"]
        for block in turn["blocks"]
        if block["type"] == "tool_result"
    ]
    word = result.split()[0].strip('",:{}')
    assert [*await found(api, word, tools="true")] == ["one"]
    assert await found(api, word) == {}
    await api.json("PUT", "/api/search/settings", json={})
    await catch_up(server)
    assert await found(api, "haus") == await found(api, word, tools="true") == {}


async def test_every_chat_is_on_one_page_of_a_search_over_many_segments(
    api: Client, server: Server, database: Locker
) -> None:
    await database.connection.execute(
        "INSERT INTO chats (id, owner, title) SELECT gen_random_uuid(), $1, 'even ' || n"
        " FROM generate_series(1, 620) AS n",
        api.owner,
    )
    await catch_up(server)
    pages: list[list[str]] = []
    before = None
    while before is not None or not pages:
        page = await api.json("GET", "/api/chats", params={"q": "EVEN", "limit": 150, "before": before or ""})
        before = page["next"]
        pages.append([chat["title"] for chat in page["chats"]])
        assert page["chats"]
    titles = [title for page in pages for title in page]
    assert sorted(titles) == sorted({f"even {n}" for n in range(1, 621)})
    segments = "SELECT count(*) FROM search_segments WHERE owner = $1"
    assert await database.connection.fetchval(segments, api.owner) == 3


async def test_chats_from_before_the_index_are_indexed_in_steps_the_newest_first(
    api: Client, server: Server, database: Locker
) -> None:
    for title in ("old", "older"):
        await api.ask(await api.chat(title=title), "A harbour.")
    long = await api.chat(title="long")
    ids = [(await api.ask(long, f"A harbour {n}.")).user["id"] for n in range(2)]
    await catch_up(server)
    for table in ("search_texts", "search_chats", "search_segments"):
        await database.connection.execute(f"DELETE FROM {table} WHERE owner = $1", api.owner)
    assert await found(api, "harbour") == {}
    await api.ask(long, "A lighthouse.")
    assert [*await found(api, "lighthouse")] == ["long"], "what is new is indexed at once"
    await database.connection.execute("INSERT INTO search_backlog SELECT id FROM chats WHERE owner = $1", api.owner)
    step = Statement("SELECT search_catch_up(3) AS more")
    steps = 1
    while (await server.services.storage.database.rows(step))[0]["more"]:
        steps += 1
    assert steps >= 5
    assert {*await found(api, "harbour")} == {"old", "older", "long"}
    place = await database.connection.fetchval("SELECT min(id) FROM search_segments WHERE owner = $1", api.owner)
    assert place < 0
    rows = "SELECT count(*) FROM search_texts WHERE turn_id = $1"
    assert [await database.connection.fetchval(rows, UUID(each)) for each in ids] == [1, 1]


async def test_a_segment_without_the_words_is_skipped_and_later_texts_are_found(
    api: Client, server: Server, database: Locker
) -> None:
    connection = database.connection
    chat = await api.chat(title="one")
    await api.ask(chat, "A harbour.")
    await catch_up(server)
    part = await connection.fetchval("SELECT id FROM search_segments WHERE owner = $1", api.owner)
    await connection.execute("SELECT search_cover($1, clock_timestamp())", part)
    vocabulary = "SELECT vocabulary::text FROM search_segments WHERE id = $1"
    assert "'harbour'" in await connection.fetchval(vocabulary, part)
    assert [*await found(api, "harb one")] == ["one"]
    later = await api.ask(chat, "A lighthouse.")
    assert [*await found(api, "light harbour")] == ["one"]
    await api.json("PATCH", chat, json={"title": "two"})
    assert [*await found(api, "light two")] == ["two"], "the search indexes it"
    await connection.execute("SELECT search_cover($1, clock_timestamp())", part)
    assert [*await found(api, "lighthouse two")] == ["two"]
    await connection.execute("UPDATE search_texts SET words = 'secret' WHERE turn_id = $1", UUID(later.user["id"]))
    assert await found(api, "secret") == {}, "the row was not read"
    await api.json("DELETE", later.user_url)
    assert await connection.fetchval(vocabulary, part) is None, "a word that is deleted is nowhere"
    assert [*await found(api, "harbour")] == ["two"]


async def test_the_sweep_collects_the_words_of_segments_with_many_new_texts(
    api: Client, server: Server, database: Locker
) -> None:
    connection = database.connection
    await connection.execute(
        "WITH made AS (INSERT INTO chats (id, owner) SELECT gen_random_uuid(), $1 FROM generate_series(1, 100)"
        " RETURNING id) INSERT INTO turns (id, chat_id, role, status, ended_at)"
        " SELECT gen_random_uuid(), id, 'user', 'complete', now() FROM made",
        api.owner,
    )
    covered = "SELECT covered_until > '-infinity' FROM search_segments WHERE owner = $1"
    await catch_up(server)
    assert not await connection.fetchval(covered, api.owner), "it may be that others are not visible yet"
    await connection.execute("UPDATE search_texts SET added_at = now() - interval '1 hour' WHERE owner = $1", api.owner)
    await catch_up(server)
    assert await connection.fetchval(covered, api.owner)


async def test_a_deleted_text_is_not_found(api: Client, database: Locker) -> None:
    chat = await api.chat(title="one")
    await api.ask(chat, "A harbour.")
    second = await api.ask(chat, "A lighthouse.")
    await api.json("DELETE", second.user_url)
    assert await found(api, "lighthouse") == {}
    assert [*await found(api, "harbour")] == ["one"]
    await api.json("PATCH", chat, json={"title": "two"})
    assert await found(api, "one") == {}
    assert [*await found(api, "two")] == ["two"]
    await api.json("DELETE", chat)
    assert await found(api, "harbour") == {}
    rows = "SELECT count(*) FROM search_texts WHERE owner = $1"
    assert await database.connection.fetchval(rows, api.owner) == 0


@pytest.mark.parametrize(
    "said",
    [
        "".join(chr(0x4E00 + n % 20000) for n in range(60_000)),
        " ".join(f"{n:x}" + "\U00020000" * 30 for n in range(3000)),
        "x" * 100_000 + " harbour",
        "\\'\\\\ @ & | ! <-> :* \"",
    ],
    ids=["every Chinese sign", "long rare words", "one long word", "signs"],
)
async def test_no_text_keeps_a_turn_from_its_end(database: Locker, said: str) -> None:
    for language in ("simple", "english", "of no Postgres"):
        await database.connection.fetchval("SELECT search_vector($1, $2)", language, said)
    query = "SELECT count(*) FROM search_matches('nobody', 1, $1, false, NULL, NULL, NULL)"
    await database.connection.execute(
        "INSERT INTO search_segments VALUES (-999999, 'nobody', 1) ON CONFLICT DO NOTHING"
    )
    assert await database.connection.fetchval(query, said[:200].split()) == 0
    await database.connection.execute("DELETE FROM search_segments WHERE owner = 'nobody'")


async def test_postgres_has_every_language(database: Locker) -> None:
    rows: Any = await database.connection.fetch("SELECT cfgname FROM pg_ts_config")
    assert {*get_args(SearchLanguage)} <= {row["cfgname"] for row in rows}


async def test_another_owner_is_not_found(api: Client, new_owner: NewOwner) -> None:
    await api.ask(await api.chat(title="mine"), "A secret harbour.")
    stranger = await new_owner()
    await stranger.ask(await stranger.chat(title="theirs"), "A harbour.")
    assert [*await found(stranger, "harbour")] == ["theirs"]
    chat = (await api.json("GET", "/api/chats"))["chats"][0]["id"]
    assert await found(stranger, "harbour", chat=chat) == {}
