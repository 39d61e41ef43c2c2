"""The document tools search documents in a real Postgres."""

from collections.abc import AsyncIterator

import pytest

from turnstream.extensions.documents.store import Documents
from turnstream.storage.database import connect


@pytest.fixture
async def documents(database_url: str) -> AsyncIterator[Documents]:
    async with connect(database_url, size=2) as database:
        documents = Documents(database)
        for path, content in {
            "physics/tides.md": "Water rises twice a day because of the moon and of the sun.",
            "physics/moon.md": "The moon pulls at the water. Tides follow the moon around the earth.",
            "cooking/soup.md": "Let the water boil, then add salt. " + "Stir it well. " * 200 + "Serve under the moon.",
            "empty.md": "",
        }.items():
            await documents.put("ada", path, content)
        await documents.put("bob", "secret.md", "The moon is mine.")
        yield documents


async def found(documents: Documents, query: str) -> list[str]:
    return [hit.path for hit in await documents.search("ada", query, 10)]


async def test_documents_with_all_words_come_before_documents_with_some(documents: Documents) -> None:
    best, *others = await found(documents, "moon pulls water")
    assert (best, set(others)) == ("physics/moon.md", {"physics/tides.md", "cooking/soup.md"})
    assert await found(documents, "salt") == ["cooking/soup.md"]
    assert await found(documents, "unheard of") == []


async def test_all_the_words_far_apart_are_more_than_some_of_them_in_the_path(documents: Documents) -> None:
    assert (await found(documents, "salt moon"))[0] == "cooking/soup.md"


async def test_words_are_found_in_any_form_and_in_paths_first(documents: Documents) -> None:
    assert await found(documents, "boiling") == ["cooking/soup.md"]
    assert await found(documents, "tide") == ["physics/tides.md", "physics/moon.md"]
    assert await found(documents, "physics") == ["physics/moon.md", "physics/tides.md"]


async def test_a_snippet_shows_the_words_in_their_context(documents: Documents) -> None:
    hit, *_ = await documents.search("ada", "salt under the moon", 10)
    assert hit.path == "cooking/soup.md"
    assert "**moon**" in hit.snippet
    assert len(hit.snippet) < 500


async def test_others_documents_are_not_found(documents: Documents) -> None:
    assert [hit.path for hit in await documents.search("bob", "moon", 10)] == ["secret.md"]


STRANGE = [
    *("", " ", "the and of", "'", '"', '"moon', "moon:*", "moon & | ! <-> (", "\\", "a'b\\c", "moon " * 500, "☃")
]


async def test_no_query_fails(documents: Documents) -> None:
    for query in [*STRANGE, "http://x/?a=1&b=2", "x-" * 300, "-moon", "moon or sun"]:
        await documents.search("ada", query, 10)


async def test_a_search_gives_no_more_than_was_asked_for(documents: Documents) -> None:
    assert len(await documents.search("ada", "moon", 2)) == 2
