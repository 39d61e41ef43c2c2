"""A bad request is refused with a problem that names the field, and nothing is stored."""

import json
from typing import Any
from uuid import uuid4

import pytest

from tests.integration.api.conftest import NewOwner
from tests.support.http_client import Client, said
from tests.support.http_server import Server
from turnstream.llm.models.catalog import ProviderModels
from turnstream.scripted import ScriptedProvider

pytestmark = pytest.mark.asyncio(loop_scope="session")

JSON = {"Content-Type": "application/json"}

BAD_TURNS: dict[str, tuple[Any, str]] = {
    "no blocks": ({}, "blocks"),
    "empty blocks": ({"blocks": []}, "blocks"),
    "too many blocks": ({"blocks": [{"type": "text", "text": "x"}] * 101}, "blocks"),
    "not an object": ([], "(body)"),
    "null": (None, "(body)"),
    "empty text": (said(""), "blocks.0.text"),
    "NUL in text": (said("a\0b"), "blocks.0.text"),
    "lone surrogate in text": (said("a\ud800b"), "blocks.0.text"),
    "text that is none": ({"blocks": [{"type": "text", "text": 1}]}, "blocks.0.text"),
    "no text": ({"blocks": [{"type": "text"}]}, "blocks.0.text"),
    "unknown block type": ({"blocks": [{"type": "film", "text": "x"}]}, "blocks.0.type"),
    "no block type": ({"blocks": [{"text": "x"}]}, "blocks.0.type"),
    "unknown field of a block": ({"blocks": [{"type": "text", "text": "x", "y": 1}]}, "blocks.0.y"),
    "unknown field": ({**said("x"), "temperature": 1}, "temperature"),
    "unknown field that is no text": ({**said("x"), "\ud800": 1}, "(body)"),
    "assistant turn": ({**said("x"), "role": "assistant"}, "role"),
    "unknown model": ({**said("x"), "model": "none such"}, "model"),
    "model that is no text": ({**said("x"), "model": "any-\ud800"}, "model"),
    "model with NUL": ({**said("x"), "model": "any-\0"}, "model"),
    "empty model": ({**said("x"), "model": ""}, "model"),
    "unknown tool": ({**said("x"), "tools": ["doc_view", "none such"]}, "tools.1"),
    "tool that is no text": ({**said("x"), "tools": ["\ud800"]}, "tools.0"),
    "tool that is a number": ({**said("x"), "tools": [1]}, "tools.0"),
    "tool of no type": ({**said("x"), "tools": [{"name": "x"}]}, "tools.0.type"),
    "tool of an unknown type": ({**said("x"), "tools": [{"type": "name", "name": "x"}]}, "tools.0.type"),
    "system prompt with NUL": ({**said("x"), "system_prompt": "\0"}, "system_prompt"),
    "system prompt too long": ({**said("x"), "system_prompt": "x" * 200_001}, "system_prompt"),
    "sampling parameter": ({**said("x"), "params": {"temperature": 1}}, "params.temperature"),
    "no tokens at all": ({**said("x"), "params": {"max_tokens": 0}}, "params.max_tokens"),
    "lone surrogate in a parameter": ({**said("x"), "params": {"thinking": {"a": ["\ud800"]}}}, "params.thinking"),
    "lone surrogate in a name": ({**said("x"), "params": {"thinking": {"\ud800": 1}}}, "params.thinking"),
    "NUL in a parameter": ({**said("x"), "params": {"output_config": {"a": "\0"}}}, "params.output_config"),
    "NUL in a stop sequence": ({**said("x"), "params": {"stop_sequences": ["\0"]}}, "params.stop_sequences"),
    "infinity": ({**said("x"), "params": {"thinking": {"a": float("inf")}}}, "params.thinking"),
    "not a number": ({**said("x"), "params": {"thinking": {"a": float("nan")}}}, "params.thinking"),
    "text for a number": ({**said("x"), "params": {"max_tokens": "5"}}, "params.max_tokens"),
    "truth for a number": ({**said("x"), "limits": {"max_rounds": True}}, "limits.max_rounds"),
    "number for truth": ({**said("x"), "limits": {"continue_after_tools": 1}}, "limits.continue_after_tools"),
    "too few rounds": ({**said("x"), "limits": {"max_rounds": -1}}, "limits.max_rounds"),
    "too many rounds": ({**said("x"), "limits": {"max_rounds": 101}}, "limits.max_rounds"),
    "too many failed rounds": ({**said("x"), "limits": {"max_failed_rounds": 0}}, "limits.max_failed_rounds"),
    "too many recoveries": ({**said("x"), "limits": {"max_recoveries": 101}}, "limits.max_recoveries"),
    "unknown policy": ({**said("x"), "limits": {"recovery": "hope"}}, "limits.recovery"),
    "unknown limit": ({**said("x"), "limits": {"patience": 1}}, "limits.patience"),
    "parent that is no id": ({**said("x"), "parent_id": "x"}, "parent_id"),
    "parent that is not there": ({**said("x"), "parent_id": str(uuid4())}, "parent_id"),
}

