"""Replaces each member of a valid body by each type of JSON, in all dialects. The answer must be a success or a refusal
in the dialect's form, and a refusal must store nothing.
"""

import asyncio
import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any
from uuid import uuid4

import asyncpg
import httpx2
import pytest

from tests.support.calls import ASKING
from tests.support.effort import share
from tests.support.http_server import Server
from tests.support.pictures import PIXEL
from turnstream.api.schemas.requests import NewTurn, NewTurnInNewChat, TurnOptions
from turnstream.extensions.fork.calls import ForkIn
from turnstream.extensions.openai_api.schemas import EmbeddingsIn

pytestmark = pytest.mark.asyncio(loop_scope="session")

Json = dict[str, Any]
Path = tuple[str | int, ...]

MISSING = object()
DEEP: Any = []
for _ in range(150):
    DEEP = [DEEP]
KINDS: Sequence[Any] = (
    *(None, True, 7, -1.5, 10**30, "", "x", "\u0000", [], {}, [None], [[]], ["x"], [{}]),
    *({"type": []}, {"type": {}}, [{"type": []}], {"x": None}, DEEP, "x" * 300_000, MISSING),
)
PICTURE = f"data:image/png;base64,{b64encode(PIXEL).decode()}"
SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}}
FUNCTION = {"name": "look", "description": "Looks.", "parameters": SCHEMA, "strict": False}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
TOOLS_OF_SERVER = {"type": "mcp", "server_label": "turnstream", "allowed_tools": ["doc_view"]}
ITEMS = [
    {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
    {"role": "user", "content": [{"type": "input_text", "text": "See."}, {"type": "input_text", "text": "There."}]},
    {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}", "id": "fc_1", "status": "completed"},
    {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "sea"}]},
    {"role": "assistant", "content": [{"type": "output_text", "text": "A sea.", "annotations": []}]},
]
NEWS = {
    "role": "user",
    "content": [
        {"type": "input_text", "text": "And?"},
        {"type": "input_image", "image_url": PICTURE, "detail": "auto"},
        {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,SGVsbG8="},
    ],
}
MESSAGE = {"id": "m", "role": "user", "content": "Hi"}
AG_UI_TOOL = {"name": "look", "description": "Looks.", "parameters": SCHEMA}
# The calls that take a body, each with valid bodies.
BODIES: Sequence[tuple[str, Json]] = (
    (
        "/v1/responses",
        {
            "model": "plain",
            "input": [*ITEMS, NEWS],
            "instructions": "Be kind.",
            "tools": [{"type": "function", **FUNCTION}, TOOLS_OF_SERVER],
            "tool_choice": "auto",
            "text": {"format": {"type": "text"}},
            "metadata": {"a": "b"},
            "store": True,
        },
    ),
    (
        "/v1/chat/completions",
        {
            "model": "plain",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "Look."}]},
                {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None},
                {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "sea"}]},
                {"role": "assistant", "content": "A sea."},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "And this?"},
                        {"type": "image_url", "image_url": {"url": PICTURE, "detail": "low"}},
                        {"type": "file", "file": {"filename": "a.txt", "file_data": "data:text/plain;base64,SGVsbG8="}},
                    ],
                },
            ],
            "tools": [{"type": "function", "function": FUNCTION}],
            "tool_choice": {"type": "function", "function": {"name": "look"}},
            "response_format": {"type": "text"},
            "stream_options": {"include_usage": True},
        },
    ),
    (
        "/v1/messages",
        {
            "model": "plain",
            "max_tokens": 100,
            "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": "Look."},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                        {"type": "text", "text": "Wait."},
                        {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "sea"}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "sea"}]},
                        {"type": "image", "source": {"type": "url", "url": PICTURE}},
                        {
                            "type": "document",
                            "title": "A",
                            "source": {"type": "text", "media_type": "text/plain", "data": "Hello"},
                        },
                    ],
                },
            ],
            "tools": [{"name": "look", "description": "Looks.", "input_schema": SCHEMA, "strict": True}],
            "tool_choice": {"type": "tool", "name": "look", "disable_parallel_tool_use": True},
            "thinking": {"type": "adaptive"},
            "output_config": {"effort": "low"},
            "metadata": {"user_id": "ada"},
            "stop_sequences": ["stop"],
            "thread": {"type": "create"},
        },
    ),
    (
        "/v1/messages/count_tokens",
        {
            "model": "plain",
            "system": "Be brief.",
            "messages": [
                {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": PICTURE}}]},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "sea"}]},
            ],
            "tools": [{"name": "look", "input_schema": SCHEMA}],
        },
    ),
    ("/v1/conversations", {"items": ITEMS, "metadata": {"a": "b"}}),
    (
        "/api/ag-ui",
        {
            "threadId": "t",
            "runId": "r",
            "messages": [
                {"id": "s", "role": "system", "content": "Be brief."},
                {
                    "id": "m",
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "Hi"},
                        {"type": "image", "source": {"type": "data", "value": PICTURE.partition(",")[2]}},
                    ],
                },
            ],
            "tools": [AG_UI_TOOL],
            "context": [{"description": "Place", "value": "Sea"}],
            "state": {"a": 1},
            "resume": [],
            "forwardedProps": {"turnstream": {"labels": {"a": "b"}}},
        },
    ),
    (
        "/api/ag-ui/connect",
        {"threadId": "t", "runId": "r", "messages": [MESSAGE], "tools": [AG_UI_TOOL], "context": [], "state": None},
    ),
    (
        "/api/ag-ui",
        {"threadId": "t", "runId": "r", "messages": [MESSAGE, {"id": "a", "role": "tool", "toolCallId": "c.t.1"}]},
    ),
    (
        "/api/ag-ui",
        {"threadId": "t", "runId": "r", "resume": [{"interruptId": "c.t.1:d", "status": "resolved", "payload": True}]},
    ),
    (
        "/api/ai-sdk/chat",
        {
            "id": "t",
            "trigger": "submit-message",
            "messages": [
                {
                    "id": "m",
                    "role": "user",
                    "parts": [
                        {"type": "text", "text": "Hi"},
                        {"type": "file", "url": PICTURE, "mediaType": "image/png", "filename": "a.png"},
                    ],
                }
            ],
            "system": "Be brief.",
            "tools": {"look": {"description": "Looks.", "parameters": SCHEMA}},
            "turnstream": {"labels": {"a": "b"}},
        },
    ),
    (
        "/api/chats",
        {"title": "A", "system_prompt": "Be brief.", "settings": {"model": "plain", "labels": {"a": "b"}, "tools": []}},
    ),
)


