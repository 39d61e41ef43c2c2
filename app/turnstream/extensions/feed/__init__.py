"""The feed of an owner: changes in all chats of the owner."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnstream.extension import Context, Extension, Work

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup


def _calls() -> "Sequence[CallGroup]":
    from turnstream.extensions.feed.calls import CALLS

    return [CALLS]


def _work(context: Context) -> Work:
    from turnstream.extensions.feed.reader import OwnerFeed

    feed = OwnerFeed(context.notify_peers)
    feed.broadcast.follow(context.signals)
    context.signals.changed.act(lambda owner, _chat: feed.notify(owner))
    context.signals.owner_changed.act(feed.notify)
    return Work(state=feed, tasks=[feed.broadcast.run], feed=feed)


EXTENSION = Extension("feed", "a stream of what happens in all chats of an owner", calls=_calls, work=_work)
