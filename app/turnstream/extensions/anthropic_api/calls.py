"""The table of the calls under /v1, in Anthropic's terms. Anthropic documents the responses of these calls;
/openapi.json describes their requests.
"""

from functools import partial
from typing import Literal

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turnstream.api.dispatch import answer
from turnstream.api.http.call_group import CallGroup, Foreign
from turnstream.api.http.endpoint import Endpoint, HandlerApp, Limit, Query
from turnstream.domain.errors import NotFound, RequestRefused, StorageUnavailable
from turnstream.domain.identity import Scope
from turnstream.extensions.anthropic_api import counting, messages, models
from turnstream.extensions.anthropic_api.errors import refusal, storage_refusal
from turnstream.extensions.anthropic_api.schemas import AnthropicError, CountIn, MessagesIn

_H: Literal["handler"] = "handler"
_ACTS: tuple[Scope, ...] = ("send", "chat", "approve")
# The limit `writes` counts each exchange of an unknown history as one write.
_POSTS: tuple[Limit, ...] = ("requests", "queued_turns", "streams")
_PAGE = (
    Query("limit", "the most that are returned", 20, 1000),
    Query("after_id", "the id of a model: what follows it"),
    Query("before_id", "the id of a model: what is before it"),
)
_VERSION = "anthropic-version"  # every client of this API sends this header

_call = partial(Endpoint, reach=_H, lenient=True)

ENDPOINTS = (
    _call(
        "POST /v1/messages",
        messages.create_message,
        "Create a message",
        MessagesIn,
        streams=True,
        scopes=_ACTS,
        limits=_POSTS,
    ),
    _call(
        "POST /v1/messages/count_tokens",
        counting.count_message_tokens,
        "Count the tokens of a message",
        CountIn,
        scopes=_ACTS,
        limits=("requests",),
    ),
)
# OpenAI's API has the same paths, so the header `anthropic-version` decides which API answers.
SHARED = (
    _call("GET /v1/models", models.list_models, "The models of this server", queries=_PAGE),
    _call("GET /v1/models/{model:path}", models.get_model, "One model"),
)


async def _no_call(request: Request) -> Response:
    """Responds with 404. The SDKs have many more calls, and show an error's text only if it has Anthropic's form."""
    name = f"{request.method} {request.url.path}"
    return await refusal(
        request, NotFound(f"This server has no call {name}; docs/anthropic.md lists the available calls.")
    )


async def _answer(request: Request, endpoint: Endpoint) -> Response:
    """Returns the answer to a call. A refusal gets Anthropic's form."""
    request = _with_token(request)
    try:
        return await answer(request, endpoint)
    except RequestRefused as error:
        return await refusal(request, error)
    except StorageUnavailable as error:
        return await storage_refusal(request, error)


def _with_token(request: Request) -> Request:
    """Returns the request with its `x-api-key` as a bearer token, because all calls of this server expect a bearer
    token.
    """
    headers = MutableHeaders(raw=list(request.scope["headers"]))
    if "authorization" not in headers and (key := headers.get("x-api-key")):
        headers["authorization"] = f"Bearer {key}"
        return Request({**request.scope, "headers": headers.raw}, request.receive)
    return request


_FOREIGN = Foreign(
    "anthropic",
    "An object of Anthropic's API",
    "Events of Anthropic's API, if `stream` is true",
    AnthropicError,
    "A refusal in Anthropic's form, with the status of its HTTP answer",
)
_ABOUT = "The same chats in the protocol of Anthropic: messages"

GROUPS = (
    CallGroup(ENDPOINTS, "Anthropic", _ABOUT, answer=_answer, foreign=_FOREIGN),
    CallGroup(
        SHARED,
        "Anthropic",
        _ABOUT,
        answer=_answer,
        routes=(Route("/v1/{call:path}", HandlerApp(_no_call)),),
        # At these paths, the server offers uploads in OpenAI's form, so clients of Anthropic's API are refused. These
        # clients send files within messages.
        refused=(Route("/v1/files", HandlerApp(_no_call)), Route("/v1/files/{call:path}", HandlerApp(_no_call))),
        foreign=_FOREIGN,
        header=_VERSION,
    ),
)
