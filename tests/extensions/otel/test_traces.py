"""Spans of turns, as an exporter of OpenTelemetry's SDK receives them."""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import httpx2
import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.support.agents import call, ended, post
from tests.support.canned import Answer, canned_server
from tests.support.harness import Harness
from tests.support.http_client import Client
from tests.support.http_server import pausing, serving
from tests.support.spans import PARENT, TRACE, collected, of_trace
from turnstream.config import Settings
from turnstream.domain.errors import ConfigError, TransientError
from turnstream.extensions.agents.agent import Agent
from turnstream.extensions.agents.tool import agent_tool
from turnstream.extensions.otel import EXTENSION, tracer
from turnstream.libraries import extras
from turnstream.libraries.explanations.rows import TurnStates
from turnstream.libraries.providers.anthropic.provider import AnthropicProvider
from turnstream.llm.models.catalog import Models, ProviderModels
from turnstream.scripted import Pause, Reply, ScriptedProvider, message_of, text, tool_use
from turnstream.tools.tool import tool
from turnstream.tools.toolset import Toolset
from turnstream.tracing import TRACING, trace_id


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    with collected() as exporter:
        yield exporter


@pytest.fixture(scope="module")
def reader() -> InMemoryMetricReader:
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    return reader


def points(reader: InMemoryMetricReader, name: str, **labels: str) -> Sequence[HistogramDataPoint]:
    """Returns the data points of a metric that have these labels. `__` in the name of a label stands for a dot."""
    data = reader.get_metrics_data()
    assert data is not None
    return [
        point
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
        for point in metric.data.data_points
        if isinstance(point, HistogramDataPoint)
        if {key.replace("__", "."): value for key, value in labels.items()}.items() <= (point.attributes or {}).items()
    ]


def attributes(span: ReadableSpan, *names: str) -> list[object]:
    return [(span.attributes or {}).get(name) for name in names]


@tool(read_only=True)
async def look() -> str:
    """Look."""
    return "a secret that no span holds"


async def test_a_turn_that_two_replicas_ran_is_one_trace(harness: Harness, spans: InMemorySpanExporter) -> None:
    pause = Pause()
    asked = await harness.ask("words of the user", tools=[look], trace=PARENT)
    async with harness.replica(ScriptedProvider([pausing(pause, "Hel", "lo.")]), [look], address="here:1") as first:
        first.worker.wake()
        await pause.reached.wait()
        await first.kill()
    replies: list[Reply] = [
        message_of(tool_use("look", {}, "a")),
        [TransientError("overloaded_error", "later")],
        message_of(text("Bye.")),
    ]
    async with harness.replica(ScriptedProvider(replies), [look], address="here:1") as second:
        turn = await harness.finish(second, asked)
    assert (await TurnStates(harness.database).of(asked.turn)).trace == TRACE
    found = of_trace(spans)
    runs = [span for span in found if span.name == "invoke_agent turnstream"]
    assert [attributes(run, "turnstream.attempt", "turnstream.recoveries")[1] for run in runs] == [0, 1]
    assert [f"{link.context.span_id:016x}" for run in runs for link in run.links] == ["b7ad6b7169203331"]
    assert [len(run.links) for run in runs] == [0, 1]
    assert {run.parent.span_id for run in runs if run.parent} == {int("b7ad6b7169203331", 16)}
    queue = [span for span in found if span.name == "queue"]
    assert [span.parent and span.parent.span_id for span in queue] == [runs[0].context.span_id]
    chats = [span for span in found if span.name == "chat scripted"]
    assert [attributes(span, "error.type")[0] for span in chats].count("overloaded_error") == 1
    names = ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.usage.output_tokens")
    assert attributes(chats[-1], *names) == ["chat", "scripted", "scripted", 5]
    assert attributes(chats[-1], "gen_ai.response.finish_reasons") == [("end_turn",)]
    (called,) = [span for span in found if span.name == "execute_tool look"]
    assert attributes(called, "gen_ai.tool.call.id") == ["a"]
    assert attributes(runs[-1], "turnstream.status", "gen_ai.conversation.id") == ["complete", str(turn.chat_id)]
    told = "".join(span.to_json() for span in found)
    assert not any(content in told for content in ("secret", "words of the user", "Bye.", "later"))


