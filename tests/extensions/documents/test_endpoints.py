from itertools import product

import httpx2
import pytest

from tests.support.http_client import Client
from tests.support.http_server import Server
from turnstream.extensions.documents.store import Documents

pytestmark = pytest.mark.asyncio(loop_scope="session")

DOCUMENTS = "/api/documents"


async def paths(api: Client, query: str = "") -> list[str]:
    return [document["path"] for document in (await api.json("GET", DOCUMENTS + query))["documents"]]


async def test_a_document_can_be_written_read_replaced_and_removed(api: Client) -> None:
    address = f"{DOCUMENTS}/notes/tides.md"
    first = await api.put(address, content="Två\n")
    assert (first.status_code, first.json()["path"], first.json()["size"]) == (201, "notes/tides.md", 4)
    second = await api.put(address, content="Three\n", headers={"Content-Type": "text/markdown"})
    assert (second.status_code, second.json()["size"]) == (200, 6)
    read = await api.get(address)
    assert (read.text, read.headers["content-type"]) == ("Three\n", "text/plain; charset=utf-8")
    assert await api.json("DELETE", address) == {"deleted": "notes/tides.md"}
    await api.json("GET", address, 404)
    await api.json("DELETE", address, 404)


async def test_a_document_may_be_empty(api: Client) -> None:
    assert (await api.put(f"{DOCUMENTS}/empty")).json()["size"] == 0
    assert (await api.get(f"{DOCUMENTS}/empty")).content == b""


async def test_documents_are_listed_by_path_page_by_page(api: Client) -> None:
    written = ["b/1", "a", "b/2", "Z", "b.md", "é", "b/1/x"]
    for path in written:
        await api.put(f"{DOCUMENTS}/{path}", content="x")
    in_order = sorted(written)
    assert await paths(api) == in_order
    assert await paths(api, "?prefix=b/") == ["b/1", "b/1/x", "b/2"]
    pages, query = [], {"limit": "3"}
    while True:
        page = await api.json("GET", DOCUMENTS, params=query)
        pages.append([document["path"] for document in page["documents"]])
        if page["next"] is None:
            break
        query["after"] = page["next"]
    assert pages == [in_order[:3], in_order[3:6], in_order[6:]]


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("caf%C3%A9/%E2%98%83.md", "café/☃.md"),
        ("a%2Fb", "a/b"),
        ("a%20b", "a b"),
        ("a%3Fb%23c", "a?b#c"),
        ("100%25", "100%"),
        ("...", "..."),
        ("a..b/.hidden", "a..b/.hidden"),
        ("%F0%90%80%80", "\U00010000"),
        ("x" * 1024, "x" * 1024),
    ],
)
async def test_a_path_may_hold_all_characters_of_file_names(api: Client, address: str, path: str) -> None:
    assert (await api.put(f"{DOCUMENTS}/{address}", content="x")).json()["path"] == path
    assert await paths(api) == [path]
    assert (await api.get(f"{DOCUMENTS}/{address}")).text == "x"


ODD = ["", "/a", "a//b", "a/", "..", "../a", "a/../b", "a/..", ".", "./a", "a/./b", "a%00b", "%ff", "a%09b", "%7F"]


@pytest.mark.parametrize("path", [*ODD, "%2Fa", "%2E%2E/a", "x" * 1025, "%F0%90%80%80" * 257])
async def test_a_path_that_others_would_read_differently_is_refused(api: Client, path: str) -> None:
    for method in ("PUT", "GET", "DELETE"):
        refused = await api.send(exactly(api, method, f"{DOCUMENTS}/{path}"))
        assert refused.status_code == 422, refused.text
        assert refused.json()["errors"][0]["field"] == "path"
    assert await paths(api) == []


def exactly(api: Client, method: str, path: str) -> httpx2.Request:
    """Builds a request with exactly this path. Otherwise, the client would normalize `a/../b` to `b`."""
    extensions = {"target": path.encode()}
    return api.build_request(method, f"{DOCUMENTS}/any", content="x" if method == "PUT" else "", extensions=extensions)


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"\xff\xfe", 415), (b"\xed\xa0\x80", 415), (b"a\0b", 422), ("x" * 4_000_001, 413)],
    ids=["not UTF-8", "an encoded surrogate", "NUL", "too large"],
)
async def test_bytes_that_are_no_text_or_too_many_are_refused(api: Client, body: bytes, status: int) -> None:
    await api.json("PUT", f"{DOCUMENTS}/a", status, content=body)
    assert await paths(api) == []


@pytest.mark.parametrize("name", ["prefix", "after"])
async def test_a_search_for_paths_that_cannot_be_is_refused_by_name(api: Client, name: str) -> None:
    refused = await api.json("GET", DOCUMENTS, 422, params={name: "a\0"})
    assert refused["errors"][0]["field"] == name


@pytest.mark.parametrize(
    ("letters", "count", "separator"),
    [
        ("abcdefghijklmnopqrstuvwxyz", 220_000, " "),
        ("бвгджзклмнпрстфхцчшщ", 150_000, " "),
        ("abcdefghijklmnopqrstuvwxyz", 150_000, "-x "),
        ("𐐨𐐩𐐪𐐫𐐬𐐭𐐮𐐯𐐰𐐱𐐲𐐳𐐴𐐵𐐶𐐷𐐸𐐹𐐺𐐻", 150_000, " "),
    ],
    ids=["a megabyte of English letters", "of Cyrillic", "of compounds", "of rare letters"],
)
async def test_a_document_with_more_words_than_the_search_can_hold_is_kept_whole(
    api: Client, server: Server, letters: str, count: int, separator: str
) -> None:
    words = zip(product(letters, repeat=4), range(count), strict=False)
    text = separator.join("".join(word) for word, _ in words)
    written = await api.put(f"{DOCUMENTS}/words", content=text)
    assert written.status_code == 201
    assert (await api.get(f"{DOCUMENTS}/words")).text == text
    first = text.split(" ", 1)[0].partition("-")[0]
    found = await Documents(server.services.storage.of_owner).search(api.owner, first, 10)
    assert [hit.path for hit in found] == ["words"]
