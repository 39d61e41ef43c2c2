"""Limits of owners: of forty simultaneous requests, only the allowed number succeeds, and the refused requests store
nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, fields
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.integration.api.test_openapi import running, saying
from tests.integration.api.test_owner_limits import Doors
from tests.integration.api.test_waiting import until_waiting
from tests.support import calls
from tests.support.http_client import Client, said
from tests.support.http_server import Server, serving
from tests.support.openapi_document import Document
from turnstream.api.http.endpoint import Endpoint
from turnstream.api.schemas.requests import NewTurn, TurnOptions
from turnstream.domain.plans import RATES, Plan
from turnstream.extensions.anthropic_api.events import MessageId
from turnstream.extensions.anthropic_api.schemas import CountIn
from turnstream.extensions.fork.calls import ForkIn
from turnstream.extensions.openai_api.objects import ResponseId
from turnstream.extensions.openai_api.schemas import EmbeddingsIn
from turnstream.llm.models.catalog import Model, ProviderModels
from turnstream.scripted import Pause, ScriptedProvider, message_of, text, tool_use
from turnstream.storage.database import Statement

pytestmark = pytest.mark.asyncio(loop_scope="session")

AT_ONCE, MOST = 40, 3
ENDPOINTS = (*calls.ENDPOINTS, *calls.OPENAI)
TABLES = ("chats", "turns", "uploads", "documents", "browser_tokens", "steers", "idempotency_keys")
HISTORY = [
    {"role": "user", "content": "Hello?"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "Which colour?"},
]


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.call)
async def test_a_call_that_changes_rows_names_the_limits_from_which_it_takes(endpoint: Endpoint) -> None:
    changes = endpoint.method not in {"GET", "DELETE"}
    assert (endpoint.limits is not None) >= changes
    assert set(endpoint.limits or ()) <= {"requests", "writes", *(field.name for field in fields(Plan))}


@dataclass(frozen=True)
class Place:
    """The server and the client of a case. `model` answers only after its pause ends."""

    server: Server
    ada: Client
    openai: Client
    model: str
    chat: str  # a chat with a running turn

    async def rows(self) -> dict[str, int]:
        tables = ", ".join(f"(SELECT count(*) FROM {table}) AS {table}" for table in TABLES)
        row = await self.server.services.storage.database.row(Statement(f"SELECT {tables}"))
        assert row is not None
        return dict(row)


@asynccontextmanager
async def place_of(database_url: str, document: Document, plan: Plan) -> AsyncIterator[Place]:
    """Prepares the case. The plan applies from the start of its turn on."""
    plans: dict[str, Plan] = {}
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(database_url, plan_of=plans.get, poll_interval=60))
        token = await server.token("ada")
        ada = await stack.enter_async_context(Client(server.url, document, token, "ada"))
        openai = await stack.enter_async_context(Client(server.url, None, token, "ada"))
        pause = Pause()
        doors = Doors(server, AT_ONCE)
        chat = await ada.chat()
        await ada.say(chat, model=server.scripts.model(Doors._reply(pause)))
        await pause.reached.wait()
        plans["ada"] = plan
        yield Place(server, ada, openai, doors.name, chat)


Send = Callable[[Place, int], Awaitable[int]]


def posting(path: str, body: Callable[[Place, int], Mapping[str, Any]], method: str = "POST") -> Send:
    async def send(place: Place, number: int) -> int:
        request = body(place, number)
        client = place.openai if path.startswith("/v1/") else place.ada
        response = await client.request(method, path.format(number=number, chat=place.chat), **request)
        if response.status_code == 429:
            error = response.json()
            assert int(response.headers["retry-after"]) > 0
            assert error.get("limit") or error["error"]["limit"]
        return response.status_code

    return send


def message(place: Place, _number: int) -> Mapping[str, Any]:
    return {"json": {**said("Hi"), "model": place.model}}


def completion(place: Place, _number: int) -> Mapping[str, Any]:
    # The request is a stream, so the test does not wait for the answer of the model.
    return {"json": {"model": place.model, "messages": HISTORY, "stream": True}, "headers": {"Accept": "*/*"}}


def document_of(_place: Place, number: int) -> Mapping[str, Any]:
    return {"content": f"{number:010}"}


MESSAGES = posting("/api/turns", message)
STEERS = posting("{chat}/turns", lambda place, number: {"json": {**said("And?"), "on_busy": "steer"}})
CHATS = posting("/api/chats", lambda place, number: {"json": {}})
TOKENS = posting("/api/tokens", lambda place, number: {"json": {}})
CONVERSATIONS = posting("/v1/conversations", lambda place, number: {"json": {}})
SETTINGS = posting("/api/search/settings", lambda place, number: {"json": {"tool_results": True}}, "PUT")
DOCUMENTS = posting("/api/documents/notes/{number}.md", document_of, "PUT")
UPLOADS = posting("/api/uploads", document_of)
# For each case: the plan, and how the forty requests are sent. No case has a rate per minute, because the minute may
# end during the requests. The message that `place_of` sends is a request, too.
CASES: Mapping[str, tuple[Plan, Send]] = {
    "requests": (Plan("x", {"requests_per_day": MOST + 1}), MESSAGES),
    "requests to a turn that runs": (Plan("x", {"requests_per_day": MOST + 1}), STEERS),
    "writes of chats": (Plan("x", {"writes_per_day": MOST}), CHATS),
    "writes of browser tokens": (Plan("x", {"writes_per_month": MOST}), TOKENS),
    "writes of conversations": (Plan("x", {"writes_per_day": MOST}), CONVERSATIONS),
    "writes of search settings": (Plan("x", {"writes_per_day": MOST}), SETTINGS),
    "queued_turns": (Plan("x", running_turns=1, queued_turns=MOST), MESSAGES),
    "uploads": (Plan("x", uploads=MOST), UPLOADS),
    "upload_bytes": (Plan("x", upload_bytes=10 * MOST), UPLOADS),
    "documents": (Plan("x", documents=MOST), DOCUMENTS),
    "document_bytes": (Plan("x", document_bytes=10 * MOST), DOCUMENTS),
}
# Limits that refuse none of these requests, or whose amount is known only afterwards (test_plans_property.py).
ELSEWHERE = {"running_turns", "streams", "calls", "tokens", "cost"}


async def test_every_limit_of_a_plan_has_a_case() -> None:
    measures = {rate.partition("_per_")[0] for rate in RATES}
    limits = measures | {field.name for field in fields(Plan)} - {"name", "rates"}
    assert limits == {case.partition(" ")[0] for case in CASES} | ELSEWHERE


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raises the wait for Postgres, so that a busy machine does not refuse requests as overloaded (503) before they
    reach the limit.
    """
    monkeypatch.setattr("turnstream.storage.database.PATIENCE", 3600.0)


