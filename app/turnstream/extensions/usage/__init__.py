"""Usage: the tokens and the cost of owners' model calls."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnstream.extension import Extension

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup


def _calls() -> "Sequence[CallGroup]":
    from turnstream.extensions.usage.calls import CALLS

    return [CALLS]


EXTENSION = Extension(
    "usage",
    "what model calls have used and cost",
    calls=_calls,
    commands={"usage": "turnstream.extensions.usage.command"},
)
