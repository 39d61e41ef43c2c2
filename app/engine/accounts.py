"""What a turn that ended adds to the metrics and the log."""

from time import perf_counter

import structlog

from app.domain.steps import MAX_TOOL_ROUNDS, tool_rounds
from app.domain.turns import Turn
from app.telemetry import (
    CONTINUATION_ROUNDS,
    CONTINUATION_SECONDS,
    CONTINUATIONS,
    ROUNDS_PER_TURN,
    TURNS,
)

log = structlog.get_logger(__name__)

_STOP_REASONS = frozenset(
    {"end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn", "refusal", "cancelled", "error"}
    | {"model_context_window_exceeded", MAX_TOOL_ROUNDS}
)


def account_for(turn: Turn, tools_started: float | None) -> None:
    """`tools_started` is the perf_counter reading when the turn's first tool call began here."""
    stop_reason = turn.stop_reason if turn.stop_reason in _STOP_REASONS else "other"
    rounds = sum(round.sealed for round in turn.rounds)
    TURNS.labels(turn.status, stop_reason).inc()
    ROUNDS_PER_TURN.observe(rounds)
    if asked := tool_rounds(turn.blocks):
        CONTINUATIONS.labels("ok" if turn.status == "complete" else turn.status).inc()
        CONTINUATION_ROUNDS.observe(asked)
    if tools_started is not None:
        CONTINUATION_SECONDS.observe(perf_counter() - tools_started)
    log.info(
        "turn.ended",
        status=turn.status,
        stop_reason=turn.stop_reason,
        rounds=rounds,
        tool_rounds=asked,
        error=turn.error.type if turn.error else None,
        usage=turn.usage,
    )
