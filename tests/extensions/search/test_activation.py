"""A server runs without the search, and the search is activated later."""

import asyncpg

from tests.extensions.simple_search.test_simple_search import core, found, marked
from tests.support.http_client import Client
from tests.support.http_server import serving
from tests.support.sweeping import swept
from turnstream.extension import installed
from turnstream.extensions.search.index import SearchIndex
from turnstream.scripted import message_of, text

TABLES = ("search_pending", "search_texts", "search_chats", "search_segments")


async def counts(database_url: str, *tables: str) -> list[int]:
    connection = await asyncpg.connect(database_url)
    try:
        return [await connection.fetchval(f"SELECT count(*) FROM {table}") for table in tables]
    finally:
        await connection.close()


async def test_nothing_piles_up_for_the_extension_and_it_indexes_all_once_it_is_active(database_url: str) -> None:
    async with core(database_url, installed()["documents"]) as api:
        chat = await api.chat(title="Lamps")
        for number in range(5):
            await api.ask(chat, f"Lamp {number}")
            await api.json("PATCH", chat, json={"title": f"Lamps {number}"})
        for number in range(3):
            await api.put("/api/documents/a.md", content=f"A lamp, {number}.")
        assert await counts(database_url, *TABLES, "search_backlog", "search_documents") == [0, 0, 0, 0, 1, 1]
        await api.json("GET", "/api/search/settings", 404)
    async with serving(database_url) as server, Client(server.url) as api:
        index = SearchIndex(server.services.storage.database)
        model = server.scripts.model(message_of(text("A lamp too.")))
        await api.ask(await api.chat(title="New"), "What is this?", model=model)
        await swept(index.catch_up())
        assert await found(api, "amp") == {"New": "A l[amp] too.", "Lamps 4": "L[amp]s 4"}
        assert await found(api, "lamp 2") == {"Lamps 4": "[Lamp] [2]"}
        page = await api.json("GET", "/api/documents", params={"q": "amp"})
        assert [marked(entry) for entry in page["documents"]] == ["A l[amp], 2."]
        assert await counts(database_url, "search_pending", "search_backlog") == [0, 0]
        assert await counts(database_url, "search_texts") == [12]


async def test_one_replica_with_the_extension_indexes_the_texts_of_all(database_url: str) -> None:
    async with serving(database_url) as whole, core(database_url) as api:
        await api.ask(await api.chat(title="Lamps"), "A lamp")
        assert await counts(database_url, "search_backlog") == [0]
        async with Client(whole.url) as other:
            assert await found(other, "amp") == {"Lamps": "L[amp]s"}
