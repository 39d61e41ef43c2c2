"""Encrypted titles: a search finds words of a title, and no row contains these words."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_client import Client
from tests.support.http_server import serving
from turnstream.extension import installed
from turnstream.extensions import search
from turnstream.libraries.searches.sealed_titles import UNSPACED, has_words
from turnstream.libraries.secrets.sealing import new_master_key
from turnstream.storage.database import Statement

pytestmark = pytest.mark.extensions("encryption", "search", "simple_search")

GET_CHATS = Statement("SELECT title FROM chats")


async def titles(client: Client, **params: Any) -> tuple[list[str], str | None]:
    found = await client.json("GET", "/api/chats", params=params)
    return [chat["title"] for chat in found["chats"]], found.get("next")


@pytest.mark.parametrize("name", ["search", "simple_search"])
async def test_titles_are_found_by_the_beginnings_of_their_words(
    database_url: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("turnstream.libraries.searches.sealed_titles._BATCH", 2)
    chosen = [installed()[each] for each in ("encryption", "keys", name)]
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
        ("今日は良い天気です", ["良い天"], True),
        ("今日は良い天気です", ["悪い"], False),
    ],
    ids=["beginning", "case", "inside", "folded", "no word", "signs", "without blanks", "not in it"],
)
def test_a_title_has_words(title: str, words: list[str], *, found: bool) -> None:
    assert has_words(title, words) == found


def test_scripts_without_blanks_are_those_of_the_index() -> None:
    file = Path(search.__file__).parent / "sql/called/search_plain.sql"
    (written,) = re.findall(r"unspaced constant text := (.*?);", file.read_text(encoding="utf-8"), re.DOTALL)
    assert "".join(re.findall("'(.*?)'", written)).encode().decode("unicode_escape") == UNSPACED
