"""The call that streams the feed of an owner."""

from turnstream.api.http.call_group import CallGroup, EventStream
from turnstream.api.http.endpoint import Endpoint, Query
from turnstream.api.routes import ABOUT_EVENTS
from turnstream.extensions.feed.endpoints import stream_feed
from turnstream.extensions.feed.events import FEED_EVENTS

CALLS = CallGroup(
    (
        Endpoint(
            "GET /api/stream",
            stream_feed,
            "Follow what happens in all of the owner's chats: made, changed, deleted; turns made, waiting, ended",
            gives="text/event-stream",
            problems=(400,),
            queries=(Query("cursor", "the id of the last event received, or the cursor of a list of chats"),),
            headers=("Last-Event-ID",),
            events="Feed",
        ),
    ),
    "Streams",
    streams={
        "Feed": EventStream(
            f"{ABOUT_EVENTS}An event may come again after a reconnect; each is the whole state.", FEED_EVENTS
        ),
    },
)
