"""The API calls of the dialect for Vercel's AI SDK."""

from functools import partial

from turnstream.api.http.call_group import CallGroup, EventStream
from turnstream.api.http.endpoint import Endpoint, Limit, Query
from turnstream.extensions.ai_sdk import endpoints
from turnstream.extensions.ai_sdk.schemas import UiChatOut, UiRequest, UiStopped

_POSTS: tuple[Limit, ...] = ("requests", "queued_turns", "streams")
_call = partial(Endpoint, reach="handler", lenient=True)

ENDPOINTS = (
    _call(
        "POST /api/ai-sdk/chat",
        endpoints.converse,
        "For `useChat` of the AI SDK: post a message, answer calls that wait, or generate again; returns the stream",
        UiRequest,
        "text/event-stream",
        problems=(409,),
        events="UiMessageStream",
        scopes=("send", "chat", "approve"),
        limits=_POSTS,
    ),
    _call(
        "GET /api/ai-sdk/chat/{id}/stream",
        endpoints.resume_answer,
        "For `useChat` of the AI SDK: the newest answer from its beginning; 204 when it ended more than a minute ago",
        gives="text/event-stream",
        statuses=(200, 204),
        problems=(404, 422),
        queries=(Query("turn", "the id of an answer: this one, however long ago it ended"),),
        events="UiMessageStream",
    ),
    _call(
        "POST /api/ai-sdk/workflow",
        endpoints.converse_counted,
        "For the workflow transport of the AI SDK: as `POST /api/ai-sdk/chat`, with chunks that can be counted",
        UiRequest,
        "text/event-stream",
        problems=(409,),
        events="UiMessageStream",
        scopes=("send", "chat", "approve"),
        limits=_POSTS,
    ),
    _call(
        "GET /api/ai-sdk/workflow/{id}/stream",
        endpoints.resume_counted,
        "For the workflow transport of the AI SDK: the answer of a run, or the newest of a chat, from a chunk on",
        gives="text/event-stream",
        problems=(404, 422),
        queries=(Query("startIndex", "the number of chunks that the client has; negative: all are sent"),),
        events="UiMessageStream",
    ),
    _call(
        "GET /api/ai-sdk/chat/{id}",
        endpoints.list_messages,
        "For `useChat` of the AI SDK: the messages on the path to the newest turn",
        gives=UiChatOut,
        problems=(404,),
    ),
    _call(
        "POST /api/ai-sdk/chat/{id}/stop",
        endpoints.stop_chat,
        "For `useChat` of the AI SDK: cancel all turns of the chat that have not ended",
        gives=UiStopped,
        problems=(404,),
        limits=(),
    ),
)

CALLS = CallGroup(
    ENDPOINTS,
    "AI SDK",
    "The same chats in the protocol of Vercel's AI SDK",
    {
        "UiMessageStream": EventStream(
            "Chunks of the AI SDK's UI message stream, protocol v1. They have neither names nor ids."
        )
    },
)
