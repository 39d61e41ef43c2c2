"""What the tests of assistants share: a server with a model and tools, and views of a turn."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.support.assistants.model import Model
from tests.support.http_client import Client, Event, Json, Said
from tests.support.reading import Reader

ROOT = Path(__file__).parents[3]


def settings_for(model: Model, toolset: str | None = None) -> dict[str, str]:
    """Returns the settings of a server. `toolset` names an attribute of a module of these tests."""
    tools = {} if toolset is None else {"TURNSTREAM_TOOLSET": f"tests.support.assistants.{toolset}"}
    return {"PYTHONPATH": str(ROOT), "ANTHROPIC_API_KEY": "sk-ant-0", "ANTHROPIC_BASE_URL": model.url, **tools}


async def whole(api: Client, turn: Said) -> tuple[Json, list[Event]]:
    """Reads the turn to its end. Returns the complete turn and all its events, which must agree."""
    reader = Reader(api, turn.stream_url)
    await reader.follow()
    ended = await api.json("GET", turn.url)
    assert ended["status"] == "complete", ended["error"]
    reader.check_whole(ended)
    return ended, await api.events(turn.stream_url)


async def until_waiting(api: Client, turn: Said, without: str | None = None) -> Json:
    """Returns the turn once it waits for a call other than `without`, and no replica runs it."""
    async with asyncio.timeout(60):
        while True:
            found: Json = await api.json("GET", turn.url)
            if found["status"] == "waiting" and without not in [call["tool_use_id"] for call in found["actions"]]:
                return found
            await asyncio.sleep(0.01)


def calls_of(turn: Json) -> list[tuple[int, str, Any]]:
    """Returns the round, the tool and the input of each call."""
    return [(block["round"], block["name"], block["input"]) for block in turn["blocks"] if block["type"] == "tool_use"]


def results_of(turn: Json) -> list[tuple[str, bool]]:
    """Returns the text of each result, and whether it is an error, in the order of the calls."""
    order = [(block["round"], block["id"]) for block in turn["blocks"] if block["type"] == "tool_use"]
    results = {(b["round"], b["tool_use_id"]): b for b in turn["blocks"] if b["type"] == "tool_result"}
    assert results.keys() == set(order)
    return [(results[key]["text"], results[key]["is_error"]) for key in order]


def answered(events: Sequence[Event]) -> list[list[tuple[str, bool]]]:
    """Returns the answered calls of each round: the tools, and whether each call failed."""
    starts = [event.data for event in events if event.name == "round_start"]
    return [[(each["name"], each["is_error"]) for each in start["answered"]] for start in starts]


def last_words(turn: Json) -> str:
    text: str = turn["blocks"][-1]["text"]
    return text


def told_of_results(model: Model) -> list[list[str]]:
    """Returns, for each request after the first, the calls that its new messages answer."""
    ids = []
    for before, after in pairwise(model.requests):
        new = [block for message in after["messages"][len(before["messages"]) :] for block in message["content"]]
        ids.append([block["tool_use_id"] for block in new if block["type"] == "tool_result"])
    return ids