BAD_CHATS: dict[str, tuple[Any, str]] = {
    "unknown field": ({"owner": "me"}, "owner"),
    "empty title": ({"title": ""}, "title"),
    "long title": ({"title": "x" * 301}, "title"),
    "NUL in the title": ({"title": "\0"}, "title"),
    "lone surrogate in the title": ({"title": "\udfff"}, "title"),
    "NUL in the system prompt": ({"system_prompt": "\0"}, "system_prompt"),
    "unknown model": ({"settings": {"model": "none such"}}, "settings.model"),
    "unknown tool": ({"settings": {"tools": ["none such"]}}, "settings.tools.0"),
    "lone surrogate in the settings": (
        {"settings": {"params": {"thinking": {"a": "\ud800"}}}},
        "settings.params.thinking",
    ),
    "limit out of range": ({"settings": {"limits": {"max_rounds": 101}}}, "settings.limits.max_rounds"),
    "not an object": ("x", "(body)"),
}

UNREADABLE: dict[str, bytes] = {
    "no JSON": b"{",
    "two documents": b"{}{}",
    "not UTF-8": b'{"blocks":[{"type":"text","text":"\xff"}]}',
    "an encoded surrogate": b'{"blocks":[{"type":"text","text":"\xed\xa0\x80"}]}',
    "UTF-16": json.dumps(said("x")).encode("utf-16"),
    "a little too deep": b'{"params":{"thinking":{"a":' + b"[" * 300 + b"]" * 300 + b"}}}",
    "much too deep": b"[" * 40_000,
    "a number too long": b'{"params":{"thinking":{"a":' + b"9" * 5000 + b"}}}",
    "a control character": b'{"blocks":[{"type":"text","text":"\n"}]}',
}


async def stored(api: Client) -> Any:
    chats = (await api.json("GET", "/api/chats"))["chats"]
    return chats, [await api.json("GET", f"/api/chats/{chat['id']}/turns") for chat in chats]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (BAD_TURNS["unknown block type"], "must be one of 'text', 'image', 'document'"),
        (({**said("x"), "tools": [{"type": "x"}]}, "tools.0.type"), "must be one of 'client', 'http', 'provider'"),
        (BAD_TURNS["empty text"], "must not be empty"),
        (({**said("x"), "model": "x" * 201}, "model"), "must have at most 200 characters"),
        (BAD_TURNS["empty blocks"], "must hold at least one item"),
        (BAD_TURNS["unknown field of a block"], "is not known here; known are `type`, `text`"),
        (BAD_TURNS["no block type"], "must be one of 'text', 'image', 'document'"),
    ],
)
async def test_a_refusal_names_the_known_values(api: Client, body: tuple[Any, str], message: str) -> None:
    refused = await api.json("POST", "/api/turns", 422, json=body[0])
    assert refused["errors"] == [{"field": body[1], "message": f"`{body[1]}` {message}."}]


@pytest.mark.extensions("documents")
@pytest.mark.parametrize("what", BAD_TURNS)
async def test_a_bad_turn_is_refused_by_field(api: Client, server: Server, what: str) -> None:
    server.scripts.offers.append(ProviderModels(ScriptedProvider(()), (), ["any-"]))
    body, field = BAD_TURNS[what]
    chat = await api.chat()
    before = await stored(api)
    paths = [f"{chat}/turns"] if what == "parent that is not there" else [f"{chat}/turns", "/api/turns"]
    for path in paths:
        refused = await api.json("POST", path, 422, content=json.dumps(body), headers=JSON)
        assert field in [error["field"] for error in refused["errors"]]
    assert await stored(api) == before


