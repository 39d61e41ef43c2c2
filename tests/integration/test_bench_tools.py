"""The tools of the benchmark: the real SDK accepts the provider, and the checks can fail."""

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import anthropic
import pytest
from anthropic.types import ToolParam

from tests.bench.__main__ import Run
from tests.bench.candidates import Candidate, asgi, served
from tests.bench.capacity import highest_passing
from tests.bench.costs import solved
from tests.bench.database import Postgres
from tests.bench.load import Load, LoadResult, run_load
from tests.bench.provider import FakeProvider, fake_provider
from tests.bench.trials import Rows, Site, Trial
from tests.support.canned import Answer, canned_server

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the benchmark tools need Linux"),
    pytest.mark.needs("a C compiler"),
]

SEARCH: ToolParam = {"name": "search", "input_schema": {"type": "object"}}


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeProvider]:
    folder: Path = tmp_path_factory.mktemp("provider")
    with fake_provider(folder) as running:
        yield running


@pytest.fixture
async def client(provider: FakeProvider) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=provider.url, api_key="bench", max_retries=0)


async def test_the_sdk_reads_every_delta_the_usage_and_the_stop_reason(
    client: anthropic.AsyncAnthropic,
) -> None:
    async with (
        client,
        client.messages.stream(
            model="claude-sonnet-4-6",
            max_tokens=100,
            messages=[{"role": "user", "content": "plan deltas=40 rate=0 chat=00z"}],
        ) as stream,
    ):
        deltas = [
            event.delta.text
            async for event in stream
            if event.type == "content_block_delta" and event.delta.type == "text_delta"
        ]
        message = await stream.get_final_message()
    assert [delta[:8] for delta in deltas] == [f"|00z00{place}" for place in base36_places(40)]
    assert message.stop_reason == "end_turn"
    assert (message.usage.input_tokens, message.usage.output_tokens) == (25, 40)


