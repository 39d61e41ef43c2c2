"""Metrics for Prometheus."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnstream.extension import Context, Extension, Work

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup


def _calls() -> "Sequence[CallGroup]":
    from turnstream.extensions.metrics.calls import CALLS

    return [CALLS]


def _work(context: Context) -> Work:
    from turnstream.libraries.extension_metrics import TURNS_LIMIT
    from turnstream.libraries.turn_counts import TurnCounts

    TURNS_LIMIT.set(context.settings.concurrent_turns)
    return Work(state=TurnCounts(context.database))


EXTENSION = Extension("metrics", "metrics for Prometheus", calls=_calls, work=_work)
