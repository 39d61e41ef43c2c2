"""The server processes an endless chat or answer in portions, and lets other work run after each portion."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
from msgspec import Raw
from pydantic_core import from_json

from turnstream.api.codec import input_of
from turnstream.api.views import shown_turn
from turnstream.domain.blocks import Block
from turnstream.domain.events import BlockStop
from turnstream.domain.rounds import Round
from turnstream.domain.turns import Turn, TurnError, TurnRequest
from turnstream.extensions.ag_ui.encoder import Run, RunEncoder
from turnstream.extensions.ag_ui.messages import ClientIds, answer_messages, ids_of_client, thread_messages
from turnstream.extensions.ag_ui.schemas import AgUiUserMessageIn
from turnstream.extensions.ai_sdk.messages import ui_message
from turnstream.extensions.openai_api.items import items_of_path
from turnstream.extensions.openai_api.stream import response_now
from turnstream.kit import offload
from turnstream.kit.json_values import MOST_VALUES
from turnstream.kit.offload import Portions
from turnstream.stream.live import LiveView
from turnstream.tools.grants import meets

COUNT = 500
NOW = datetime(2026, 1, 1, tzinfo=UTC)
ANSWER = Turn(
    uuid4(),
    uuid4(),
    uuid4(),
    "assistant",
    "complete",
    attempt=1,
    request=TurnRequest("model"),
    blocks=tuple(Block(index, 1, 1, "text", f"word {index} ") for index in range(COUNT)),
    rounds=(Round(1, 1, sealed_by=1, stop_reason="end_turn"),),
    stop_reason="end_turn",
    created_at=NOW,
)
PATH = [replace(ANSWER, id=uuid4(), blocks=ANSWER.blocks[:1]) for _ in range(COUNT)]


def shown(turn: Turn = ANSWER) -> Awaitable[Raw]:
    services = SimpleNamespace(
        live=SimpleNamespace(directory=SimpleNamespace(view=LiveView)),
        resolver=SimpleNamespace(models=SimpleNamespace(cost=lambda *_: None)),
    )
    return shown_turn(turn, cast("Any", services)).encoded(Portions())


def now() -> Awaitable[Any]:
    directory = SimpleNamespace(view=LiveView, running=lambda _: None)
    return response_now(cast("Any", SimpleNamespace(live=SimpleNamespace(directory=directory))), ANSWER, 0)


@pytest.mark.parametrize(
    "work",
    [
        shown,
        lambda: ui_message(ANSWER, "", Portions()),
        lambda: items_of_path([ANSWER]),
        lambda: items_of_path(PATH),
        lambda: thread_messages(PATH, "", ClientIds()),
        lambda: thread_messages([ANSWER], "", ClientIds()),
        now,
    ],
)
def test_others_may_work_between_all_steps(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Awaitable[Any]]) -> None:
    monkeypatch.setattr(offload, "_PORTION", 0.0)
    assert sum(1 for _ in work().__await__()) >= COUNT


async def test_a_turn_is_shown_whole_whatever_its_error_holds() -> None:
    error = TurnError("api_error", "It failed.", details={"blocks": []})
    body = from_json(bytes(await shown(replace(ANSWER, status="error", error=error))))
    assert body["error"]["details"] == {"blocks": []}
    assert [block["text"] for block in body["blocks"]] == [block.text for block in ANSWER.blocks]


def test_an_input_of_too_many_values_is_decoded_nowhere() -> None:
    text = '{"a": [' + "0," * MOST_VALUES + "0]}"
    assert input_of(text) == text
    assert not meets({"a": {}}, text)
    assert meets({"a": {}}, '{"a": "' + "," * MOST_VALUES + '"}')


async def test_work_shorter_than_a_portion_continues_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "_PORTION", 60.0)
    assert list(Portions().pause().__await__()) == []


def test_messages_of_a_client_are_compared_at_a_cost_that_grows_with_them_alone() -> None:
    many = [replace(PATH[0], id=uuid4(), role="user") for _ in range(5000)]
    sent = [AgUiUserMessageIn(id=str(turn.id), role="user", content="word 0 ") for turn in many]
    before = time.thread_time()
    assert len(ids_of_client(many, sent).users) == len(many)
    assert time.thread_time() - before < 2


async def test_blocks_become_messages_at_a_cost_that_grows_with_them_alone() -> None:
    calls = [Block(index, 1, 1, "tool_use", "{}", tool_use_id=str(index), name="look") for index in range(5000)]
    results = [Block(5000 + i, 1, 1, "tool_result", "ok", tool_use_id=str(i), name="look") for i in range(5000)]
    texts = [Block(10_000 + index, 2, 1, "text", "word ") for index in range(5000)]
    before = time.thread_time()
    first, *middle, last = await answer_messages(uuid4(), [*calls, *results, *texts], ClientIds(), Portions())
    assert time.thread_time() - before < 2
    assert len(first["toolCalls"]) == len(middle) == 5000
    assert [result["toolCallId"] for result in middle] == [call["id"] for call in first["toolCalls"]]
    assert last["content"] == "word " * 5000


async def test_a_result_whose_call_was_lost_is_a_message_of_its_own() -> None:
    lost = [Block(0, 1, 1, "tool_result", "ok", tool_use_id="one", name="look"), Block(1, 2, 1, "text", "done")]
    result, text = await answer_messages(uuid4(), lost, ClientIds(), Portions())
    assert (result["role"], result["content"]) == ("tool", "ok")
    assert (text["role"], text["content"]) == ("assistant", "done")


async def test_a_result_of_the_provider_may_name_its_call_by_an_invalid_id() -> None:
    """The server stores blocks of a provider unchanged, so an id in a block may have any type."""
    blocks = [
        Block(0, 1, 1, "server_tool_use", "{}", tool_use_id="1", name="web_search"),
        Block(1, 1, 1, "web_search_tool_result", data='{"tool_use_id": ["1"], "content": []}'),
        Block(2, 1, 1, "text", "done"),
    ]
    messages = await answer_messages(uuid4(), blocks, ClientIds(), Portions())
    assert "done" in [message["content"] for message in messages]
    assert not any("toolCallId" in message for message in messages)


async def test_results_of_the_provider_are_found_at_a_cost_that_grows_with_them_alone() -> None:
    blocks = [
        block
        for index in range(0, 10_000, 2)
        for block in (
            Block(index, 1, 1, "server_tool_use", "{}", tool_use_id=str(index), name="web_search"),
            Block(index + 1, 1, 1, "web_search_tool_result", data=f'{{"tool_use_id": "{index}", "content": []}}'),
        )
    ]
    before = time.thread_time()
    reply, *results = await answer_messages(uuid4(), blocks, ClientIds(), Portions())
    assert [result["toolCallId"] for result in results] == [call["id"] for call in reply["toolCalls"]]
    turn = replace(ANSWER, blocks=())
    encode = RunEncoder(turn, Run("thread", "run"), lambda: turn, collects=False)
    frames = b"".join(encode(BlockStop(1, block), None) for block in blocks)
    assert time.thread_time() - before < 4
    assert frames.count(b"TOOL_CALL_RESULT") == len(results) == 5000
