"""The queue of a chat: waiting messages can be read, edited, moved and withdrawn."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnstream.extension import Extension

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup


def _calls() -> "Sequence[CallGroup]":
    from turnstream.extensions.queue.calls import CALLS

    return [CALLS]


EXTENSION = Extension("queue", "changes of messages that wait in the queue of a chat", calls=_calls)
