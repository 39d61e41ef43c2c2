"""The table of the calls under /v1, in OpenAI's terms. OpenAI documents the responses of the calls; /openapi.json
describes the requests.
"""

from functools import partial
from typing import Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turnstream.api.dispatch import answer
from turnstream.api.http.call_group import CallGroup, Foreign
from turnstream.api.http.endpoint import Endpoint, HandlerApp, Limit, Query
from turnstream.domain.errors import NotFound, RequestRefused, StorageUnavailable
from turnstream.domain.identity import Scope
from turnstream.extensions.openai_api import chat, compacting, conversations, embeddings, files, models, responses
from turnstream.extensions.openai_api.errors import param_of, param_of_chat, refusal, storage_refusal
from turnstream.extensions.openai_api.schemas import (
    ChatIn,
    ConversationBody,
    EmbeddingsIn,
    ItemsIn,
    OpenAiError,
    ResponseIn,
)
from turnstream.libraries.uploading import get_upload

_H: Literal["handler"] = "handler"
_ACTS: tuple[Scope, ...] = ("send", "chat", "approve")
_WRITES: tuple[Limit, ...] = ("writes",)
# Each exchange of an unknown history counts as one write.
_POSTS: tuple[Limit, ...] = ("requests", "queued_turns", "streams")
_PAGE = (
    Query("limit", "the most that are returned", 20, 100),
    Query("order", "`asc`: the oldest first; `desc` unless it is given"),
    Query("after", "the id of an item: what follows it in that order"),
    Query("include", "is accepted: items have all that is there"),
)
_FILES = (
    Query("order", "`asc`: the oldest first; `desc` unless it is given"),
    Query("after", "the id of a file: what follows it in that order"),
    Query("purpose", "the purpose of the files: each is for all that are taken"),
)
_STREAM = (
    Query("stream", "`true`: as a stream of events"),
    Query("starting_after", "the number of an event: the stream sends what follows it"),
    Query("include", "is accepted: responses have all that is there"),
    Query("include_obfuscation", "is accepted: events are never obfuscated"),
)

_call = partial(Endpoint, reach=_H, lenient=True)

ENDPOINTS = (
    _call("GET /v1/models", models.list_models, "The models of this server"),
    _call("GET /v1/models/{model:path}", models.get_model, "One model"),
    _call(
        "POST /v1/responses",
        responses.create_response,
        "Create a response",
        ResponseIn,
        streams=True,
        scopes=_ACTS,
        limits=_POSTS,
    ),
    _call(
        "POST /v1/responses/input_tokens",
        responses.count_input_tokens,
        "Count the tokens of the input",
        ResponseIn,
        scopes=_ACTS,
        limits=("requests",),
    ),
    _call(
        "POST /v1/responses/compact",
        compacting.compact_response,
        "Summarise a conversation",
        ResponseIn,
        scopes=_ACTS,
        limits=_POSTS,
    ),
    _call(
        "GET /v1/responses/{response}",
        responses.get_response,
        "One response, or its stream",
        queries=_STREAM,
        streams=True,
    ),
    _call("DELETE /v1/responses/{response}", responses.delete_response, "Delete a response"),
    _call("POST /v1/responses/{response}/cancel", responses.cancel_response, "Cancel a response", limits=()),
    _call(
        "GET /v1/responses/{response}/input_items",
        responses.list_input_items,
        "What was sent",
        queries=_PAGE,
    ),
    _call(
        "POST /v1/conversations",
        conversations.create_conversation,
        "Create a conversation",
        ConversationBody,
        reach="owner",
        limits=_WRITES,
    ),
    _call("GET /v1/conversations/{conversation}", conversations.get_conversation, "One conversation"),
    _call(
        "POST /v1/conversations/{conversation}",
        conversations.change_conversation,
        "Change it",
        ConversationBody,
        limits=_WRITES,
    ),
    _call("DELETE /v1/conversations/{conversation}", conversations.delete_conversation, "Delete it"),
    _call("GET /v1/conversations/{conversation}/items", conversations.list_items, "Its items", queries=_PAGE),
    _call(
        "POST /v1/conversations/{conversation}/items",
        conversations.add_items,
        "Add items",
        ItemsIn,
        limits=_WRITES,
    ),
    _call("GET /v1/conversations/{conversation}/items/{item}", conversations.get_item, "One item"),
    _call("DELETE /v1/conversations/{conversation}/items/{item}", conversations.delete_item, "Delete"),
    _call(
        "POST /v1/chat/completions",
        chat.complete_chat,
        "Complete a chat",
        ChatIn,
        streams=True,
        scopes=_ACTS,
        limits=_POSTS,
    ),
    _call(
        "POST /v1/embeddings",
        embeddings.create_embeddings,
        "Make embeddings of texts",
        EmbeddingsIn,
        scopes=_ACTS,
        limits=("requests",),
    ),
    _call(
        "POST /v1/files",
        files.create_file,
        "Upload a file that messages can refer to",
        "multipart/form-data",
        scopes=("send", "chat"),
        limits=(*_WRITES, "uploads"),
    ),
    _call(
        "GET /v1/files",
        files.list_files,
        "The files of the owner",
        reach="owner",
        queries=(Query("limit", "the most that are returned", files.MOST_LISTED, files.MOST_LISTED), *_FILES),
    ),
    _call("GET /v1/files/{upload}", files.get_file, "One file, without its bytes", reach="owner"),
    _call("GET /v1/files/{upload}/content", get_upload, "The bytes of a file", gives="*/*"),
    _call("DELETE /v1/files/{upload}", files.delete_file, "Delete a file", reach="owner"),
)
# Functions that rename fields in refusals. A call that is missing here uses the names of the Responses API.
_PARAMS = {"/v1/chat/completions": param_of_chat}


async def _no_call(request: Request) -> Response:
    """Refuses a call that this server does not have. The SDKs have many such calls, and show the text of a refusal only
    if the refusal has OpenAI's form.
    """
    name = f"{request.method} /v1/{request.path_params['call']}"
    return await refusal(
        request, NotFound(f"This server has no call {name}; docs/openai.md lists the available calls.")
    )


async def _answer(request: Request, endpoint: Endpoint) -> Response:
    """Returns the answer to a call. A refusal is converted to OpenAI's form."""
    try:
        return await answer(request, endpoint)
    except RequestRefused as error:
        return await refusal(request, error, _PARAMS.get(endpoint.path, param_of))
    except StorageUnavailable as error:
        return await storage_refusal(request, error)


CALLS = CallGroup(
    ENDPOINTS,
    "OpenAI",
    "The same chats in the protocols of OpenAI: responses, conversations, chat completions",
    answer=_answer,
    routes=(Route("/v1/{call:path}", HandlerApp(_no_call)),),
    foreign=Foreign(
        "openai",
        "An object of OpenAI's API",
        "Events of OpenAI's API, if `stream` is true",
        OpenAiError,
        "A refusal in OpenAI's form, with the status of its HTTP answer",
    ),
)
