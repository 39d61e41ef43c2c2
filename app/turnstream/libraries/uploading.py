"""Stores callers' uploads and returns their bytes, for all APIs that have uploads."""

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.attachments import store_upload
from turnstream.api.http.reading import id_of
from turnstream.api.services import identity_of, services_and_owner, services_of
from turnstream.domain.errors import NotFound
from turnstream.domain.identity import Identity
from turnstream.domain.media import MediaType
from turnstream.storage.owners.uploads import Upload

# A browser must not execute an upload, which may be any file of its owner.
SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Disposition": "attachment",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    # An upload never changes, but it may be deleted, and this browser's next user may be another owner.
    "Cache-Control": "private, no-cache",
    "Vary": "Authorization",
}


def require_uploads(identity: Identity) -> None:
    """Raises Forbidden if the caller may not upload files."""
    identity.require_reach(identity.chat)
    if identity.chat is None:
        identity.require("chat")  # it is not known yet which messages will refer to the file


async def take_upload(
    request: Request, media_type: MediaType, content: bytes, name: str | None = None, purpose: str | None = None
) -> Upload:
    """Stores a caller's file. Raises TooMany."""
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
