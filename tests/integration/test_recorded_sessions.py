"""Every recorded Anthropic session, run again with rows, worker, SDK and tools: each request equals the recorded
request.
"""

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
    FOLDERS,
    Json,
    asked,
    conversation,
    is_edited,
    is_one_chat,
    needs_recordings,
    sessions,
    sessions_without_requests,
)
from tests.support.harness import Harness
from tests.support.legal.anthropic import request_problems
from turnstream.domain.kinds import TOOL_RESULT, TOOL_USE
from turnstream.domain.turns import Turn
from turnstream.storage.database import connect

pytestmark = needs_recordings

# Only the replies of these sessions were recorded. The parts of the user and the tools are invented, and the replies
# must be sent back unchanged.
ONLY_REPLIES = sessions_without_requests()


def can_be_had_again(name: str) -> bool:
    """Returns False for sessions that users of this server cannot produce: text beside results, or an answer in another
    chat.
    """
    users = [{block["type"] for block in blocks} for role, blocks in requests_of(name)[-1] if role == "user"]
    return is_one_chat(name) and not any(TOOL_RESULT in types and len(types) > 1 for types in users)


NAMES = [*filter(can_be_had_again, sessions()), *ONLY_REPLIES]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(shared_database_url: str) -> AsyncIterator[Stage]:
    async with (
        connect(shared_database_url, size=10) as database,
        recorded_stage(Harness(shared_database_url, database), NAMES) as stage,
    ):
        yield stage


def expected(name: str) -> list[Conversation]:
    """Returns the recorded requests, in which replies that the client changed are restored."""
    edited = name not in ONLY_REPLIES and is_edited(name)
    return [
        [(role, reply_of(name, 1) if edited and role == "assistant" else blocks) for role, blocks in request]
        for request in requests_of(name)
    ]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", NAMES)
async def test_a_recorded_session_that_is_had_again_says_the_same_in_every_request(name: str, stage: Stage) -> None:
    turns = await stage.play(name)
    heard = stage.provider.heard[name]
    reasons = [message_of(name, number)["stop_reason"] for number in rounds(name)]
    ends_in_call = reasons[-1] == TOOL_USE  # the recorded client stopped at the call
    if ends_in_call:
        heard = heard[:-1]
    else:
        assert [turn.status for turn in turns] == ["complete"] * len(turns)
    assert [conversation(request["messages"]) for request in heard] == expected(name)
    paused = [False, *(reason == "pause_turn" for reason in reasons)]
    problems = [request_problems(request, paused=paused[number]) for number, request in enumerate(heard)]
    assert [each for each in problems if each] == []
    if name not in ONLY_REPLIES:
        assert [request.get("container") for request in heard] == [
            asked(name, n).get("container") for n in rounds(name)
        ]
    assert_rounds_are_told_as_recorded(turns, name)
    if not ends_in_call:
        assert_called_as_recorded(stage.called(name), name)


def assert_rounds_are_told_as_recorded(turns: list[Turn], name: str) -> None:
    messages = [message_of(name, number) for number in rounds(name)]
    told = [round for turn in turns for round in turn.rounds][: len(messages)]
    assert [round.stop_reason for round in told] == [message["stop_reason"] for message in messages]
    usages = [{k: v for k, v in message["usage"].items() if v is not None} for message in messages]
    assert [round.usage for round in told] == usages


def assert_called_as_recorded(calls: list[Json], name: str) -> None:
    recorded = {call["id"]: (call["name"], call["input"]) for call in calls_of(name)}
    assert {call["id"]: (call["name"], call["input"]) for call in calls} == recorded
    assert len(calls) == len(recorded), "each is called once"
    assert recorded.keys() == results_of(name).keys()


def test_every_session_of_the_folders_is_had_again() -> None:
    found = {path.name: path for folder in FOLDERS for path in (folder / "sessions").glob("anth-*")}
    assert found.keys() - set(NAMES) == {name for name in sessions() if not can_be_had_again(name)}
    assert all(len(rounds(name)) > 1 for name in NAMES)
    assert {name for name, path in found.items() if not list(path.glob("*-request.json"))} == set(ONLY_REPLIES)