@pytest.mark.extensions("documents")
@pytest.mark.parametrize("case", CASES)
async def test_of_forty_requests_at_once_as_many_pass_as_the_limit_says(
    database_url: str, document: Document, case: str
) -> None:
    plan, send = CASES[case]
    async with place_of(database_url, document, plan) as place:
        statuses = await asyncio.gather(*(send(place, number) for number in range(AT_ONCE)))
        passed = [status for status in statuses if status != 429]
        assert (len(passed), {*passed} <= {200, 201, 202}) == (MOST, True)
        after = await place.rows()
        assert await send(place, AT_ONCE) == 429
        assert await place.rows() == after


async def test_of_forty_messages_at_once_as_many_answers_run_as_the_limit_says(
    database_url: str, document: Document
) -> None:
    async with place_of(database_url, document, Plan("x", running_turns=MOST)) as place:
        statuses = await asyncio.gather(*(MESSAGES(place, number) for number in range(AT_ONCE)))
        assert {*statuses} == {201}
        count = Statement("SELECT count(*) AS running FROM turns WHERE status = 'running'")
        row = await place.server.services.storage.database.row(count)
        assert row is not None
        assert row["running"] == MOST  # includes the turn that ran before


STREAMS: Mapping[str, Callable[[Place, int], tuple[str, str, Mapping[str, Any]]]] = {
    "the feed": lambda place, number: ("GET", "/api/stream", {}),
    "messages": lambda place, number: (
        "POST",
        "/api/turns",
        {**message(place, number), "headers": {"Accept": "text/event-stream"}},
    ),
    "completions": lambda place, number: ("POST", "/v1/chat/completions", completion(place, number)),
    "the AI SDK": lambda place, number: (
        "POST",
        "/api/ai-sdk/chat",
        {"json": {**saying("Hi", str(uuid4())), "turnstream": {"model": place.model}}},
    ),
    "AG-UI": lambda place, number: (
        "POST",
        "/api/ag-ui",
        {"json": {**running("Hi", str(uuid4())), "forwardedProps": {"turnstream": {"model": place.model}}}},
    ),
}