@pytest.mark.parametrize("what", BAD_CHATS)
async def test_a_bad_chat_is_refused_by_field(api: Client, what: str) -> None:
    body, field = BAD_CHATS[what]
    chat = await api.chat()
    before = await stored(api)
    for method, path in (("POST", "/api/chats"), ("PATCH", chat)):
        refused = await api.json(method, path, 422, content=json.dumps(body), headers=JSON)
        assert field in [error["field"] for error in refused["errors"]]
    assert await stored(api) == before


@pytest.mark.parametrize("what", UNREADABLE)
async def test_a_body_that_is_not_json_is_refused(api: Client, what: str) -> None:
    turn = await api.ask(await api.chat())
    chat = turn.url.partition("/turns")[0]
    before = await stored(api)
    for method, path in (
        *(("POST", "/api/chats"), ("PATCH", chat), ("POST", "/api/turns"), ("POST", f"{chat}/turns")),
        ("POST", f"{turn.url}/regenerate"),
    ):
        await api.json(method, path, 400, content=UNREADABLE[what], headers=JSON)
    assert await stored(api) == before


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/json5"])
async def test_a_body_without_the_media_type_of_json_is_refused(api: Client, kind: str | None) -> None:
    headers = {"Content-Type": kind} if kind else {}
    await api.json("POST", "/api/turns", 415, content=json.dumps(said("Hi")), headers=headers)
    assert (await stored(api))[0] == []


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8"])
async def test_the_media_type_of_json_may_have_parameters(api: Client, kind: str) -> None:
    await api.json("POST", "/api/turns", 201, content=json.dumps(said("Hi")), headers={"Content-Type": kind})


async def test_a_body_that_is_too_large_is_refused(api: Client, server: Server) -> None:
    most = server.services.http.max_body_bytes
    body = json.dumps(said("x" * most)).encode()
    await api.json("POST", "/api/turns", 413, content=body, headers=JSON)
    fits = json.dumps(said("x" * (most - len(json.dumps(said(""))))))
    assert len(fits) == most
    await api.json("POST", "/api/turns", 201, content=fits, headers=JSON)
    assert len((await stored(api))[0]) == 1


async def test_a_parent_must_be_an_answer_in_the_same_chat(api: Client, new_owner: NewOwner) -> None:
    turn, elsewhere = await api.ask(await api.chat()), await api.ask(await api.chat())
    other = await new_owner()
    theirs = await other.ask(await other.chat())
    chat = turn.url.partition("/turns")[0]
    before = await stored(api)
    for parent in (turn.user, elsewhere.assistant, elsewhere.user, theirs.assistant):
        refused = await api.json("POST", f"{chat}/turns", 422, json={**said("x"), "parent_id": parent["id"]})
        assert refused["errors"][0]["field"] == "parent_id"
    assert await stored(api) == before


async def test_a_new_chat_has_no_parent_to_name(api: Client) -> None:
    turn = await api.ask(await api.chat())
    refused = await api.json("POST", "/api/turns", 422, json={**said("x"), "parent_id": turn.assistant["id"]})
    assert refused["errors"][0]["field"] == "parent_id"


async def test_a_client_that_accepts_a_stream_is_refused_in_json(api: Client) -> None:
    refused = await api.post("/api/turns", json=said(""), headers={"Accept": "text/event-stream"})
    assert (refused.status_code, refused.headers["content-type"]) == (422, "application/problem+json")


async def test_several_wrong_fields_are_all_named(api: Client) -> None:
    refused = await api.json("POST", "/api/turns", 422, json={"blocks": [], "role": "x", "y": 1})
    assert {error["field"] for error in refused["errors"]} == {"blocks", "role", "y"}


@pytest.mark.extensions("documents")
@pytest.mark.parametrize("limit", ["0", "-1", "x", "1.5", "", "9" * 5000, "\uff11", "99999"])
async def test_a_limit_out_of_range_is_refused_by_name(api: Client, limit: str) -> None:
    turn = await api.ask(await api.chat())
    chat = turn.url.partition("/turns")[0]
    for path in ("/api/chats", "/api/documents", f"{chat}/turns", f"{turn.url}/path"):
        refused = await api.json("GET", path, 422, params={"limit": limit})
        assert refused["errors"][0]["field"] == "limit"


@pytest.mark.parametrize("leaf", ["x", "", "\0", "1"])
async def test_a_leaf_that_is_no_id_is_refused_by_name(api: Client, leaf: str) -> None:
    refused = await api.json("GET", f"{await api.chat()}/turns", 422, params={"leaf": leaf})
    assert refused["errors"][0]["field"] == "leaf"
