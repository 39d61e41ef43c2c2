"""Calls that wait for a person, in all chats of the person, and in chats of other owners."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnstream.extension import Extension

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup


def _calls() -> "Sequence[CallGroup]":
    from turnstream.extensions.inbox.calls import CALLS

    return CALLS


EXTENSION = Extension(
    "inbox", "lists of calls that wait for a person, and decisions about calls of other owners", calls=_calls
)
