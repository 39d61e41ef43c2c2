"""Users search their documents."""

from collections.abc import Mapping

import pytest

from tests.integration.api.conftest import NewOwner
from tests.support.http_client import Client
from tests.support.http_server import Server
from tests.support.locks import Locker
from tests.support.sweeping import swept
from turnstream.extensions.search.index import SearchIndex

pytestmark = pytest.mark.asyncio(loop_scope="session")

DOCUMENTS = "/api/documents"


async def found(api: Client, q: str, **more: str) -> Mapping[str, str]:
    """Returns the found documents in the order of their rank: each path with its excerpt, in which brackets mark the
    found words.
    """
    page = await api.json("GET", DOCUMENTS, params={"q": q, **more})
    assert page["next"] is None
    return {
        document["path"]: "".join(f"[{p['text']}]" if p["found"] else p["text"] for p in document["excerpt"]["pieces"])
        for document in page["documents"]
    }


async def catch_up(server: Server) -> None:
    await swept(SearchIndex(server.services.storage.database).catch_up())


async def test_documents_are_found_by_all_words_the_best_first(api: Client, new_owner: NewOwner) -> None:
    for path, content in {
        "inside.md": "A lighthouse, and moonlight.",
        "light/house.md": "Nothing.",
        "words.md": "A light in the house.",
        "begun.md": "Lights of # houses.",
        "one.md": "A light.",
        "chinese.md": "今日は良い天気です",
    }.items():
        await api.put(f"{DOCUMENTS}/{path}", content=content)
    stranger = await new_owner()
    await stranger.put(f"{DOCUMENTS}/theirs.md", content="A light in the house.")
    assert [*(await found(api, "light HOUSE")).items()] == [
        ("light/house.md", "[light]/[house].md"),
        ("words.md", "A [light] in the [house]."),
        ("begun.md", "[Light]s of # [house]s."),
        ("inside.md", "A [light][house], and moon[light]."),
    ]
    assert [*await found(api, "light house", limit="2")] == ["light/house.md", "words.md"]
    assert [*await found(api, "light", prefix="light/")] == ["light/house.md"]
    assert await found(api, "良い天") == {"chinese.md": "今日は[良い天]気です"}
    assert await found(api, "ght ou") == await found(api, "nowhere") == await found(api, "...") == {}
    assert [*await found(stranger, "ight")] == ["theirs.md"]
    assert (await api.json("GET", DOCUMENTS))["documents"][0]["excerpt"] is None


async def test_documents_are_searched_as_they_are_now(api: Client) -> None:
    await api.put(f"{DOCUMENTS}/a.md", content="A harbour.")
    await api.put(f"{DOCUMENTS}/a.md", content="A beach.")
    assert await found(api, "harbour") == {}
    assert await found(api, "beach") == {"a.md": "A [beach]."}
    await api.json("DELETE", f"{DOCUMENTS}/a.md")
    assert await found(api, "beach") == {}


async def test_a_long_document_is_searched_over_many_characters(api: Client) -> None:
    words = " ".join(f"word{number}" for number in range(60_000))
    await api.put(f"{DOCUMENTS}/long.md", content=f"{words[:590_000]} harbour {words}")
    assert " [harbour] " in (await found(api, "harbour"))["long.md"]
    for number in (0, 4_444, 5_555, 25_000):
        assert f"[word{number}]" in (await found(api, f"word{number}"))["long.md"]
    await api.put(f"{DOCUMENTS}/signs.md", content="".join(chr(0x4E00 + n % 20000) for n in range(600_000)))
    assert [*await found(api, "一丁")] == ["signs.md"]


async def test_documents_have_the_language_of_their_owner_and_older_ones_follow(api: Client, server: Server) -> None:
    await api.put(f"{DOCUMENTS}/old.md", content="Alte Häuser.")
    assert await found(api, "haus") == {}
    await api.json("PUT", "/api/search/settings", json={"language": "german"})
    await api.put(f"{DOCUMENTS}/new.md", content="Neue Häuser.")
    assert await found(api, "haus") == {"new.md": "Neue [Häuser]."}
    assert await found(api, "häuser neu") == {"new.md": "[Neu]e [Häuser]."}
    await catch_up(server)
    assert await found(api, "haus") == {"new.md": "Neue [Häuser].", "old.md": "Alte [Häuser]."}
    await api.json("PUT", "/api/search/settings", json={})
    assert await found(api, "haus") == {}, "it is looked for without stems at once"


async def test_documents_from_before_the_index_and_of_owners_who_arrived_are_indexed_by_the_sweep(
    api: Client, server: Server, database: Locker
) -> None:
    await api.json("PUT", "/api/search/settings", json={"language": "german"})
    execute = database.connection.execute
    await api.put(f"{DOCUMENTS}/before.md", content="Alte Häuser.")
    await execute("UPDATE search_documents SET language = NULL, words = '' WHERE owner = $1", api.owner)
    arriving = f"{api.owner} (arriving)"
    await execute("INSERT INTO documents VALUES ($1, 'moved.md', 'Neue Häuser.', now(), 100)", arriving)
    await execute("UPDATE documents SET owner = $1 WHERE owner = $2", api.owner, arriving)
    assert await found(api, "haus") == {}
    assert [*await found(api, "häuser")] == ["moved.md"]
    await catch_up(server)
    assert {*await found(api, "haus")} == {"before.md", "moved.md"}


async def test_a_search_of_documents_is_refused_as_one_of_chats_is(api: Client, database: Locker) -> None:
    for field, query in {
        "q": {"q": "a b c d e f g h i"},
        "limit": {"q": "a", "limit": "201"},
        "after": {"q": "a", "after": "a.md"},
    }.items():
        problem = await api.json("GET", DOCUMENTS, 422, params=query)
        assert [error["field"] for error in problem["errors"]] == [field]
    async with database.holding("LOCK TABLE search_documents IN ACCESS EXCLUSIVE MODE"):
        problem = await api.json("GET", DOCUMENTS, 422, params={"q": "a"})
    assert "takes too long" in problem["errors"][0]["message"]
