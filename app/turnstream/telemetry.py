"""Set-up of logging, and the declaration of the metrics of the core."""

import gc
import io
import logging
import os
import sys
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

import msgspec
import structlog
from prometheus_client import REGISTRY, Counter, Gauge, Histogram, Metric, disable_created_metrics
from prometheus_client.registry import Collector

from turnstream.kit.background_output import BackgroundOutput

log = structlog.get_logger(__name__)

# Otherwise each counter and histogram has a second series with the time of its creation, which nobody reads.
disable_created_metrics()  # type: ignore[no-untyped-call]

SECONDS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

TURNS = Counter("turnstream_turns", "Turns that ended", ["status", "stop_reason"])
TURNS_RUNNING = Gauge("turnstream_turns_running", "Turns that run on this replica")
TOOLS_RUNNING = Gauge("turnstream_tools_running", "Tool calls that run on this replica")
STREAMS_OPEN = Gauge("turnstream_streams_open", "Open SSE streams")
ROUNDS_PER_TURN = Histogram(
    "turnstream_rounds_per_turn", "Sealed rounds of ended turns", buckets=(1, 2, 3, 4, 5, 6, 10, 20)
)
CONTINUATIONS = Counter("turnstream_tool_continuations", "Turns that called tools: ok, error or cancelled", ["outcome"])
LIMITS_REACHED = Counter("turnstream_limits_reached", "Turns that ended with a limit reached, by its name", ["limit"])
CONTINUATION_ROUNDS = Histogram(
    "turnstream_tool_continuation_iterations",
    "Tool rounds of turns that called tools",
    buckets=(1, 2, 3, 4, 5, 6, 10, 20),
)
CONTINUATION_SECONDS = Histogram(
    "turnstream_tool_continuation_seconds", "From the first tool call of a turn to its end", buckets=SECONDS
)
TOOL_SECONDS = Histogram("turnstream_tool_seconds", "Duration of tool calls", ["tool"], buckets=SECONDS)
TOOL_OUTCOMES = Counter("turnstream_tool_outcomes", "Settled tool calls", ["tool", "outcome"])
TOOL_POLICIES = Counter("turnstream_tool_policies", "Tool calls that needed a policy", ["tool", "policy"])
WAITS = Counter(
    "turnstream_waits", "Calls that began to wait for a person: client, approval, elicitation or sign_in", ["kind"]
)
FIRST_DELTA_SECONDS = Histogram(
    "turnstream_first_delta_seconds", "From the creation of a turn to its first delta", buckets=SECONDS
)
PROVIDER_RETRIES = Counter("turnstream_provider_retries", "Model calls that were tried again", ["reason"])
MODEL_BREAKER_OPEN = Gauge(
    "turnstream_model_breaker_open", "1 while a model's fallbacks are called at once, else 0", ["provider", "model"]
)
PROVIDER_CALL_SECONDS = Histogram(
    "turnstream_provider_call_seconds", "Duration of model calls", ["provider", "model"], buckets=SECONDS
)
PROVIDER_FIRST_DELTA_SECONDS = Histogram(
    "turnstream_provider_first_delta_seconds",
    "From a model call to its first delta",
    ["provider", "model"],
    buckets=SECONDS,
)
PROVIDER_ERRORS = Counter(
    "turnstream_provider_errors", "Model calls that failed, by the type of the error", ["provider", "model", "type"]
)
TOKENS = Counter("turnstream_tokens", "Tokens by kind, as the provider counts them", ["kind", "model"])
COST = Counter("turnstream_cost", "Cost of sealed rounds, by the prices of their models", ["model"])
HOOK_FAILURES = Counter("turnstream_hook_failures", "Hooks that raised, or took too long", ["hook"])
GUARD_CHECKS = Counter("turnstream_guard_checks", "Checks of guardrails, by their ruling", ["guard", "place", "ruling"])
GUARD_SECONDS = Histogram("turnstream_guard_seconds", "Duration of a check of a guardrail", ["guard"], buckets=SECONDS)
LOG_LINES_DROPPED = Counter(
    "turnstream_log_lines_dropped", "Lines for standard output and error that could not be written, or did not fit"
)
HTTP_REQUESTS = Counter("turnstream_http_requests", "Answers to HTTP requests, by call", ["call", "status"])
HTTP_SECONDS = Histogram(
    "turnstream_http_seconds",
    "From an HTTP request to the head of its answer",
    ["call"],
    buckets=(0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
POOL_IN_USE = Gauge("turnstream_pool_in_use", "Connections to Postgres that are in use, of this replica", ["pool"])
POOL_WAIT_SECONDS = Histogram(
    "turnstream_pool_wait_seconds",
    "How long a statement waited for a connection to Postgres",
    ["pool"],
    buckets=(0.001, 0.005, 0.025, 0.1, 0.5, 1, 5),
)
POOL_REFUSALS = Counter(
    "turnstream_pool_refusals", "Requests that were refused because others wait for a connection already", ["pool"]
)
JOURNAL_LAG_SECONDS = Gauge("turnstream_journal_lag_seconds", "Age of the oldest open text that the journal lacks")
STALLED_READERS = Gauge("turnstream_stalled_readers", "Connections whose client does not read what is sent")
PERSIST_SECONDS = Histogram(
    "turnstream_persist_seconds",
    "Duration of the writes of running turns",
    ["operation"],
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5),
)
LOOP_LAG_SECONDS = Gauge("turnstream_event_loop_lag_seconds", "How late the event loop's last timer fired")
FRAME_TICK_SECONDS = Histogram(
    "turnstream_frame_tick_seconds",
    "Tick of the frame clock, ten times a second; 0 while deltas pass at once",
    buckets=(0.0, 0.05),
)
GC_PAUSE_SECONDS = Histogram(
    "turnstream_gc_pause_seconds",
    "Pauses of the garbage collector",
    ["generation"],
    buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
)


class Metrics(Collector):
    """Collects every metric of turnstream, for the registry of a program that embeds it."""

    def collect(self) -> Iterable[Metric]:
        return (each for each in REGISTRY.collect() if each.name.startswith("turnstream_"))

    def describe(self) -> Iterable[Metric]:
        return self.collect()


# Without local variables: they may hold secrets.
_TRACEBACKS = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)


