"""The engine runs a recorded turn again without a network. The result equals the recorded result, or the differences
are reported.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Literal
from uuid import UUID

import httpx2
import pytest

from tests.contracts.test_provider import stream_of
from tests.integration.plays import Author, Play, playing
from tests.integration.test_loop_people import waits
from tests.support.command_line import turnstream
from tests.support.effort import tries
from tests.support.harness import OWNER, POLICY, QUICK, Asked, Harness, Replica, with_model
from tests.support.model_apis import EXTENSIONS
from tests.support.model_requests import assistant
from turnstream.config import Settings
from turnstream.domain.asks import AskAnswer
from turnstream.domain.blocks import Block
from turnstream.domain.kinds import TEXT, TOOL_RESULT, USER_TEXT
from turnstream.domain.plans import Plans
from turnstream.domain.turns import Limits, ToolSpec, Turn
from turnstream.libraries.providers.anthropic.provider import AnthropicProvider
from turnstream.llm.interceptor import CallPublisher
from turnstream.llm.models.catalog import Models
from turnstream.scripted import text, tool_use
from turnstream.setup.policies import worker_policy
from turnstream.storage.chats.actions import Actions, Decision
from turnstream.storage.database import Database, Statement, connect
from turnstream.tools.tool import Tool, tool
from turnstream_lab import rerun as rerun_module
from turnstream_lab.chaos import ChaosInterceptor, ChaosPlan
from turnstream_lab.offline import offline_models
from turnstream_lab.recording import Recording
from turnstream_lab.recordings import RecordingInterceptor, Recordings
from turnstream_lab.replay_command import divergences
from turnstream_lab.rerun import Rerun, rerun
from turnstream_lab.transfer import find_turn, steer_as_recorded

FORGET = Statement("DELETE FROM chats WHERE id = :chat")
SETTINGS = Settings(max_retries=QUICK.most, max_retry_after=QUICK.max_retry_after)
CHATS = tries(12)
KEY = "sk-very-secret"


@tool(read_only=True)
async def look(what: str = "it") -> str:
    """Look at something."""
    return f"seen {what}"


@tool()
async def explode() -> str:
    """Break."""
    raise ValueError


@pytest.fixture
async def target(shared_database_url: str) -> AsyncIterator[Database]:
    """The database in which turns are replayed."""
    async with connect(shared_database_url, size=4) as database:
        yield database


@asynccontextmanager
async def recording(folder: Path, url: str, *interceptors: ChaosInterceptor) -> AsyncIterator[CallPublisher]:
    with Recordings(folder) as recordings:
        async with AnthropicProvider(
            KEY, url, interceptors=[*interceptors, RecordingInterceptor(recordings)]
        ) as provider:
            yield CallPublisher(provider)


async def again(harness: Harness, target: Database, folder: Path, asked: Asked) -> tuple[Turn, list[Recording], Rerun]:
    owner, then = await find_turn(harness.database, asked.turn)
    recordings = Recordings(folder).read(asked.turn)
    await target.rows(FORGET, chat=asked.chat)
    return (
        then,
        recordings,
        await rerun(
            harness.database,
            target,
            owner,
            then,
            recordings,
            open_models=partial(offline_models, SETTINGS, EXTENSIONS),
            policy=worker_policy(SETTINGS, Models(), Plans()),
        ),
    )


def divergences_of(found: tuple[Turn, list[Recording], Rerun]) -> list[str]:
    return list(divergences(*found))


@pytest.mark.timeout(180)
async def test_turns_that_had_faults_of_every_kind_go_the_same_way_again(
    harness: Harness, target: Database, tmp_path: Path
) -> None:
    chaos = ChaosInterceptor(ChaosPlan(11, share=0.4, longest_wait=0.07, reach=300))
    policy = with_model(POLICY, stall_timeout=0.3)
    turns = []
    async with (
        playing() as stage,
        recording(tmp_path, stage.url, chaos) as provider,
        harness.replica(provider, [look, explode], policy=policy) as replica,
    ):
        after = None
        for number in range(CHATS):
            random, model = Random(number), f"claude-{number}"
            author = Author(random)
            script = [author.play(ending="whole") for _ in range(2)] + [author.play("whole", calm=True)] * 50
            stage.rehearse(model, script)
            limits = Limits(recovery=random.choice(["retry", "continue"]))
            after = await harness.ask(model=model, tools=[look, explode], limits=limits, after=after)
            await harness.finish(replica, after)
            turns.append(after)
    found = [await again(harness, target, tmp_path, asked) for asked in turns]
    assert [divergences_of(each) for each in found] == [[]] * CHATS
    assert sum(len(recordings) for _, recordings, _ in found) > CHATS
    assert sum(chaos.happened.values()) > CHATS // 4
    assert KEY not in "".join(path.read_text() for path in tmp_path.rglob("*.jsonl"))


# --- one turn with a script ------------------------------------------------------------------------------------------

ANSWER = stream_of(text("It is ", "high.")).replace(b'"stop_reason": "tool_use"', b'"stop_reason": "end_turn"')


def call(name: str) -> bytes:
    return stream_of(text("I look."), tool_use(name, {"what": "tides"}, "toolu_1"))


@tool(approval="always")
async def write(what: str) -> str:
    """Write something."""
    return f"wrote {what}"


RING = ToolSpec("ring", "Ring a bell.", '{"type":"object"}', client=True)


@asynccontextmanager
async def scripted(
    harness: Harness, folder: Path, answers: list[bytes], spec: Tool | ToolSpec, *interceptors: ChaosInterceptor
) -> AsyncIterator[tuple[Replica, Asked]]:
    """Runs a turn with one tool; `answers` are the model's answers."""
    async with playing() as stage, recording(folder, stage.url, *interceptors) as provider:
        stage.rehearse("claude-x", [Play(200, body, [50], "whole", [], "tool_use") for body in answers])
        here = [] if isinstance(spec, ToolSpec) else [spec]
        async with harness.replica(provider, here) as replica:
            yield replica, await harness.ask(model="claude-x", tools=[spec])


