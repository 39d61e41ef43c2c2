"""The API call that streams a chat."""

from turnstream.api.http.call_group import CallGroup, EventStream
from turnstream.api.http.endpoint import Endpoint, Query
from turnstream.api.routes import ABOUT_EVENTS, CAUGHT_UP
from turnstream.extensions.chat_stream.endpoints import stream_chat
from turnstream.extensions.chat_stream.events import CHAT_EVENTS

CALLS = CallGroup(
    (
        Endpoint(
            "GET /api/chats/{chat}/stream",
            stream_chat,
            "Follow the chat from a cursor: its changes, its new turns, and the events of all that run",
            gives="text/event-stream",
            problems=(400, 404),
            queries=(Query("cursor", "the id of the last event received, or the cursor of a page of turns"), CAUGHT_UP),
            headers=("Last-Event-ID",),
            events="ChatStream",
        ),
    ),
    "Streams",
    streams={
        "ChatStream": EventStream(
            f"{ABOUT_EVENTS}An event of a turn is that of the turn's own stream, with the turn's id besides.",
            CHAT_EVENTS,
        ),
    },
)
