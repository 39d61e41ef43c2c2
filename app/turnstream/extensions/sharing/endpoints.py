"""Handlers of shared chats: the owner's links, and the view for people who have a link."""

import hashlib
from functools import partial
from uuid import UUID

from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.codec import to_json
from turnstream.api.http.reading import id_of, limit_of, read_body
from turnstream.api.schemas.responses import Revoked
from turnstream.api.services import Services, as_id, identity_of, path_for, services_and_owner, services_of
from turnstream.api.views import json_response
from turnstream.domain.errors import Conflict, Forbidden, NotFound, RequestRefused
from turnstream.extensions.sharing.schemas import ShareCreated, ShareIn, ShareList, ShareOut
from turnstream.extensions.sharing.shares import SharedContent, Shares, Sharing
from turnstream.extensions.sharing.view import shared_turn, uploads_of
from turnstream.kit.offload import Portions
from turnstream.libraries.uploading import SAFE_HEADERS
from turnstream.storage.database import OWNER, Row
from turnstream.web.site import site

_MOST_TURNS = 1000  # a view shows at most so many turns of a branch, the newest ones
_HEADERS = {"Cache-Control": "no-cache", "X-Robots-Tag": "noindex", "Referrer-Policy": "no-referrer"}


async def create_share(request: Request) -> Response:
    services, owner = services_and_owner(request)
    identity, chat = identity_of(request), id_of(request, "chat")
    identity.require_reach(None)
    asked, _ = await read_body(request, ShareIn)
    await services.storage.chats.get(owner, chat)
    shares = _shares(request)
    turn = None
    if asked.live:
        if asked.turn is not None:
            raise RequestRefused("`turn` must be left out of a live link, which has no last turn.", field="turn")
    else:
        turn = await _end_of_snapshot(services, owner, chat, asked.turn)
    row, secret = await shares.create(identity, chat, turn, asked)
    path = path_for(request, f"/shared/{secret}")
    return json_response(
        ShareCreated(**dict(row), path=path), 201, {"Location": path_for(request, f"/api/shares/{row['id']}")}
    )


async def _end_of_snapshot(services: Services, owner: str, chat: UUID, asked: UUID | None) -> UUID:
    """Returns the last turn of a snapshot. Raises NotFound, and raises Conflict for an open turn, whose text may
    change.
    """
    id = asked or await services.storage.turns.newest(owner, chat)
    if id is None:
        raise Conflict("The chat has no turn to share.")
    turn = await services.storage.turns.get(owner, chat, id)
    if turn.role == "assistant" and not turn.ended:
        raise Conflict("The answer has not ended: share the chat when it has, up to an earlier `turn`, or `live`.")
    return id


async def list_shares(request: Request) -> Response:
    _, owner = services_and_owner(request)
    chat = request.query_params.get("chat")
    id = None if chat is None else as_id(chat)
    if chat is not None and id is None:
        raise RequestRefused("`chat` must be the id of a chat.", field="chat")
    rows = await _shares(request).list(owner, id, limit_of(request, default=100, most=1000))
    return json_response(ShareList(shares=[ShareOut(**dict(row)) for row in rows]))


async def get_share(request: Request) -> Response:
    _, owner = services_and_owner(request)
    return json_response(ShareOut(**dict(await _shares(request).get(owner, id_of(request, "share")))))


async def revoke_share(request: Request) -> Response:
    id = id_of(request, "share")
    await _shares(request).revoke(identity_of(request), id)
    return json_response(Revoked(revoked=id))


async def get_shared(request: Request) -> Response:
    content = await _content(request)
    headers = _HEADERS | {"ETag": content.tag}
    if content.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(content.body, headers=headers, media_type="application/json")


async def get_shared_file(request: Request) -> Response:
    upload = id_of(request, "upload")
    services, content = services_of(request), await _content(request)
    OWNER.set(content.owner)
    found = await services.storage.uploads.read(content.owner, upload) if upload in content.uploads else None
    if found is None:
        raise NotFound("This link shows no such file.")
    media_type, content_bytes = found
    return Response(content_bytes, headers=SAFE_HEADERS | {"X-Robots-Tag": "noindex"}, media_type=media_type)


async def shared_page(request: Request) -> Response:
    """Returns the page, which is the same for every link, because its script reads the address."""
    response = site().shared_page(request)
    response.headers["X-Robots-Tag"] = "noindex"
    return response


async def _content(request: Request) -> SharedContent:
    """Returns the content of the link in the path. Raises NotFound, even if sharing is off."""
    sharing = services_of(request).states.get("sharing")
    if not isinstance(sharing, Sharing):
        raise NotFound("This link does not exist, has expired, or was revoked.")
    return await sharing.shares.content(request.path_params["secret"], partial(_read, services_of(request)))


async def _read(services: Services, share: Row) -> SharedContent:
    owner, chat = share["owner"], share["chat"]
    OWNER.set(owner)
    end = await services.storage.turns.newest(owner, chat) if share["live"] else share["turn"]
    path = await services.storage.turns.path(owner, chat, end, _MOST_TURNS) if end else []
    turns, bodies, portions = [], [], Portions()
    for turn in path:
        view = services.live.directory.view(turn)
        turns.append(shared_turn(view, results=share["results"], files=share["files"]))
        bodies.append(Raw(turns[-1].model_dump_json().encode()))
        await portions.pause()
    more = bool(path) and path[0].parent_id is not None
    body = to_json({"title": share["title"], "live": share["live"], "more": more, "turns": bodies})
    return SharedContent(owner, body, f'"{hashlib.sha256(body).hexdigest()[:32]}"', uploads_of(turns))


def sharing_of(services: Services) -> Sharing:
    """Returns the state of the extension. Raises Forbidden if sharing is off."""
    sharing = services.states.get("sharing")
    if not isinstance(sharing, Sharing):
        raise Forbidden("Sharing is off on this server; its operator turns it on with TURNSTREAM_SHARING.")
    return sharing


def _shares(request: Request) -> Shares:
    """Returns the links. Raises Forbidden if sharing is off."""
    return sharing_of(services_of(request)).shares