async def test_a_turn_that_waited_for_a_client_has_its_answer_again(
    harness: Harness, target: Database, tmp_path: Path
) -> None:
    async with scripted(harness, tmp_path, [call("ring"), ANSWER], RING) as (replica, asked):
        await waits(harness, replica, asked)
        rung = Decision("toolu_1", None, AskAnswer("result", "It rang."), "actions.0")
        await Actions(harness.database).answer(OWNER, asked.chat, asked.turn, [rung], None)
        turn = await harness.finish(replica, asked)
    assert "It rang." in [block.text for block in turn.blocks]
    assert divergences_of(await again(harness, target, tmp_path, asked)) == []


@pytest.mark.parametrize("kind", ["approve", "deny"])
async def test_decisions_of_people_are_replayed(
    harness: Harness, target: Database, tmp_path: Path, kind: Literal["approve", "deny"]
) -> None:
    async with scripted(harness, tmp_path, [call("write"), ANSWER], write) as (replica, asked):
        (ask,) = (await waits(harness, replica, asked)).asks
        decision = Decision("toolu_1", ask.digest, AskAnswer(kind, "No."), "actions.0")
        await Actions(harness.database).answer(OWNER, asked.chat, asked.turn, [decision], None)
        await harness.finish(replica, asked)
    assert divergences_of(await again(harness, target, tmp_path, asked)) == []


async def test_steering_messages_are_replayed(harness: Harness, target: Database, tmp_path: Path) -> None:
    @tool(read_only=True)
    async def look(what: str) -> str:
        """Look at something, while somebody speaks."""
        await steer_as_recorded(harness.database, asked.turn, [Block(0, 0, 0, TEXT, "At noon, please.")])
        await replica.worker.refresh(asked.turn)
        return f"seen {what}"

    async with scripted(harness, tmp_path, [call("look"), ANSWER], look) as (replica, asked):
        turn = await harness.finish(replica, asked)
    assert [block.text for block in turn.blocks if block.type == USER_TEXT] == ["At noon, please."]
    assert divergences_of(await again(harness, target, tmp_path, asked)) == []


async def test_a_turn_that_was_cancelled_is_cancelled_where_it_was(
    harness: Harness, target: Database, tmp_path: Path
) -> None:
    silence = ChaosInterceptor(ChaosPlan(1, 1.0, ["silence"], reach=200))
    async with scripted(harness, tmp_path, [ANSWER], look, silence) as (replica, asked):
        replica.worker.wake()
        while not silence.happened:  # noqa: ASYNC110, it rings for nobody
            await asyncio.sleep(0.005)
        await replica.cancel(asked)
        turn = await harness.finish(replica, asked)
    assert turn.status == "cancelled"
    assert divergences_of(await again(harness, target, tmp_path, asked)) == []