@pytest.mark.parametrize("case", STREAMS)
async def test_of_forty_streams_at_once_as_many_open_as_the_limit_says(
    database_url: str, document: Document, case: str
) -> None:
    async with place_of(database_url, document, Plan("x", streams=MOST)) as place, AsyncExitStack() as stack:
        before = (await place.rows())["chats"]

        async def opened(number: int) -> int:
            method, path, request = STREAMS[case](place, number)
            client = await stack.enter_async_context(Client(place.server.url, None, await place.server.token("ada")))
            response = await stack.enter_async_context(client.stream(method, path, **request))
            return response.status_code

        statuses = [await each for each in asyncio.as_completed([opened(number) for number in range(AT_ONCE)])]
        assert (statuses.count(200), statuses.count(429)) == (MOST, AT_ONCE - MOST)
        assert (await place.rows())["chats"] - before == (0 if case == "the feed" else MOST)


async def test_a_history_of_a_completion_that_is_refused_is_not_stored(database_url: str, document: Document) -> None:
    send = posting("/v1/chat/completions", completion)
    for plan in (Plan("x", {"requests_per_day": 0.5}), Plan("x", {"writes_per_day": 0.5})):
        async with place_of(database_url, document, plan) as place:
            before = await place.rows()
            assert {await send(place, number) for number in range(5)} == {429}
            assert await place.rows() == before


LOOK = {"type": "client", "name": "look", "description": "Look.", "input_schema": {"type": "object"}}
ANSWER = {"type": "function_call_output", "call_id": "c1", "output": "blue"}


def acted(chat: str, turn: str) -> tuple[str, Mapping[str, Any]]:
    return f"/api/chats/{chat}/turns/{turn}/actions", {
        "actions": [{"type": "result", "tool_use_id": "c1", "output": "blue"}]
    }


def answered_by_the_ai_sdk(chat: str, turn: str) -> tuple[str, Mapping[str, Any]]:
    part = {"type": "tool-look", "toolCallId": "c1", "state": "output-available", "input": {}, "output": "blue"}
    message = {"id": turn, "role": "assistant", "parts": [part]}
    return "/api/ai-sdk/chat", {"id": chat, "messages": [message]}


def answered_by_ag_ui(chat: str, turn: str) -> tuple[str, Mapping[str, Any]]:
    message = {"id": "t", "role": "tool", "toolCallId": f"c1.{turn}.1", "content": "blue"}
    return "/api/ag-ui", {**running("Hi", chat), "messages": [message]}


def responded_to(chat: str, turn: str) -> tuple[str, Mapping[str, Any]]:
    return "/v1/responses", {
        "previous_response_id": str(ResponseId(UUID(chat), UUID(turn))),
        "input": [ANSWER],
    }


def responded_with_a_message(chat: str, turn: str) -> tuple[str, Mapping[str, Any]]:
    path, body = responded_to(chat, turn)
    return path, {**body, "input": [ANSWER, {"role": "user", "content": "And?"}]}


def went_on(chat: str, turn: str) -> tuple[str, Mapping[str, Any]]:
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "blue"}
    thread = {"type": "continue", "previous_message_id": str(MessageId(UUID(chat), UUID(turn)))}
    message = {"role": "user", "content": [result, {"type": "text", "text": "And?"}]}
    return "/v1/messages", {"max_tokens": 9, "thread": thread, "messages": [message]}


