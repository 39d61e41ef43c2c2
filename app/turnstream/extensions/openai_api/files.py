"""Handlers of OpenAI's files: a file is an upload, with a name and a purpose."""

from email.message import Message
from email.parser import HeaderParser
from email.policy import HTTP
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.codec import to_json
from turnstream.api.http.errors import TooLarge
from turnstream.api.http.reading import id_of, limit_of, read_bytes
from turnstream.api.services import identity_of, services_and_owner, services_of
from turnstream.domain.errors import NotFound, RequestRefused
from turnstream.domain.media import MEDIA, PLAIN, media_type_of
from turnstream.extensions.openai_api.file_rows import page_of_uploads
from turnstream.extensions.openai_api.objects import Json
from turnstream.kit.offload import offload
from turnstream.kit.text import unstorable
from turnstream.libraries.uploading import require_uploads, take_upload
from turnstream.storage.owners.uploads import Upload

# The accepted purposes of a file, which all mean that the file is input of a model. Other purposes start jobs that this
# server does not have.
PURPOSES = ("user_data", "assistants", "vision")
_USUAL = PURPOSES[0]  # the purpose that an upload without a purpose shows
_LONGEST_NAME = 1_000  # characters
_MOST_PARTS = 20
_ROOM = 10_000  # bytes that a form may have besides its file
MOST_LISTED = 10_000


async def create_file(request: Request) -> Response:
    services = services_of(request)
    require_uploads(identity_of(request))
    most = services.http.max_upload_bytes
    body = await read_bytes(request, most + _ROOM)
    form = await offload(len(body), _form, request.headers.get("content-type", ""), body)
    name, content = form.pop("file", (None, b""))
    purpose = form.pop("purpose", (None, b""))[1].decode(errors="replace")
    if purpose not in PURPOSES:
        these = ", ".join(f"`{each}`" for each in PURPOSES)
        raise RequestRefused(f"`purpose` must be one of {these}: files are input of a model here.", field="purpose")
    for other in form:
        field = other.partition("[")[0]
        raise RequestRefused(f"`{field}` must be left out; known are `file` and `purpose`.", field=field)
    if len(content) > most:
        raise TooLarge(f"`file` must have at most {most:,} bytes.", field="file")
    if (media_type := media_type_of(content)) is None:
        raise RequestRefused(f"`file` must be of one of these types: {', '.join(MEDIA)} (in UTF-8).", field="file")
    if name is not None and (len(name) > _LONGEST_NAME or unstorable(name)):
        detail = f"`file` must have a name of at most {_LONGEST_NAME:,} characters, none of them U+0000."
        raise RequestRefused(detail, field="file")
    upload = await take_upload(request, media_type, content, name or None, purpose)
    return Response(to_json(_file(upload)), media_type="application/json")


async def list_files(request: Request) -> Response:
    services, owner = services_and_owner(request)
    query, limit = request.query_params, limit_of(request, MOST_LISTED, MOST_LISTED)
    if (order := query.get("order", "desc")) not in {"asc", "desc"}:
        raise RequestRefused("`order` must be `asc` or `desc`.", field="order")
    after = None
    if text := query.get("after"):
        try:
            after = UUID(text)
        except ValueError:
            raise RequestRefused(f"`after` must be the id of a file; {text} is none.", field="after") from None
    database, purpose = services.storage.database, query.get("purpose")
    found = await page_of_uploads(database, owner, after, limit + 1, purpose, _USUAL, descending=order == "desc")
    files = [_file(upload) for upload in found[:limit]]
    ends = {"first_id": files[0]["id"] if files else None, "last_id": files[-1]["id"] if files else None}
    body = {"object": "list", "data": files, **ends, "has_more": len(found) > limit}
    return Response(to_json(body), media_type="application/json")


async def get_file(request: Request) -> Response:
    services, owner = services_and_owner(request)
    id = id_of(request, "upload")
    if (upload := (await services.storage.uploads.describe(owner, [id])).get(id)) is None:
        raise NotFound(f"There is no file {id}.")
    return Response(to_json(_file(upload)), media_type="application/json")


async def delete_file(request: Request) -> Response:
    services, owner = services_and_owner(request)
    id = id_of(request, "upload")
    if not await services.storage.uploads.delete(owner, id):
        raise NotFound(f"There is no file {id}.")
    return Response(to_json({"id": str(id), "object": "file", "deleted": True}), media_type="application/json")


def _file(upload: Upload) -> Json:
    suffix = "txt" if upload.media_type == PLAIN else upload.media_type.rpartition("/")[2]
    return {
        "id": str(upload.id),
        "object": "file",
        "bytes": upload.size,
        "created_at": (upload.id.int >> 80) // 1000,  # a UUID of version 7 begins with its time in milliseconds
        "filename": upload.name or f"{upload.id}.{suffix}",
        "purpose": upload.purpose or _USUAL,
        "status": "processed",
    }


def _form(content_type: str, body: bytes) -> dict[str, tuple[str | None, bytes]]:
    """Returns the fields of a form and the names of its files. Raises RequestRefused."""
    header = Message()
    header["content-type"] = content_type
    boundary = header.get_boundary() if header.get_content_type() == "multipart/form-data" else None
    delimiter = b"\r\n--" + (boundary or "").encode()
    _, *parts = (b"\r\n" + body).split(delimiter, _MOST_PARTS)
    if boundary is None or not parts or not parts[-1].startswith(b"--"):
        detail = "`file` must be sent in a form: a body of the type multipart/form-data, as the SDKs of OpenAI make it."
        raise RequestRefused(detail, field="file")
    form = dict[str, tuple[str | None, bytes]]()
    for part in parts[:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        about = HeaderParser(policy=HTTP).parsestr(head.decode(errors="replace").lstrip())["content-disposition"]
        params = about.params if about is not None else {}
        form[params.get("name", "")] = (params.get("filename"), content)
    return form