async def test_the_run_of_a_job_is_in_the_trace_of_its_turn(harness: Harness, spans: InMemorySpanExporter) -> None:
    @tool(background=True)
    async def dig() -> str:
        """Dig."""
        return "a hole"

    replies = [message_of(tool_use("dig", {}, "a")), message_of(text("Done."))]
    asked = await harness.ask(tools=[dig], trace=PARENT)
    async with harness.replica(ScriptedProvider(replies), [dig], listens=True) as replica:
        replica.worker.wake()
        await harness.finish(replica, asked)
    found = of_trace(spans)
    (job,) = [span for span in found if span.name == "job dig"]
    (called,) = [span for span in found if span.name == "execute_tool dig"]
    assert called.parent is not None
    assert called.parent.span_id == job.context.span_id
    assert attributes(job, "turnstream.turn", "turnstream.outcome") == [str(asked.turn), "ok"]
    turn = next(span for span in found if span.name == "invoke_agent turnstream" and span.events)
    assert [(event.name, (event.attributes or {})["turnstream.job"]) for event in turn.events] == [
        ("job", *attributes(job, "turnstream.job"))
    ]


async def test_the_turn_of_an_agent_is_in_the_trace_of_the_turn_that_calls_it(
    database_url: str, spans: InMemorySpanExporter
) -> None:
    echo = agent_tool(Agent("echo", "Answers.", "Answer."))
    async with serving(database_url, Toolset([echo])) as server, Client(server.url) as api:
        model = server.scripts.model(*map(message_of, (call("echo", "a"), text("One."), text("Done."))))
        headers = {"traceparent": PARENT}
        exchange = await api.json("POST", "/api/turns", 201, json=post(model), headers=headers)
        turn = await ended(api, exchange)
        (result,) = [block for block in turn["blocks"] if block["type"] == "tool_result"]
        child = result["data"]["turn"]
        why = await api.json("GET", f"/api/chats/{result['data']['chat']}/turns/{child}/why")
    assert why["trace"] == TRACE
    found = of_trace(spans)
    runs = [span for span in found if span.name == "invoke_agent turnstream"]
    assert {attributes(run, "turnstream.turn")[0] for run in runs} == {turn["id"], child}
    jobs = [span for span in found if span.name == "job echo"]
    assert {attributes(job, "turnstream.turn")[0] for job in jobs} == {turn["id"]}


async def test_a_traceparent_comes_in_with_a_message_and_goes_out_to_the_provider(
    database_url: str, spans: InMemorySpanExporter
) -> None:
    async with canned_server() as api:
        api.answer = Answer(b'{"type":"error","error":{"type":"invalid_request_error","message":"no"}}', 400)
        offer = ProviderModels(AnthropicProvider("key", api.url), ["claude"])
        async with serving(database_url, offers=[offer]) as server, httpx2.AsyncClient(trust_env=False) as http:
            headers = {"authorization": f"Bearer {await server.token('ada')}", "traceparent": PARENT}
            body = {"blocks": [{"type": "text", "text": "Hi"}], "model": "claude"}
            turn = (await http.post(f"{server.url}/api/turns", json=body, headers=headers)).json()["assistant_turn"]
            stream = f"{server.url}/api/chats/{turn['chat_id']}/turns/{turn['id']}/stream"
            assert "turn_error" in (await http.get(stream, headers=headers)).text
        sent = [request.headers["traceparent"] for request in api.requests]
        await offer.provider.aclose()  # type: ignore[attr-defined]
    assert {trace_id(each) for each in sent} == {TRACE}
    names = [span.name for span in of_trace(spans)]
    assert {"POST /api/turns", "invoke_agent turnstream", "chat claude"} <= {*names}


async def test_a_setting_switches_traces_on(database_url: str) -> None:
    async with serving(database_url, traces=True, traces_content=7):
        assert (TRACING.on, TRACING.content) == (True, 7)
    TRACING.end()


async def test_without_its_package_the_setting_stops_the_start_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    (check,) = EXTENSION.checks.values()
    assert await check(Settings(_env_file=None), Models([]), False) == "off"
    with pytest.raises(ConfigError, match=r"^TURNSTREAM_TRACES needs .* pip install 'turnstream\[otel\]'\.$"):
        await check(Settings(_env_file=None, traces=True), Models([]), False)


async def test_without_traces_nothing_is_sent_or_stored(harness: Harness) -> None:
    assert (TRACING.on, TRACING.outgoing(), TRACING.traceparent) == (False, {}, None)
    async with harness.replica(ScriptedProvider([message_of(text("Hi."))])) as replica:
        turn = await harness.finish(replica, await harness.ask())
    assert turn.request is not None
    assert turn.request.trace is None


