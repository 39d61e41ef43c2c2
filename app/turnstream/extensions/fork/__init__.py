"""Copies of turns and chats."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnstream.extension import Extension

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup


def _calls() -> "Sequence[CallGroup]":
    from turnstream.extensions.fork.calls import CALLS

    return [CALLS]


EXTENSION = Extension("fork", "copies of a turn as a branch, and of the path to it as a chat", calls=_calls)
