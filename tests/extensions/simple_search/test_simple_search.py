"""The search on a server that does not have the extension `search`."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.http_client import Client
from tests.support.http_server import serving
from tests.support.openapi_document import Document
from turnstream import Extension
from turnstream.extension import installed
from turnstream.extensions.documents import EXTENSION as DOCUMENTS


@asynccontextmanager
async def core(database_url: str, *extensions: Extension) -> AsyncIterator[Client]:
    chosen = [*extensions, installed()["openapi"], installed()["simple_search"]]
    async with serving(database_url, extensions=chosen) as server, Client(server.url) as plain:
        document = Document(await plain.json("GET", "/openapi.json"))
        async with Client(server.url, document) as api:
            yield api


def marked(entry: Mapping[str, Any]) -> str:
    return "".join(f"[{piece['text']}]" if piece["found"] else piece["text"] for piece in entry["excerpt"]["pieces"])


async def found(api: Client, q: str, **more: str) -> Mapping[str | None, str]:
    """Returns the title of each found chat with its excerpt, in which the found words are marked."""
    page = await api.json("GET", "/api/chats", params={"q": q, **more})
    return {chat["title"]: marked(chat) for chat in page["chats"]}


async def test_words_are_found_by_their_beginnings_in_titles_and_in_messages_of_people(database_url: str) -> None:
    async with core(database_url) as api:
        await api.ask(await api.chat(title="Tides at Dover"), "When is **high** water?")
        await api.ask(await api.chat(title="Boats"), "It's a dinghy, isn't it? It will be in Dover\\Calais at 9.")
        assert await found(api, "dov") == {
            "Boats": "It's a dinghy, isn't it? It will be in [Dov]er\\Calais at 9.",
            "Tides at Dover": "Tides at [Dov]er",
        }
        assert await found(api, "WATER hi") == {"Tides at Dover": "When is [hi]gh [water]?"}
        assert await found(api, "it's \\ dinghy") == {
            "Boats": "[It's] a [dinghy], isn't it? It will be in Dover[\\]Calais at 9."
        }
        for nothing in ("tides water", "over", "hello", "...", "'", "\\", "z & !b"):
            assert await found(api, nothing) == {}, nothing


async def test_a_search_has_filters_and_pages_and_the_last_changed_chat_is_first(database_url: str) -> None:
    async with core(database_url) as api:
        chats = [await api.chat(title=f"Harbour {number}") for number in range(5)]
        await api.ask(chats[1], "A lamp in the harbour.")
        seen, before = [], ""
        while True:
            page = await api.json("GET", "/api/chats", params={"q": "harbour", "limit": "2", "before": before})
            seen += [chat["title"] for chat in page["chats"]]
            if (before := page["next"]) is None:
                break
        assert seen == [f"Harbour {number}" for number in (1, 4, 3, 2, 0)]
        chat = chats[1].removeprefix("/api/chats/")
        assert [*await found(api, "harbour", chat=chat)] == ["Harbour 1"]
        tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
        assert await found(api, "harbour", since=tomorrow) == {}
        assert len(await found(api, "harbour", until=tomorrow)) == 5
        problem = await api.json("GET", "/api/chats", 400, params={"q": "harbour", "before": "7"})
        assert [error["field"] for error in problem["errors"]] == ["before"]


@pytest.mark.extensions("documents")
async def test_documents_are_found_by_their_paths_and_contents(database_url: str) -> None:
    async with core(database_url, DOCUMENTS) as api:
        for path, content in {
            "light/house.md": "Nothing.",
            "a.md": "Lights of the harbours.",
            "b.md": "A light.",
        }.items():
            await api.put(f"/api/documents/{path}", content=content)
        page = await api.json("GET", "/api/documents", params={"q": "light HOUSE"})
        assert [(entry["path"], marked(entry)) for entry in page["documents"]] == [
            ("light/house.md", "[light]/[house].md")
        ]
        page = await api.json("GET", "/api/documents", params={"q": "harbour light"})
        assert [(entry["path"], marked(entry)) for entry in page["documents"]] == [
            ("a.md", "[Light]s of the [harbour]s.")
        ]
