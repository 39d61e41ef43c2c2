"""Handlers of uploads: images, PDFs and texts that turns refer to."""

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.http.errors import UnsupportedMedia
from turnstream.api.http.reading import id_of, read_bytes
from turnstream.api.services import identity_of, path_for, services_and_owner, services_of
from turnstream.api.views import json_response
from turnstream.domain.errors import Conflict, NotFound, RequestRefused
from turnstream.domain.media import MEDIA, media_type_of
from turnstream.extensions.uploads.schemas import UploadDeleted, UploadOut
from turnstream.libraries.uploading import require_uploads, take_upload


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


async def delete_upload(request: Request) -> Response:
    services, owner = services_and_owner(request)
    upload = id_of(request, "upload")
    condition = request.query_params.get("if")
    if condition not in {None, "unused"}:
        detail = "`if` must be `unused`, or be left out to delete an upload to which turns refer, too."
        raise RequestRefused(detail, field="if")
    only_unused = condition is not None
    if await services.storage.uploads.delete(owner, upload, only_unused=only_unused):
        return json_response(UploadDeleted(deleted=upload))
    if only_unused and await services.storage.uploads.describe(owner, [upload]):
        raise Conflict("A turn refers to this upload; delete it without `if=unused` to delete it all the same.")
    raise NotFound(f"There is no upload {upload}.")
