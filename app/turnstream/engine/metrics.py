"""Counts metrics of model calls, rounds and ended turns."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter

import structlog

from turnstream.domain.assembly import WRITTEN_HERE
from turnstream.domain.errors import ProviderError, TransientError
from turnstream.domain.guards import GUARDRAIL, GUARDRAIL_FAILED
from turnstream.domain.kinds import TOOL_RESULT
from turnstream.domain.limits import BUDGET, reached_limits
from turnstream.domain.rounds import Round
from turnstream.domain.steps import MAX_CALLS, MAX_TOOL_ROUNDS, failed_rounds, tool_rounds, tools_have_failed
from turnstream.domain.turns import Turn
from turnstream.telemetry import (
    CONTINUATION_ROUNDS,
    CONTINUATION_SECONDS,
    CONTINUATIONS,
    COST,
    LIMITS_REACHED,
    PROVIDER_ERRORS,
    PROVIDER_RETRIES,
    ROUNDS_PER_TURN,
    TOKENS,
    TURNS,
)

log = structlog.get_logger(__name__)

# A provider may invent other stop reasons. Each would be a new metric series, so they are counted as `other`.
_STOP_REASONS = frozenset(
    {"end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn", "refusal", "cancelled", "error"}
    | WRITTEN_HERE
    | {"model_context_window_exceeded", MAX_TOOL_ROUNDS, MAX_CALLS, BUDGET, GUARDRAIL, GUARDRAIL_FAILED}
)
_RETRY_REASONS = frozenset(
    {
        "api_error",
        "bad_content_type",
        "bad_stream",
        "connection_error",
        "incomplete_stream",
        "interrupted",
        "overloaded_error",
    }
    | {"provider_error", "rate_limit_error", "rate_limit_exceeded", "server_error", "stall_timeout", "timeout_error"}
)

_LASTING_ERRORS = frozenset(
    {"authentication_error", "invalid_request_error", "model_not_available", "not_found_error", "permission_error"}
    | {"insufficient_quota", "billing_error", "request_too_large", "reply_too_long"}
)


def count_retry(error: TransientError) -> None:
    PROVIDER_RETRIES.labels(error.type if error.type in _RETRY_REASONS else "other").inc()


def count_provider_error(provider: str, model: str, error: ProviderError | TimeoutError) -> None:
    PROVIDER_ERRORS.labels(provider, model, error_label(error)).inc()


def error_label(error: ProviderError | TimeoutError) -> str:
    type = error.type if isinstance(error, ProviderError) else "timeout_error"
    return type if type in _RETRY_REASONS | _LASTING_ERRORS else "other"


def count_usage(round: Round, model: str) -> None:
    """Counts tokens and cost. `model` is the model's label in metrics, here and in `count_tokens`."""
    count_tokens(round.usage, model)
    if round.cost is not None:
        COST.labels(model).inc(float(round.cost))


def count_tokens(usage: Mapping[str, object], model: str) -> None:
    for kind, count in usage.items():
        if kind.endswith("_tokens") and isinstance(count, int):
            TOKENS.labels(kind.removesuffix("_tokens"), model).inc(count)


@contextmanager
def logged_continuation(turn: Callable[[], Turn], number: int) -> Iterator[None]:
    """Logs the start and the end of the model call in round `number`, if the call follows tool results."""
    sealed = [each.number for each in turn().rounds if each.sealed]
    tools = sum(block.type == TOOL_RESULT and block.round in sealed[-1:] for block in turn().blocks)
    if not tools:
        yield
        return
    log.info("continuation.started", round=number, tools=tools)
    start = perf_counter()
    try:
        yield
    finally:
        reply = next((each for each in reversed(turn().rounds) if each.number == number), None)
        log.info(
            "continuation.ended",
            round=number,
            tools=tools,
            stop_reason=reply.stop_reason if reply is not None and reply.sealed else "failed",
            seconds=round(perf_counter() - start, 3),
            usage=reply.usage if reply is not None else {},
        )


def count_ended_turn(turn: Turn, tools_started: float | None) -> None:
    """Counts and logs the end of a turn. `tools_started` is the perf_counter time of this run's first tool call."""
    stop_reason = turn.stop_reason if turn.stop_reason in _STOP_REASONS else "other"
    rounds = sum(round.sealed for round in turn.rounds)
    TURNS.labels(turn.status, stop_reason).inc()
    ROUNDS_PER_TURN.observe(rounds)
    if with_tools := tool_rounds(turn.blocks):
        CONTINUATIONS.labels("ok" if turn.status == "complete" else turn.status).inc()
        CONTINUATION_ROUNDS.observe(with_tools)
    reached = [(each.name, each.limit, each.used) for each in reached_limits(turn)]
    if turn.request is not None and tools_have_failed(turn):
        most = turn.request.limits.max_failed_rounds
        reached.append(("max_failed_rounds", most, failed_rounds(turn.blocks)))
    for name, limit, used in reached:
        LIMITS_REACHED.labels(name).inc()
        log.warning("limit.reached", limit=name, most=limit, used=used, rounds=rounds, tool_rounds=with_tools)
    if tools_started is not None:
        CONTINUATION_SECONDS.observe(perf_counter() - tools_started)
    log.info(
        "turn.ended",
        status=turn.status,
        stop_reason=turn.stop_reason,
        rounds=rounds,
        tool_rounds=with_tools,
        error=turn.error.type if turn.error else None,
        usage=turn.usage,
    )
