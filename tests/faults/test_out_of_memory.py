"""A replica that runs out of memory exits, so that its supervisor starts it again. Its turns continue on another
replica.
"""

import resource
from collections.abc import Iterable
from itertools import repeat
from pathlib import Path

import psutil
import pytest

from tests.faults.model import Call, Gate, Step, model_api
from tests.faults.replicas import replicas_with
from tests.support.http_client import Client, Json, said, turn_url
from tests.support.reading import Reader

pytestmark = pytest.mark.timeout(300)

TURNS = 3
TO_SPARE = 60 << 20  # bytes
# A replica that runs out of memory is silent for a while. It must not lose its turns because of that silence.
SETTINGS = {
    "TURNSTREAM_LEASE": "30",
    "TURNSTREAM_MAX_REPLY_CHARS": "1000000000",
    "TURNSTREAM_RECOVERY": "retry",
    "PYTHONFAULTHANDLER": "1",
}


def endless(_: Call) -> Iterable[Step]:
    yield "It is "
    yield Gate("middle")
    yield from repeat("very " * 40_000)


def short(_: Call) -> Iterable[Step]:
    return ("It is ", "done.")


async def test_a_replica_without_memory_for_huge_answers_ends_and_its_turns_continue_elsewhere(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        model_api(endless) as huge,
        model_api(short) as model,
        replicas_with(database_url, tmp_path, huge, SETTINGS) as (full,),
        Client(full.url) as client,
    ):
        turns = [await _post(client, f"turn {number}") for number in range(TURNS)]
        await huge.until_reached("middle", TURNS)
        async with replicas_with(database_url, tmp_path, model, SETTINGS) as (other,), Client(other.url) as elsewhere:
            limit = psutil.Process(full.pid).memory_info().vms + TO_SPARE
            resource.prlimit(full.pid, resource.RLIMIT_AS, (limit, limit))
            huge.open("middle")
            assert await full.ended() != 0  # the code is 1, unless a library got no memory first, and crashed
            for turn in turns:
                reader = Reader(elsewhere, f"{turn_url(turn)}/stream")
                await reader.follow()
                assert (reader.turn.end, reader.text()) == ("turn_complete", "It is done.")


async def _post(client: Client, words: str) -> Json:
    turn: Json = (await client.json("POST", "/api/turns", 201, json=said(words)))["assistant_turn"]
    return turn