async def test_a_divergence_is_described(harness: Harness, target: Database, tmp_path: Path) -> None:
    async with scripted(harness, tmp_path, [call("look"), ANSWER], look) as (replica, asked):
        await harness.finish(replica, asked)
    await harness.database.rows(SAY_ANOTHER_THING, turn=asked.turn)
    place = "request 2 (round 2, attempt 1): message 3, block 1, content"
    words = f'{place}: from character 5 on it was "seen tides", now "seen nothing"'
    assert divergences_of(await again(harness, target, tmp_path, asked)) == [words]


SAY_ANOTHER_THING = Statement(
    f"UPDATE blocks SET text = 'seen nothing' WHERE turn_id = :turn AND type = '{TOOL_RESULT}'"
)


async def test_a_round_without_a_recording_is_reported(harness: Harness, target: Database, tmp_path: Path) -> None:
    async with scripted(harness, tmp_path, [call("look"), ANSWER], look) as (replica, asked):
        await harness.finish(replica, asked)
    (tmp_path / str(asked.turn) / "attempt-000000001-round-002-try-01.jsonl").unlink()
    told = divergences_of(await again(harness, target, tmp_path, asked))
    assert told[0].startswith("round 2 of attempt 1 has no recording")
    assert told[1] == "1 requests were recorded, now there were 2"
    assert told[-1] == "the turn was complete (end_turn), now it is complete (assembled, end_of_recording)"


@pytest.fixture
def of_the_command(database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Makes the command use this database. The command must not change the logging of this process."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setattr("turnstream_lab.replay_command.configure_logging", lambda _: None)
    return database_url


@pytest.mark.timeout(300)
def test_the_command_says_whether_all_is_as_it_was(of_the_command: str, tmp_path: Path) -> None:
    async def record() -> Asked:
        async with connect(of_the_command, size=4) as database:
            harness = Harness(of_the_command, database)
            async with scripted(harness, tmp_path, [call("look"), ANSWER], look) as (replica, asked):
                await harness.finish(replica, asked)
        return asked

    turn = str(asyncio.run(record()).turn)
    folder = ("--recordings", str(tmp_path))
    assert turnstream("replay", turn, *folder) == (0, AS_IT_WAS, "")
    file = next((tmp_path / turn).glob("*-round-002-*"))
    file.write_bytes(file.read_bytes().replace(b"high", b"low"))
    different = 'the turn: block 4, text: from character 6 on it was "It is high.", now "It is low."\n'
    assert turnstream("replay", turn, *folder, "--speed", "1") == (1, different, "")


AS_IT_WAS = "all is as it was: 2 requests, 4 blocks, complete (end_turn)\n"


def test_the_command_names_missing_requirements(of_the_command: str, tmp_path: Path) -> None:
    async def ask() -> Asked:
        async with connect(of_the_command, size=4) as database:
            return await Harness(of_the_command, database).ask()

    asked = asyncio.run(ask())
    assert "TURNSTREAM_RECORD is not set" in turnstream("replay", str(asked.turn)).err
    folder = ("--recordings", str(tmp_path))
    assert "has not ended yet" in turnstream("replay", str(asked.turn), *folder).err
    assert "There is no turn" in turnstream("replay", str(asked.chat), *folder).err


async def test_a_steer_goes_with_the_next_try_if_a_stall_ends_the_one_that_sends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spoken = replace(assistant(), blocks=(Block(0, 1, 1, USER_TEXT, "At noon."),))
    reached, stored = asyncio.Event(), list[str]()

    async def store(_: Database, __: UUID, blocks: list[Block]) -> None:
        if not reached.is_set():
            reached.set()
            await asyncio.Event().wait()
        stored.append(blocks[0].text)

    async def send(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, request=request)

    monkeypatch.setattr(rerun_module, "steer_as_recorded", store)
    monkeypatch.setattr(rerun_module, "current_call", lambda: SimpleNamespace(round=1))
    steering = rerun_module._SteerInterceptor(None, spoken)  # type: ignore[arg-type]
    request = httpx2.Request("POST", "http://a.example")
    stalled = asyncio.create_task(steering(request, send))
    await reached.wait()
    stalled.cancel()
    for _ in range(2):
        await steering(request, send)
    assert stored == ["At noon."]
