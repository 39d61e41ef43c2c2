"""The table of the core's API calls, from which the router and the OpenAPI document are made."""

from collections.abc import Mapping

from turnstream.api import actions, chats, health, tokens, turns
from turnstream.api.events import EVENTS
from turnstream.api.http.call_group import CallGroup, EventStream
from turnstream.api.http.endpoint import Endpoint, Limit, Query
from turnstream.api.schemas.requests import ChatChanges, NewChat, NewTurn, NewTurnInNewChat, TurnOptions
from turnstream.api.schemas.responses import (
    ChatOut,
    ChatPage,
    Deleted,
    ExchangeOut,
    GrantsOut,
    IdentityOut,
    PathPage,
    Revoked,
    TurnOut,
)
from turnstream.api.schemas.tools import ActionsIn
from turnstream.api.streams import turn as turn_stream
from turnstream.domain.identity import Scope


def page_limit(default: int, most: int) -> Query:
    return Query("limit", "the most that are returned", default, most)


_WRITES: tuple[Limit, ...] = ("writes",)
_POSTS: tuple[Limit, ...] = ("requests", "queued_turns", "streams")
_KEY = ("Idempotency-Key",)
_SENDS: tuple[Scope, ...] = ("send", "chat")
CAUGHT_UP = Query("caught_up", "true: a notice `caught_up` comes behind what there was at the connection")
_FRAMES = Query("frames", "never: the deltas of the turn wait for no others, also under load")
_OLD = ("Cache-Control",)  # for reads that a standby may answer

ENDPOINTS = (
    Endpoint("POST /api/chats", chats.create_chat, "Create a chat", NewChat, ChatOut, (201,), (422,), limits=_WRITES),
    Endpoint(
        "GET /api/chats",
        chats.list_chats,
        "The owner's chats, last changed first",
        gives=ChatPage,
        problems=(400, 422),
        queries=(
            page_limit(50, 200),
            Query("before", "`next` of an earlier page"),
            Query(
                "q",
                "only chats where each of these words, 8 at most, is found in the title or in a message; "
                "each with an `excerpt` of where it was found; the best match first",
            ),
            Query("tools", "with `q`: true searches the results of tools too, where they are indexed"),
            Query("since", "with `q`: only messages from this day or time on, and titles of chats made since then"),
            Query("until", "with `q`: only messages before this day or time"),
            Query("chat", "with `q`: only in this chat"),
        ),
        headers=_OLD,
    ),
    Endpoint("GET /api/chats/{chat}", chats.get_chat, "One chat", gives=ChatOut, problems=(404,)),
    Endpoint(
        "PATCH /api/chats/{chat}",
        chats.change_chat,
        "Rename a chat, change its system prompt or settings; what is left out stays",
        ChatChanges,
        ChatOut,
        problems=(404, 422),
        limits=_WRITES,
    ),
    Endpoint(
        "DELETE /api/chats/{chat}",
        chats.delete_chat,
        "Delete a chat and all its turns; a running turn is cancelled",
        gives=Deleted,
        problems=(404,),
    ),
    Endpoint(
        "POST /api/turns",
        turns.create_turn_in_new_chat,
        "Post a message in a new chat, which is created with it",
        NewTurnInNewChat,
        ExchangeOut,
        (201,),
        (422,),
        headers=_KEY,
        limits=_POSTS,
        streams=True,
        scopes=_SENDS,
    ),
    Endpoint(
        "POST /api/chats/{chat}/turns",
        turns.create_turn,
        "Post a message; with Accept: text/event-stream the response is the stream of the answer",
        NewTurn,
        ExchangeOut,
        (201, 202),
        (404, 409, 422),
        headers=_KEY,
        limits=_POSTS,
        streams=True,
        scopes=_SENDS,
    ),
    Endpoint(
        "GET /api/chats/{chat}/turns",
        turns.get_path,
        "The path to a leaf, by default the newest turn; page by page, backwards and forwards",
        gives=PathPage,
        problems=(404, 422),
        queries=(
            page_limit(100, 500),
            Query("leaf", "the last turn of the path"),
            Query("through", "a turn of the path, which ends with the newest turn that follows it"),
            Query("before", "only turns before this one, the nearest"),
            Query("after", "only turns after it, the nearest, on the way to `leaf`, or to the newest that follows it"),
        ),
        headers=_OLD,
    ),
    Endpoint(
        "GET /api/chats/{chat}/turns/{turn}",
        turns.get_turn,
        "One turn, with a cursor to go on from",
        gives=TurnOut,
        problems=(404,),
        reach="turn",
        headers=_OLD,
    ),
    Endpoint(
        "GET /api/chats/{chat}/turns/{turn}/stream",
        turn_stream.stream_turn,
        "Follow the turn from a cursor; 204 when there is nothing left",
        gives="text/event-stream",
        statuses=(200, 204),
        problems=(400, 404, 409),
        queries=(Query("cursor", "the id of the last event received"), CAUGHT_UP, _FRAMES),
        headers=("Last-Event-ID", *_OLD),
        reach="turn",
    ),
    Endpoint(
        "POST /api/chats/{chat}/turns/{turn}/cancel",
        turns.cancel,
        "Cancel the turn; its content stays. 202 while it is stopping",
        gives=TurnOut,
        statuses=(200, 202),
        problems=(404, 409),
        reach="turn",
        limits=(),
    ),
    Endpoint(
        "POST /api/chats/{chat}/turns/{turn}/actions",
        actions.act,
        "Answer calls that wait: results of client tools, decisions about approvals",
        ActionsIn,
        TurnOut,
        (202,),
        (404, 409, 422),
        headers=_KEY,
        scopes=("chat", "approve"),
        reach="turn",
        limits=(*_WRITES, "uploads"),
    ),
    Endpoint(
        "GET /api/chats/{chat}/grants",
        actions.list_grants,
        "The approvals that are remembered for the chat, oldest first",
        gives=GrantsOut,
        problems=(404,),
    ),
    Endpoint(
        "DELETE /api/chats/{chat}/grants/{grant}",
        actions.revoke_grant,
        "Revoke a remembered approval: the next call of the tool needs a decision again",
        gives=Revoked,
        problems=(404,),
        scopes=("approve",),
    ),
    Endpoint(
        "POST /api/chats/{chat}/turns/{turn}/regenerate",
        turns.regenerate,
        "Another answer to the same user turn, as a sibling",
        TurnOptions,
        ExchangeOut,
        (201,),
        (404, 409, 422),
        headers=_KEY,
        limits=_POSTS,
        streams=True,
    ),
    Endpoint(
        "GET /api/me",
        tokens.get_identity,
        "Whose the credential is, and what it allows",
        gives=IdentityOut,
        reach="handler",
    ),
    Endpoint("GET /healthz", health.healthz, "The process is alive", gives="text/plain", open=True),
    Endpoint(
        "GET /readyz",
        health.readyz,
        "The server is ready for traffic",
        gives="text/plain",
        queries=(Query("exclude", "`postgres`: 503 only while the server is stopping, also where Postgres is away"),),
        problems=(500, 503),
        open=True,
    ),
)

ABOUT_EVENTS = "Server-sent events, each with JSON as its data and the cursor behind it as its id. "
_STREAMS: Mapping[str, EventStream] = {
    "Stream": EventStream(f"{ABOUT_EVENTS}The stream ends after the last event of the turn.", EVENTS),
}

CORE = CallGroup(ENDPOINTS, streams=_STREAMS)
