"""Encrypted titles are found by their words, and no row shows these."""

from typing import Any

import pytest

from tests.support.http_client import Client
from tests.support.http_server import serving
from turnstream.extension import installed
from turnstream.libraries.searches.sealed_titles import has_words
from turnstream.libraries.secrets.sealing import new_master_key
from turnstream.storage.database import Statement

pytestmark = pytest.mark.extensions("encryption", "search", "simple_search")

GET_CHATS = Statement("SELECT title FROM chats")


async def titles(client: Client, **params: Any) -> tuple[list[str], str | None]:
    found = await client.json("GET", "/api/chats", params=params)
    return [chat["title"] for chat in found["chats"]], found.get("next")


@pytest.mark.parametrize("search", ["search", "simple_search"])
async def test_titles_are_found_by_the_beginnings_of_their_words(
    database_url: str, monkeypatch: pytest.MonkeyPatch, search: str
) -> None:
    monkeypatch.setattr("turnstream.libraries.searches.sealed_titles._BATCH", 2)
    chosen = [installed()[name] for name in ("encryption", "keys", search)]
    settings: dict[str, Any] = {"master_key": new_master_key(), "encrypt_texts": True}
    async with serving(database_url, extensions=chosen, **settings) as server, Client(server.url) as client:
        for title in ("Tides of Brittany", "Ebb", "The tide table", "Moon"):
            await client.chat(title=title)
        rows = await server.services.storage.database.rows(GET_CHATS)
        assert not any(word in str(rows) for word in ("Tide", "tide", "Ebb", "Moon"))
        assert (await titles(client, q="tide"))[0] == ["The tide table", "Tides of Brittany"]
        assert (await titles(client, q="tab TIDE"))[0] == ["The tide table"]
        assert (await titles(client, q="ide"))[0] == []
        seen, before = await titles(client, q="tide", limit=1)
        while before is not None:
            page, before = await titles(client, q="tide", limit=1, before=before)
            seen += page
        assert seen == ["The tide table", "Tides of Brittany"]
        found = await client.json("GET", "/api/chats", params={"q": "tide"})
        assert found["chats"][0]["excerpt"]["pieces"][1] == {"text": "tide", "found": True}


@pytest.mark.parametrize(
    ("title", "words", "found"),
    [
        ("Tides of Brittany", ["tide"], True),
        ("Tides of Brittany", ["BRITT", "of"], True),
        ("Tides of Brittany", ["ides"], False),
        ("Straße", ["strasse"], True),
        ("Tides", ["&"], False),
        ("C++ & more", ["c++"], True),
    ],
    ids=["beginning", "case", "inside", "folded", "no word", "signs"],
)
def test_a_title_has_words(title: str, words: list[str], *, found: bool) -> None:
    assert has_words(title, words) == found
