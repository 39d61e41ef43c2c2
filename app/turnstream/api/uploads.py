"""Handlers of uploads: images, PDFs and texts that turns refer to."""

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.attachments import store_upload
from turnstream.api.http.errors import UnsupportedMedia
from turnstream.api.http.reading import id_of, read_bytes
from turnstream.api.schemas.responses import UploadDeleted, UploadOut
from turnstream.api.services import identity_of, path_for, services_and_owner, services_of
from turnstream.api.views import json_response
from turnstream.domain.errors import Conflict, NotFound
from turnstream.domain.identity import Identity
from turnstream.domain.media import MEDIA, MediaType, media_type_of
from turnstream.storage.owners.uploads import Upload

# A browser must not run an upload, which may be any file of its owner.
SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Disposition": "attachment",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    # An upload never changes, but it may be deleted, and the next user of this browser may be another owner.
    "Cache-Control": "private, no-cache",
    "Vary": "Authorization",
}


async def put_upload(request: Request) -> Response:
    services = services_of(request)
    require_uploads(identity_of(request))
    content = await read_bytes(request, services.http.max_upload_bytes)
    media_type = media_type_of(content)
    if media_type is None:
        raise UnsupportedMedia(f"The body must be a file of one of these types: {', '.join(MEDIA)} (in UTF-8).")
    upload = await take_upload(request, media_type, content)
    body = UploadOut(id=upload.id, media_type=upload.media_type, size=upload.size, created=upload.created)
    return json_response(
        body, 201 if upload.created else 200, {"Location": path_for(request, f"/api/uploads/{upload.id}")}
    )


def require_uploads(identity: Identity) -> None:
    """Raises Forbidden if the caller may not upload files."""
    identity.require_reach(identity.chat)
    if identity.chat is None:
        identity.require("chat")  # which messages could refer to the file is not known


async def take_upload(
    request: Request, media_type: MediaType, content: bytes, name: str | None = None, purpose: str | None = None
) -> Upload:
    """Stores a file of the caller. Raises TooMany."""
    services, identity = services_of(request), identity_of(request)
    upload = await store_upload(services, identity.owner, media_type.name, content, name, purpose)
    if identity.chat is not None:
        await services.storage.uploads.keep_for_chat(identity.chat, upload.id)
    return upload


async def get_upload(request: Request) -> Response:
    services, owner = services_and_owner(request)
    identity, upload = identity_of(request), id_of(request, "upload")
    if identity.chat and not await services.storage.uploads.is_shown(identity.chat, identity.turn, upload):
        identity.require_reach(None)
    tag = f'"{upload}"'
    if tag in request.headers.get("if-none-match", "") and await services.storage.uploads.describe(owner, [upload]):
        return Response(status_code=304, headers=SAFE_HEADERS | {"ETag": tag})
    found = await services.storage.uploads.read(owner, upload)
    if found is None:
        raise NotFound(f"There is no upload {upload}.")
    media_type, content = found
    return Response(content, media_type=media_type, headers=SAFE_HEADERS | {"ETag": tag})


async def delete_upload(request: Request) -> Response:
    services, owner = services_and_owner(request)
    upload = id_of(request, "upload")
    only_unused = request.query_params.get("if") == "unused"
    if await services.storage.uploads.delete(owner, upload, only_unused=only_unused):
        return json_response(UploadDeleted(deleted=upload))
    if only_unused and await services.storage.uploads.describe(owner, [upload]):
        raise Conflict("A turn refers to this upload; delete it without `if=unused` to delete it all the same.")
    raise NotFound(f"There is no upload {upload}.")