CALLED = {
    "input_tokens": 7,
    "cache_read_input_tokens": 20,
    "cache_creation_input_tokens": 3,
    "output_tokens": 11,
}


async def test_a_model_call_is_measured_by_the_conventions(
    harness: Harness, spans: InMemorySpanExporter, reader: InMemoryMetricReader
) -> None:
    class Measured(ScriptedProvider):
        name = "measured"

    replies: list[Reply] = [[TransientError("a new invention", "later")], message_of(text("Hi."), usage=CALLED)]
    async with harness.replica(Measured(replies)) as replica:
        await harness.finish(replica, await harness.ask(trace=PARENT))
    call = {"gen_ai__operation__name": "chat", "gen_ai__provider__name": "measured"}
    measured = points(reader, "gen_ai.client.operation.duration", **call)
    (failed,) = [each for each in measured if "error.type" in (each.attributes or {})]
    (answered,) = [each for each in measured if each is not failed]
    assert (failed.attributes or {})["error.type"] == "other"
    assert (failed.count, answered.count) == (1, 1)
    (first,) = points(reader, "gen_ai.client.operation.time_to_first_chunk", **call)
    assert first.count == 1
    assert 0 < first.sum < answered.sum
    usage = {
        kind: [point.sum for point in points(reader, "gen_ai.client.token.usage", **call, gen_ai__token__type=kind)]
        for kind in ("input", "output")
    }
    assert usage == {"input": [30], "output": [11]}
    span = next(span for span in of_trace(spans) if attributes(span, "gen_ai.usage.input_tokens") == [30])
    assert attributes(span, "gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.output_tokens") == [20, 11]


async def test_content_is_in_spans_on_request_alone_and_has_a_bound(harness: Harness) -> None:
    replies: list[Reply] = [message_of(tool_use("look", {}, "a")), message_of(text("It is a long answer."))]
    with collected(content=20) as spans:
        async with harness.replica(ScriptedProvider(replies), [look]) as replica:
            asked = await harness.ask("First words, and the last ones of the user.", tools=[look], trace=PARENT)
            await harness.finish(replica, asked)
    first, second = [span.attributes or {} for span in of_trace(spans) if span.name == "chat scripted"]
    assert json.loads(str(first["gen_ai.input.messages"])) == [
        {"role": "user", "parts": [{"type": "text", "content": "First words, and the…"}]}
    ]
    (called,) = json.loads(str(first["gen_ai.output.messages"]))[0]["parts"]
    assert called == {"type": "tool_call", "id": "a", "name": "look", "arguments": "{}"}
    (told,) = json.loads(str(second["gen_ai.input.messages"]))[0]["parts"]
    assert told == {"type": "tool_call_response", "id": "a", "response": "a secret that no spa…"}
    assert json.loads(str(second["gen_ai.output.messages"]))[0]["parts"][0]["content"] == "It is a long answer."
    (tool_span,) = [span for span in of_trace(spans) if span.name == "execute_tool look"]
    assert attributes(tool_span, "gen_ai.tool.call.arguments", "gen_ai.tool.call.result") == [
        "{}",
        "a secret that no spa…",
    ]


def fail(*_: object, **__: object) -> None:
    raise RuntimeError("a plug-in")


class Failing:
    """Replaces any object of an SDK. Each of its methods raises an exception."""

    def __getattr__(self, name: str) -> Any:
        return fail


def tracer_that_fails(at: str) -> Any:
    if at == "everywhere":
        return Failing()
    provider, processor = TracerProvider(), SpanProcessor()
    provider.add_span_processor(processor)
    vars(processor)[at] = fail
    return provider.get_tracer("failing")


@pytest.mark.parametrize("at", ["on_start", "on_end", "everywhere"])
async def test_an_sdk_that_raises_costs_spans_and_no_turn(
    harness: Harness, spans: InMemorySpanExporter, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TRACING.tracer, "_tracer", tracer_that_fails(at))
    if at == "everywhere":
        monkeypatch.setattr(tracer, "propagate", Failing())
        monkeypatch.setattr(TRACING.tracer, "_histograms", defaultdict(Failing))
    asked = await harness.ask("Go.", tools=[look], trace=PARENT)
    replies = [message_of(tool_use("look", {}, "a")), message_of(text("Bye."))]
    async with harness.replica(ScriptedProvider(replies), [look]) as replica:
        turn = await harness.finish(replica, asked)
    assert turn.status == "complete"
    with TRACING.span("around", parent=PARENT, link=PARENT) as span:
        span.event("happened")
