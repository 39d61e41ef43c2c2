"""Reasons why an answer does not progress."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnstream.extension import Extension

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup


def _calls() -> "Sequence[CallGroup]":
    from turnstream.extensions.why.calls import CALLS

    return [CALLS]


EXTENSION = Extension("why", "why an answer does not move, in sentences, and its life so far", calls=_calls)
