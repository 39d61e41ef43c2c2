"""Streams a chat on one connection: the chat's own changes, and the events of all its turns."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnstream.extension import Context, Extension, Work

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup

_POLL = 5.0  # seconds between two checks for a lost notification


def _calls() -> "Sequence[CallGroup]":
    from turnstream.extensions.chat_stream.calls import CALLS

    return [CALLS]


def _work(context: Context) -> Work:
    from turnstream.extensions.chat_stream.rows import ChatNews
    from turnstream.extensions.chat_stream.wakeups import ChatWakeups

    wakeups = ChatWakeups(ChatNews(context.database), context.notify_peers, _POLL)
    wakeups.broadcast.follow(context.signals)
    context.signals.changed.act(lambda _owner, chat: wakeups.notify(chat))
    return Work(state=wakeups, tasks=[wakeups.broadcast.run, wakeups.watch])


EXTENSION = Extension("chat_stream", "a stream of a chat, with the events of all its turns", calls=_calls, work=_work)
