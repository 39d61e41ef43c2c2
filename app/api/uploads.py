"""Files that turns refer to: images, PDFs, texts."""

from starlette.requests import Request
from starlette.responses import Response

from app.api.chats import json_response
from app.api.errors import UnsupportedMedia
from app.api.schemas import UploadDeleted, UploadOut
from app.api.services import begin, id_of, read_bytes
from app.domain.errors import NotFound
from app.domain.media import media_type_of

# What a browser shows must not run: an upload is whatever somebody sent.
_HARMLESS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Disposition": "attachment",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cache-Control": "private, max-age=31536000, immutable",
}


async def put_upload(request: Request) -> Response:
    services, owner = await begin(request)
    content = await read_bytes(request, services.max_upload_bytes)
    media_type = media_type_of(content)
    if media_type is None:
        raise UnsupportedMedia("what can be uploaded is a PNG, JPEG, GIF or WebP image, a PDF, or UTF-8 text")
    upload = await services.uploads.put(owner, media_type, content)
    body = UploadOut(id=upload.id, media_type=upload.media_type, size=upload.size)
    return json_response(body, 201 if upload.created else 200, {"Location": f"/api/uploads/{upload.id}"})


async def get_upload(request: Request) -> Response:
    services, owner = await begin(request)
    found = await services.uploads.read(owner, id_of(request, "upload"))
    if found is None:
        raise NotFound(f"there is no upload {request.path_params['upload']}")
    media_type, content = found
    return Response(content, media_type=media_type, headers=_HARMLESS)


async def delete_upload(request: Request) -> Response:
    services, owner = await begin(request)
    upload = id_of(request, "upload")
    if not await services.uploads.delete(owner, upload):
        raise NotFound(f"there is no upload {upload}")
    return json_response(UploadDeleted(deleted=upload))
