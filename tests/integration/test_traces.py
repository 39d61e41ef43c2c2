"""Spans of turns, as an exporter of OpenTelemetry's SDK gets them."""

from collections.abc import Iterator, Sequence

import httpx2
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from app.domain.errors import TransientError
from app.llm.anthropic.provider import AnthropicProvider
from app.llm.models.catalog import ProviderModels
from app.llm.scripted import Pause, Reply, ScriptedProvider, message_of, text, tool_use
from app.storage.activities import Activities
from app.tools.tool import tool
from app.tracing import TRACING, trace_id
from tests.support.canned import Answer, canned_server
from tests.support.harness import Harness
from tests.support.http_server import pausing, serving

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    """Of the one SDK that a process has."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Iterator[InMemorySpanExporter]:
    exporter.clear()
    TRACING.begin()
    yield exporter
    TRACING.end()


def of_trace(spans: InMemorySpanExporter) -> Sequence[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if f"{span.context.trace_id:032x}" == TRACE]


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
    assert (await Activities(harness.database).of(asked.turn)).trace == TRACE
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


async def test_without_traces_nothing_is_sent_or_stored(harness: Harness) -> None:
    assert (TRACING.on, TRACING.outgoing(), TRACING.traceparent) == (False, {}, None)
    async with harness.replica(ScriptedProvider([message_of(text("Hi."))])) as replica:
        turn = await harness.finish(replica, await harness.ask())
    assert turn.request is not None
    assert turn.request.trace is None
