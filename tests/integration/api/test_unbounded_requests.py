"""The cost of short requests: their content, their references and the server's work for them have limits."""

import json
from collections.abc import Sequence
from itertools import chain
from typing import Any

import pytest

from tests.support.http_client import Client, said
from turnstream.storage.chats import turns
from turnstream.tools.schemas import InputSchema, SchemaRoom

pytestmark = pytest.mark.asyncio(loop_scope="session")

JSON = {"Content-Type": "application/json"}


def by_path(path: str) -> dict[str, Any]:
    return {"type": "document", "source": {"type": "path", "path": path}}


def client_tool(name: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties}
    return {"type": "client", "name": name, "description": "Looks.", "input_schema": schema}


async def _chats(api: Client) -> Sequence[Any]:
    chats: Sequence[Any] = (await api.json("GET", "/api/chats"))["chats"]
    return chats


@pytest.mark.extensions("documents")
async def test_the_documents_that_a_message_names_count_as_often_as_they_are_named(api: Client) -> None:
    await api.json("PUT", "/api/documents/long.md", 201, content=b"x" * 3_000_000)
    body = {"blocks": [by_path("long.md")] * 3}
    refused = await api.json("POST", "/api/turns", 422, json=body)
    assert refused["errors"] == [
        {
            "field": "blocks.2.source.path",
            "message": "`blocks.2.source.path` must be shorter: the texts of a request, those of documents included,"
            " have at most 8,000,000 bytes.",
        }
    ]
    assert not await _chats(api)
    await api.json("POST", "/api/turns", 201, json={"blocks": [by_path("long.md")] * 2})


async def test_the_files_that_a_message_names_have_a_size_together(api: Client) -> None:
    upload = await api.json("POST", "/api/uploads", 201, content=b"%PDF-1.7 " + b"x" * 4_900_000)
    block = {"type": "document", "source": {"type": "upload", "id": upload["id"]}}
    refused = await api.json("POST", "/api/turns", 422, json={"blocks": [block] * 7})
    assert refused["errors"][0]["field"] == "blocks.6.source"


@pytest.mark.parametrize(
    "body",
    [
        b'{"params":{"a":[' + b"0," * 60_000 + b"0]}}",
        b'{"params":{"a":[' + b"{}," * 30_000 + b"{}]}}",
        b'{"params":{"a":["\\"\\\\",' + b'"",' * 60_000 + b'""]}}',
    ],
    ids=["numbers", "objects", "strings"],
)
async def test_a_body_of_very_many_values_is_refused(api: Client, body: bytes) -> None:
    refused = await api.json("POST", "/api/turns", 413, content=body, headers=JSON)
    assert refused["detail"] == "The body must have at most 50,000 strings, and as many items of lists and objects."


async def test_a_long_text_is_no_list_of_values(api: Client) -> None:
    words = '1,2,{3}:"[4]",\\' * 60_000
    await api.json("POST", "/api/turns", 201, content=json.dumps(said(words)).encode(), headers=JSON)


@pytest.mark.parametrize("members", [{str(number): 0 for number in range(2000)}, {"blocks": [0] * 2000}])
async def test_a_body_with_very_many_errors_is_answered_with_their_number(api: Client, members: dict[str, Any]) -> None:
    refused = await api.json("POST", "/api/turns", 422, json={**said("Hi"), **members})
    assert refused["errors"] in (
        [
            {
                "field": "(body)",
                "message": "The body must have other members: 2,000 of them are wrong or not known here.",
            }
        ],
        [{"field": "blocks", "message": "`blocks` must hold at most 100 items."}],
    )


async def test_the_schemas_of_a_request_have_a_size_together(api: Client) -> None:
    tools = [client_tool(f"look_{number}", **{f"p{each}": {} for each in range(900)}) for number in range(6)]
    refused = await api.json("POST", "/api/chats", 422, json={"settings": {"tools": tools}})
    assert refused["errors"][0]["field"] == "settings.tools.5"
    assert "together" in refused["errors"][0]["message"]
    assert not await _chats(api)
    refused = await api.json("POST", "/api/turns", 422, json={**said("Hi"), "tools": tools})
    assert refused["errors"][0]["field"] == "tools.5"


async def test_the_tools_of_a_chat_are_checked_when_they_are_stored_and_not_with_each_turn(
    api: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = await api.chat(settings={"tools": [client_tool("look", place={"type": "string"})]})

    def checked(text: str, room: SchemaRoom | None = None) -> InputSchema:
        raise AssertionError(f"checked again: {text} {room}")

    monkeypatch.setattr(InputSchema, "checked", checked)
    await api.ask(chat)


async def test_a_page_of_turns_ends_where_it_becomes_too_long(api: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    chat, ids = await api.chat(), list[str]()
    for _ in range(4):
        turn = await api.ask(chat, "x" * 100_000)
        ids += (turn.user["id"], turn.assistant["id"])
    monkeypatch.setattr(turns, "_PAGE_BYTES", 250_000)
    pages, leaf = list[list[str]](), ids[-1]
    while leaf:
        page = await api.json("GET", f"{chat}/turns", params={"leaf": leaf})
        pages.insert(0, [turn["id"] for turn in page["turns"]])
        leaf = page["next"]
    assert [*chain(*pages)] == ids
    assert len(pages) == 2
    pages, after = [], ids[0]
    while after:
        page = await api.json("GET", f"{chat}/turns", params={"after": after, "leaf": ids[-1]})
        pages.append([turn["id"] for turn in page["turns"]])
        after = page["following"]
    assert [*chain(*pages)] == ids[1:]
    assert len(pages) > 1
    page = await api.json("GET", f"{chat}/turns", params={"before": ids[4]})
    assert [turn["id"] for turn in page["turns"]] == ids[1:4]


@pytest.mark.parametrize(
    "options",
    [
        {"params": {"tool_choice": {"type": "tool", "name": ["look"]}}},
        {
            "tools": [{"type": "provider", "definition": {"type": "custom", "name": ["look"]}}],
            "params": {"tool_choice": {"type": "tool", "name": "look"}},
        },
        {"params": {"thinking": {"type": ["enabled"]}}},
        {"params": {"thinking": {"type": {}}}},
        {"params": {"max_tokens": 2**62}},
        {"tools": [{**client_tool("look"), "input_schema": {"type": "object", "$schema": ["x"]}}]},
        {"output": {"schema": {"type": "object", "$schema": 5}}},
    ],
)
async def test_a_value_of_another_kind_is_refused(api: Client, options: dict[str, Any]) -> None:
    refused = await api.json("POST", "/api/turns", 422, json={**said("x"), **options})
    assert refused["errors"][0]["field"].partition(".")[0] in options


async def test_a_path_with_a_nul_names_nothing(api: Client) -> None:
    turn = await api.ask(await api.chat())
    answer = await api.get(f"{turn.url}/results/a%00b")
    assert answer.status_code == 404
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