async def test_a_plan_with_a_tool_round_thinks_asks_for_tools_and_then_answers(
    client: anthropic.AsyncAnthropic,
) -> None:
    plan = "plan deltas=2 rate=0 thinking=3 rounds=1 tools=2 tool=search"
    async with client:
        async with client.messages.stream(
            model="claude-sonnet-4-6",
            max_tokens=100,
            tools=[SEARCH],
            messages=[{"role": "user", "content": plan}],
        ) as stream:
            asked = await stream.get_final_message()
        async with client.messages.stream(
            model="claude-sonnet-4-6",
            max_tokens=100,
            tools=[SEARCH],
            messages=[
                {"role": "user", "content": plan},
                {"role": "assistant", "content": asked.content},
                {"role": "user", "content": results_for(asked)},
            ],
        ) as stream:
            answered = await stream.get_final_message()
    assert [block.type for block in asked.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert [block.input for block in asked.content if block.type == "tool_use"] == [{"query": "bench"}] * 2
    assert asked.stop_reason == "tool_use"
    assert [block.type for block in answered.content] == ["thinking", "text"]
    assert answered.stop_reason == "end_turn"


def results_for(message: anthropic.types.Message) -> list[anthropic.types.ToolResultBlockParam]:
    return [
        {"type": "tool_result", "tool_use_id": block.id, "content": "found"}
        for block in message.content
        if block.type == "tool_use"
    ]


def base36_places(count: int) -> list[str]:
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    return [digits[place // 36] + digits[place % 36] for place in range(count)]


def test_the_provider_counts_its_bytes(provider: FakeProvider) -> None:
    before = provider.stats()
    result = run_load("provider", provider.port, Load("deltas=30 rate=0", chats=4, ramp_seconds=0))
    after = provider.stats()
    assert result.deltas == after.deltas - before.deltas == 120
    assert after.active == 0


@pytest.mark.parametrize("single", [False, True])
def test_a_clean_run_has_no_faults_and_times_every_delta(provider: FakeProvider, single: bool) -> None:
    load = Load("deltas=25 rate=500 thinking=5", chats=20, ramp_seconds=0, single=single)
    result = run_load("provider", provider.port, load)
    assert result.faults == 0
    assert result.completed == 20
    assert result.delta is not None
    assert result.delta.count == 20 * 30


@pytest.mark.parametrize(
    ("flaw", "expected"),
    [
        ("lose=7", {"lost": 3}),
        ("repeat=7", {"repeated": 3}),
        ("swap=7", {"disordered": 3}),
        ("chat=zzz", {"foreign": 60, "lost": 60}),
    ],
)
def test_the_load_generator_sees_each_kind_of_flaw(provider: FakeProvider, flaw: str, expected: dict[str, int]) -> None:
    result = run_load("provider", provider.port, Load(f"deltas=20 rate=0 {flaw}", chats=3, ramp_seconds=0))
    assert flaws(result) == {"lost": 0, "repeated": 0, "disordered": 0, "foreign": 0} | expected
    assert result.faults == sum(expected.values())


def flaws(result: LoadResult) -> dict[str, int]:
    return {
        "lost": result.lost,
        "repeated": result.repeated,
        "disordered": result.disordered,
        "foreign": result.foreign,
    }


def test_chats_that_do_not_end_in_time_have_failed(provider: FakeProvider) -> None:
    load = Load("deltas=5 rate=50 first=60000", chats=2, ramp_seconds=0, limit_seconds=0.3)
    result = run_load("provider", provider.port, load)
    assert (result.failed, result.lost) == (2, 10)
    assert "not finished in time" in result.first_failure


@pytest.mark.parametrize(
    ("status", "code", "headers"), [(503, "overloaded", {"Retry-After": "2"}), (429, "queued_turns", {})]
)
async def test_refusals_are_counted_by_their_reasons_and_are_no_faults_where_they_are_expected(
    status: int, code: str, headers: dict[str, str]
) -> None:
    load = Load("deltas=5 rate=50", chats=3, ramp_seconds=0, single=True, token="a,b", refusals=True)
    async with canned_server() as server:
        server.answer = Answer(f'{{"code":"{code}"}}'.encode(), status, headers)
        port = urlsplit(server.url).port or 0
        result = await asyncio.to_thread(run_load, "turnstream", port, load)
        followed = replace(load, refusals=False, limit_seconds=3)  # a 503 with `Retry-After` is repeated until then
        unexpected = await asyncio.to_thread(run_load, "turnstream", port, followed)
        server.answer = Answer(b"{}", 500)
        failed = await asyncio.to_thread(run_load, "turnstream", port, load)
    assert result.refused == {f"{status} {code}": (3, 3 if headers else 0)}
    assert result.faults == 0
    assert result.refusal is not None
    assert result.refusal.count == 3
    assert [asked.headers["authorization"] for asked in server.requests[:3]].count("Bearer a") == 2
    assert (unexpected.failed, unexpected.lost, unexpected.refused) == (3, 0, {})
    assert (failed.failed, failed.refused) == (3, {})


@pytest.mark.parametrize("limit", [3, 40, 195, 200, 460, 5000])
def test_the_search_for_the_highest_load_comes_close_from_below(limit: int) -> None:
    found = highest_passing(lambda value: value <= limit, start=200, ceiling=1500, probes=12)
    assert found <= limit
    assert found >= min(limit * 0.9 - 5, 1500)


def test_the_costs_of_turns_and_frames_follow_from_as_many_loads() -> None:
    values, loads = (0.02, 0.008, 0.0001), [(0, 400, 800), (6, 1, 60), (7, 50, 15_000)]
    equations = [[*counts, sum(map(float.__mul__, map(float, counts), values))] for counts in loads]
    assert solved(equations) == pytest.approx(values)


def test_a_failure_is_named_and_costs_only_its_own_figures(provider: FakeProvider, tmp_path: Path) -> None:
    def fail(_site: Site) -> Rows:
        raise OSError("it has died")

    trials = [Trial("one", "", (), fail), Trial("two", "what is well", ("seconds",), lambda _site: {"time": (1.5,)})]
    run = Run(provider, None, tmp_path)
    run.try_all(trials, Site(provider, Postgres("postgresql://", "18", None), tmp_path))
    assert run.faults == ["one: OSError('it has died')"]
    assert "| time | 1.50 |" in run.pages(load_before=0.0)["trials"]


def test_the_raw_server_passes_each_delta_on(provider: FakeProvider, tmp_path: Path) -> None:
    candidate = Candidate("raw", "relay", asgi("tests.bench.raw:app"), "/healthz")
    with served(candidate, provider.url, tmp_path, cpu=None) as server:
        result = server.run(Load("deltas=50 rate=0", chats=10, ramp_seconds=0, single=True))
        assert (result.deltas, result.faults) == (500, 0)
        result = server.run(Load("deltas=10 rate=0 lose=4", chats=1, ramp_seconds=0, single=True))
        assert result.lost == 1
