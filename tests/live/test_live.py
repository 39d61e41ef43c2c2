"""The main features with the real models of each provider that has a key: post, tool round, reconnect, cancel,
continue.

The test is off by default, because real models cost money: `make live` runs it. It prints the maximum cost before its
first call.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http_client import Client, Event, Json, Said, turn_url, words_of
from tests.support.model_apis import providers_of
from tests.support.server_process import Server
from turnstream.config import read_environment
from turnstream.domain.rounds import Prices
from turnstream.llm.models.catalog import Model
from turnstream_client.assembler import Assembler

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

# The limits that give the most tokens which the test sends. A call contains the conversation so far and the description
# of one tool.
_CALLS = 6
_INPUT_TOKENS = 1_500
_OUTPUT_TOKENS = 400
# Prices of a million tokens that the test assumes for models without configured prices. They are higher than usual
# prices.
_ASSUMED = Prices(15.0, 75.0)
_MODULE = '''
from turnstream import tool


@tool(read_only=True)
async def high_water(port: str) -> str:
    """The time of high water in a port today."""
    return f"High water in {port} is at 14:07."
'''


def _models() -> Iterator[Model]:
    """Yields the models that LIVE_MODELS names, or the first model of each provider with a key."""
    environment = read_environment()
    file = environment.get("TURNSTREAM_MODELS_FILE")
    specs = providers_of(Path(file) if file else None, environment)
    listed = {model.id: model for spec in specs for model in spec.models}
    if named := os.environ.get("LIVE_MODELS"):
        yield from (listed.get(name, Model(name)) for name in named.split(","))
    else:
        yield from (spec.models[0] for spec in specs if spec.models)


def _most(model: Model) -> float:
    prices = model.prices or _ASSUMED
    read = max(prices.input, prices.cache_write or 0.0)
    return _CALLS * (_INPUT_TOKENS * read + _OUTPUT_TOKENS * prices.output) / 1_000_000


async def test_the_main_job_is_done_with_real_models(
    database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = list(_models())
    if not models:
        pytest.fail("No key is set: set ANTHROPIC_API_KEY, OPENAI_API_KEY or that of a provider of the models file.")
    most, ceiling = sum(map(_most, models)), float(os.environ.get("LIVE_CEILING", "1"))
    with capsys.disabled():
        for model in models:
            source = "the prices of the models file" if model.prices else f"assumed prices ({_ASSUMED.input:g} and"
            source += "" if model.prices else f" {_ASSUMED.output:g} for a million tokens)"
            print(f"\n{model.id}: at most {_CALLS} calls, {_most(model):.4f} by {source}")
        print(f"together at most {most:.4f}; the ceiling is {ceiling:g} (LIVE_CEILING)")
    if most > ceiling:
        pytest.fail(f"Nothing was called: {most:.4f} is above LIVE_CEILING ({ceiling:g}).")
    (tmp_path / "live_tools.py").write_text(_MODULE)
    keys = {name: value for name, value in read_environment().items() if name.startswith(("ANTHROPIC_", "OPENAI_"))}
    files = {name: value for name, value in read_environment().items() if name == "TURNSTREAM_MODELS_FILE"}
    server = Server(database_url, tmp_path, {**keys, **files, "TURNSTREAM_TOOLSET": "live_tools:high_water"})
    await server.start()
    try:
        async with Client(server.url) as api:
            for model in models:
                turns = await _do_the_job(api, model.id)
                costs = [turn["cost"] for turn in turns]
                used = sum(turn["usage"].get("output_tokens") or 0 for turn in turns)
                with capsys.disabled():
                    print(f"{model.id}: {used} tokens written, cost {sum(costs) if None not in costs else 'unknown'}")
                assert model.prices is None or sum(costs) <= _most(model)
    finally:
        await server.close()


async def _do_the_job(api: Client, model: str) -> list[Json]:
    """Runs the turns and returns them. The last request includes the cancelled turn."""
    options = {"model": model, "tools": ["high_water"], "params": {"max_tokens": _OUTPUT_TOKENS}}
    chat = await api.chat(title=f"live: {model}")

    question = "Call the tool high_water for Dover. Then write one short sentence with the time that it returned."
    asked = await api.say(chat, question, **options)
    first, rest = await _cut_and_resumed(api, asked)
    told = await api.json("GET", turn_url(asked.assistant))
    assert told["status"] == "complete", told["error"]
    assert [block["name"] for block in told["blocks"] if block["type"] == "tool_result"][:1] == ["high_water"]
    assert "14:07" in words_of(told)
    ids = [event.id for event in (*first, *rest) if event.id]
    assert len(ids) == len(set(ids))
    assembler = Assembler()
    for event in (*first, *rest):
        assembler.apply(event.name, event.data)
    assert (assembler.end, assembler.blocks) == ("turn_complete", told["blocks"])

    remembered = await api.ask(chat, "Which port did I ask about? Answer with its name only.", **options)
    assert "Dover" in words_of(remembered.assistant)

    endless = await api.say(chat, "Count from one to three hundred in words. Call no tool.", **options)
    async with api.follow(endless.stream_url) as events:
        async for event in events:
            if event.name == "block_delta":
                await api.json("POST", f"{turn_url(endless.assistant)}/cancel", 202)
    stopped = await api.json("GET", turn_url(endless.assistant))
    assert (event.name, stopped["status"]) == ("turn_cancelled", "cancelled")
    assert words_of(stopped)

    resumed = await api.ask(chat, "Never mind. Answer with the word ready only.", **options)
    assert "ready" in words_of(resumed.assistant).lower()
    return [told, remembered.assistant, stopped, resumed.assistant]


async def _cut_and_resumed(api: Client, asked: Said) -> tuple[list[Event], list[Event]]:
    """Returns the events of a connection that is cut after the first delta, and the events that come after the
    reconnect.
    """
    first: list[Event] = []
    async with api.follow(asked.stream_url) as events:
        async for event in events:
            first.append(event)
            if event.name == "block_delta":
                break
    cursor = next(event.id for event in reversed(first) if event.id)
    return first, await api.events(asked.stream_url, cursor)
