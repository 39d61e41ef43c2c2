"""Deletes branches of a chat, and lists the siblings and descendants of a turn."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnstream.extension import Extension

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup


def _calls() -> "Sequence[CallGroup]":
    from turnstream.extensions.branches.calls import CALLS

    return [CALLS]


EXTENSION = Extension("branches", "paths, siblings and children of turns; deletion of branches", calls=_calls)
