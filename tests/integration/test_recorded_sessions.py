"""Every recorded Anthropic session, run again with rows, worker, SDK and tools: each request is the recorded one."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.integration.recorded_stage import (
    Conversation,
    Stage,
    calls_of,
    message_of,
    recorded_stage,
    reply_of,
    requests_of,
    results_of,
    rounds,
)
from tests.integration.recordings import (
    CLIENT_EDITS,
    FOLDER,
    Json,
    asked,
    conversation,
    needs_recordings,
    sessions,
    sessions_without_requests,
)
from tests.support.harness import Harness
from tests.support.legal.anthropic import request_problems
from turnstream.domain.turns import Turn
from turnstream.storage.database import connect

pytestmark = needs_recordings

# Results of tools that are more than a text.
OF_PARTS = {
    "anth-ddjs-agent-sdk-ea8af730": ["text", "text"],
    "anth-fantasy-testanthropiccomputeruse-claude-opus-4-6-computer-use-streaming": ["image"],
    "anth-fantasy-testanthropiccomputeruse-claude-sonnet-4-computer-use-streaming": ["image"],
}

# Only the replies were recorded. The parts of user and tools are made up, and the replies must go back unchanged.
ONLY_REPLIES = [
    "anth-prism-anthropic-multi-tool-conversation",
    "anth-prism-anthropic-with-tools",
    "anth-vercel-tool-search-bm25-1",
    "anth-vercel-tool-search-deferred-bm25",
    "anth-vercel-tool-search-deferred-regex",
]

NAMES = [*sessions(), *sessions_without_requests()]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(shared_database_url: str) -> AsyncIterator[Stage]:
    async with (
        connect(shared_database_url, size=10) as database,
        recorded_stage(Harness(shared_database_url, database), NAMES) as stage,
    ):
        yield stage


def expected(name: str) -> list[Conversation]:
    """The recorded requests, but for what the client changed of a reply."""
    edited = name in CLIENT_EDITS
    return [
        [(role, reply_of(name, 1) if edited and role == "assistant" else blocks) for role, blocks in request]
        for request in requests_of(name)
    ]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", NAMES)
async def test_a_recorded_session_that_is_had_again_says_the_same_in_every_request(name: str, stage: Stage) -> None:
    turns = await stage.play(name)
    heard = stage.provider.heard[name]
    assert [turn.status for turn in turns] == ["complete"] * len(turns)
    assert [conversation(request["messages"]) for request in heard] == expected(name)
    assert [problem for request in heard for problem in request_problems(request)] == []
    if name not in ONLY_REPLIES:
        assert [request.get("container") for request in heard] == [
            asked(name, n).get("container") for n in rounds(name)
        ]
    assert_rounds_are_told_as_recorded(turns, name)
    assert_called_as_recorded(stage.called(name), name)


def assert_rounds_are_told_as_recorded(turns: list[Turn], name: str) -> None:
    messages = [message_of(name, number) for number in rounds(name)]
    told = [round for turn in turns for round in turn.rounds]
    assert [round.stop_reason for round in told] == [message["stop_reason"] for message in messages]
    usages = [{k: v for k, v in message["usage"].items() if v is not None} for message in messages]
    assert [round.usage for round in told] == usages


def assert_called_as_recorded(calls: list[Json], name: str) -> None:
    recorded = {call["id"]: (call["name"], call["input"]) for call in calls_of(name)}
    assert {call["id"]: (call["name"], call["input"]) for call in calls} == recorded
    assert len(calls) == len(recorded), "each is called once"
    assert recorded.keys() == results_of(name).keys()


def test_every_session_of_the_folder_is_had_again() -> None:
    folders = [path for path in (FOLDER / "sessions").iterdir() if path.name.startswith("anth-")]
    assert sorted(NAMES) == sorted(folder.name for folder in folders)
    assert all(len(rounds(name)) > 1 for name in NAMES)
    assert {folder.name for folder in folders if not list(folder.glob("*-request.json"))} == set(ONLY_REPLIES)


def test_some_results_are_more_than_a_text() -> None:
    found = {
        name: types
        for name in sessions()
        for result in results_of(name).values()
        if (types := [inner["type"] for inner in result["content"]]) != ["text"]
    }
    assert found == OF_PARTS


def test_only_what_its_client_changed_is_excused() -> None:
    changed = {
        name for name in sessions() if _said_by_assistant(name) != [reply_of(name, n) for n in rounds(name)[:-1]]
    }
    assert changed == CLIENT_EDITS.keys()


def _said_by_assistant(name: str) -> list[list[Json]]:
    return [blocks for role, blocks in requests_of(name)[-1] if role == "assistant"]