def _json(line: object, default: Callable[[Any], Any], **_options: object) -> bytes:
    try:
        return msgspec.json.encode(line, enc_hook=default)
    except Exception as error:  # noqa: BLE001, of a value that is no JSON: half of a character, or a `repr` that raises
        event = line.get("event") if isinstance(line, dict) else None
        return msgspec.json.encode({"event": ascii(event), "level": "error", "not_json": ascii(str(error))})


_MINUTE = 60.0  # seconds
_MOST_WARNINGS = 1_000  # different warnings that are remembered


class Libraries(logging.Handler):
    """Passes log records of libraries on to structlog. The same warning is passed on only once a minute, because a
    client may cause any number of warnings.
    """

    def __init__(self) -> None:
        super().__init__()
        self._passed: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._pass_on(record)
        except Exception:  # noqa: BLE001, a message of a library that does not fit its arguments
            self.handleError(record)

    def _pass_on(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.ERROR and not self._is_due(record.getMessage(), record.created):
            return
        fields = {"logger": record.name, "message": record.getMessage(), "exc_info": record.exc_info}
        if record.levelno >= logging.ERROR:
            log.error("library.error", **fields)
        else:
            log.warning("library.warning", **fields)

    def _is_due(self, message: str, now: float) -> bool:
        if now - self._passed.get(message, -_MINUTE) < _MINUTE:
            return False
        if len(self._passed) >= _MOST_WARNINGS:
            self._passed.clear()
        self._passed[message] = now
        return True


def write_in_background() -> None:
    """Makes a thread write all that this process prints and logs. Must be called before `configure_logging`."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        try:
            output = BackgroundOutput(descriptor, LOG_LINES_DROPPED.inc)
        except OSError:  # the process was started without this descriptor
            output = BackgroundOutput(os.open(os.devnull, os.O_WRONLY), LOG_LINES_DROPPED.inc)
        setattr(sys, name, io.TextIOWrapper(output, "utf-8", "backslashreplace", line_buffering=True))


def configure_logging(level: str) -> None:
    """Configures logs as JSON lines on standard error, or as coloured text if standard error is a terminal."""
    terminal = sys.stderr.isatty()
    logging.basicConfig(handlers=[Libraries()], level=logging.WARNING)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            *([] if terminal else [structlog.processors.ExceptionRenderer(_TRACEBACKS)]),
            structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
            if terminal
            else structlog.processors.JSONRenderer(_json),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr)
        if terminal
        else structlog.BytesLoggerFactory(sys.stderr.buffer),
        cache_logger_on_first_use=True,
    )


class GarbageWatch:
    """Times every pause of the garbage collector. `gc.callbacks` calls it at the start and at the end of each pause."""

    def __init__(self) -> None:
        self._start = 0.0

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._start = perf_counter()
        else:
            GC_PAUSE_SECONDS.labels(str(info["generation"])).observe(perf_counter() - self._start)


def settle_garbage_collector() -> None:
    """Excludes everything that exists now from later collections, which are then short. Makes them rare, because
    reference counts free the garbage of turns and requests. Call it once all long-lived objects exist.
    """
    gc.freeze()  # without a collection, which would take a tenth of a second: there is little garbage now
    # The pause for the young generation grows with the first number. The pause for the second generation grows with the
    # product of the first two: some milliseconds for 10,000 objects. More pauses are not more work, because each visits
    # only the objects that are new since the last pause. A full collection visits all live objects, so it comes only
    # after 20 million objects.
    gc.set_threshold(2_000, 5, 2_000)
    gc.callbacks.append(GarbageWatch())