@pytest.mark.parametrize(
    ("send", "limit"),
    [
        (acted, "writes"),
        (answered_by_the_ai_sdk, "writes"),
        (answered_by_ag_ui, "writes"),
        (responded_to, "writes"),
        (responded_with_a_message, "writes"),
        (responded_with_a_message, "requests"),
        (went_on, "writes"),
        (went_on, "requests"),
    ],
)
async def test_an_answer_to_a_call_is_a_write_in_every_dialect(
    database_url: str, document: Document, send: Callable[[str, str], tuple[str, Mapping[str, Any]]], limit: str
) -> None:
    plans: dict[str, Plan] = {}
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(database_url, plan_of=plans.get))
        token = await server.token("ada")
        ada = await stack.enter_async_context(Client(server.url, document, token, "ada"))
        client = await stack.enter_async_context(Client(server.url, None, token, "ada"))
        model = server.scripts.model(message_of(tool_use("look", {}, "c1")), message_of(text("Blue.")))
        turn = await ada.say(await ada.chat(), model=model, tools=[LOOK])
        await until_waiting(ada, turn)
        path, body = send(turn.assistant["chat_id"], turn.assistant["id"])
        body = {**body, "model": model} if send is went_on else body
        plans["ada"] = Plan("x", {f"{limit}_per_day": 0.5})
        refused = await client.post(path, json=body)
        assert (refused.status_code, f"{limit}_per_day" in refused.text) == (429, True)
        waiting = await ada.json("GET", turn.url)
        assert [call["tool_use_id"] for call in waiting["actions"]] == ["c1"]
        plans["ada"] = Plan("x", {f"{limit}_per_day": 2})
        assert (await client.post(path, json=body)).status_code in {200, 202}
        await ada.events(turn.stream_url)


def completed(model: str) -> tuple[str, Mapping[str, Any]]:
    return "/v1/chat/completions", {"model": model, "messages": HISTORY}


def responded(model: str) -> tuple[str, Mapping[str, Any]]:
    return "/v1/responses", {"model": model, "input": HISTORY}


def messaged(model: str) -> tuple[str, Mapping[str, Any]]:
    return "/v1/messages", {"model": model, "max_tokens": 9, "messages": HISTORY}


def conversed(model: str) -> tuple[str, Mapping[str, Any]]:
    body = saying("Hi", "chat")
    del body["messages"][0]["id"]
    return "/api/ai-sdk/chat", {**body, "turnstream": {"model": model}}


def ran(model: str) -> tuple[str, Mapping[str, Any]]:
    return "/api/ag-ui", {**running("Hi", "thread"), "forwardedProps": {"turnstream": {"model": model}}}


def posted(model: str) -> tuple[str, Mapping[str, Any]]:
    return "/api/turns", {**said("Hi"), "model": model}


# The clients of these dialects send the whole history.
WITH_HISTORY = (completed, responded, messaged)
POSTS = (posted, *WITH_HISTORY, conversed, ran)
# Bodies that continue the turn of another request, and bodies that create no turn.
NO_MESSAGE = {NewTurn, TurnOptions, ForkIn, CountIn, EmbeddingsIn}


async def test_each_body_that_makes_a_turn_is_among_them() -> None:
    assert {*calls.ASKING.values()} <= {calls.ASKING.get(post("m")[0]) for post in POSTS} | NO_MESSAGE


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("dialect", POSTS)
async def test_five_same_requests_with_one_key_have_one_effect(
    server: Server, api: Client, dialect: Callable[[str], tuple[str, Mapping[str, Any]]], at_once: bool
) -> None:
    model, provider = server.scripts.provider(*(message_of(text("Blue.")) for _ in range(5)))
    path, body = dialect(model)

    async with Client(server.url, None, await server.token(api.owner)) as client:

        async def send() -> int:
            return (await client.post(path, json=body, headers={"Idempotency-Key": f"key of {model}"})).status_code

        statuses = await asyncio.gather(*(send() for _ in range(5))) if at_once else [await send() for _ in range(5)]
    assert {*statuses} <= {200, 201}
    (chat,) = (await api.json("GET", "/api/chats"))["chats"]
    answers = (await api.json("GET", f"/api/chats/{chat['id']}/turns"))["turns"]
    assert len(answers) == (4 if dialect in WITH_HISTORY else 2)
    await api.events(f"/api/chats/{chat['id']}/turns/{answers[-1]['id']}/stream")
    assert len(provider.requests) == 1


@pytest.mark.parametrize("dialect", WITH_HISTORY)
async def test_an_answer_of_a_model_that_stores_nothing_leaves_no_chat(
    server: Server, api: Client, dialect: Callable[[str], tuple[str, Mapping[str, Any]]]
) -> None:
    model = f"side of {dialect.__name__}"
    provider = ScriptedProvider([message_of(text("Blue."))])
    server.scripts.offers.append(ProviderModels(provider, [Model(model, stores=False)]))
    path, body = dialect(model)
    async with Client(server.url, None, await server.token(api.owner)) as client:
        assert (await client.post(path, json=body)).status_code == 200
    assert (await api.json("GET", "/api/chats"))["chats"] == []