# Bodies without a conversation are left out. Bodies of this server's own calls are left out, too, because
# `test_openapi.py` tests their schemas.
ELSEWHERE = {NewTurnInNewChat, NewTurn, TurnOptions, ForkIn, EmbeddingsIn}


async def test_each_body_that_asks_a_model_is_among_them() -> None:
    assert {*ASKING.values()} <= {ASKING.get(path) for path, _ in BODIES} | ELSEWHERE


def paths_in(value: Any, path: Path = ()) -> Iterator[Path]:
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, member in members:
        yield (*path, name)
        yield from paths_in(member, (*path, name))


def changed(body: Json, path: Path, value: Any) -> Json:
    body = deepcopy(body)
    inner: Any = body
    for step in path[:-1]:
        inner = inner[step]
    if value is MISSING:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return body


async def rows_of(connection: "asyncpg.Connection[asyncpg.Record]", owner: str) -> tuple[int, ...]:
    """Counts the owner's rows in each table."""
    row = await connection.fetchrow(
        """SELECT (SELECT count(*) FROM chats WHERE owner = $1),
                  (SELECT count(*) FROM turns JOIN chats ON chats.id = chat_id WHERE chats.owner = $1),
                  (SELECT count(*) FROM uploads WHERE owner = $1)""",
        owner,
    )
    assert row is not None
    return tuple(row)


def check_refusal(call: str, response: httpx2.Response) -> None:
    assert response.status_code < 500
    body = response.json()
    if call.startswith("/v1/messages"):
        assert body["type"] == "error"
        assert body["error"].keys() - {"details"} == {"type", "message"}
        assert body["error"]["message"]
    elif call.startswith("/v1/"):
        assert body["error"].keys() == {"message", "type", "param", "code"}
        assert body["error"]["message"]
    else:
        assert response.headers["content-type"] == "application/problem+json"
        assert body["status"] == response.status_code
        assert body["detail"]


def extension_of(call: str) -> tuple[str, ...]:
    owners = {"/v1/messages": "anthropic_api", "/v1/": "openai_api", "/api/ag-ui": "ag_ui", "/api/ai-sdk/": "ai_sdk"}
    return tuple(name for path, name in owners.items() if call.startswith(path))[:1]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("call", "body"),
    [
        pytest.param(call, body, id=f"{number} {call}", marks=pytest.mark.extensions(*extension_of(call)))
        for number, (call, body) in enumerate(BODIES)
    ],
)
async def test_any_json_in_any_place_has_a_defined_answer(server: Server, call: str, body: Json) -> None:
    owner = f"owner {uuid4()}"
    headers = {"Authorization": f"Bearer {await server.token(owner)}", "Content-Type": "application/json"}
    connection = await asyncpg.connect(server.database_url)
    failures = []
    async with httpx2.AsyncClient(base_url=server.url, headers=headers, trust_env=False, timeout=150) as client:

        async def answer(sent: Json) -> httpx2.Response:
            # Every request has its own thread id. In a common thread, a stream would wait for the previous stream.
            thread = {name: str(uuid4()) for name in ("threadId", "id") if sent.get(name) == "t"}
            return await client.post(call, content=json.dumps({**sent, **thread}))

        valid = await answer(body)
        is_valid = not any("c.t.1" in str(each) for each in body.values())  # an answer to a call that does not exist
        assert (valid.status_code < 300) == is_valid, valid.text
        rows = await rows_of(connection, owner)
        for path, value in share([(path, value) for path in paths_in(body) for value in KINDS], full=4, plain=8):
            try:
                response = await answer(changed(body, path, value))
                before, rows = rows, await rows_of(connection, owner)
                if response.status_code >= 400:
                    check_refusal(call, response)
                    assert rows == before, "a refusal has stored rows"
            except (AssertionError, ValueError, KeyError) as error:
                failures.append((path, str(value)[:40], repr(error)[:300]))
    await connection.close()
    await asyncio.sleep(0)
    assert not failures, "\n".join(map(str, failures))
