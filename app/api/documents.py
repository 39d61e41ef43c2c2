"""Documents of the owner, which the document tools read."""

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from app.api.chats import json_response
from app.api.errors import UnsupportedMedia
from app.api.schemas import DocumentDeleted, DocumentOut, DocumentPage
from app.api.services import begin, limit_of, read_bytes
from app.domain.errors import NotFound, RequestRefused
from app.domain.text import unstorable

_MOST_PATH = 1024


async def put_document(request: Request) -> Response:
    services, owner = await begin(request)
    path = _path_of(request)
    content = _text(await read_bytes(request))
    info, created = await services.documents.put(owner, path, content)
    body = DocumentOut(path=info.path, size=info.size, updated_at=info.updated_at)
    return json_response(body, 201 if created else 200)


async def get_document(request: Request) -> Response:
    services, owner = await begin(request)
    path = _path_of(request)
    content = await services.documents.read(owner, path)
    if content is None:
        raise NotFound(f"there is no document {path}")
    return PlainTextResponse(content)


async def delete_document(request: Request) -> Response:
    services, owner = await begin(request)
    path = _path_of(request)
    if not await services.documents.delete(owner, path):
        raise NotFound(f"there is no document {path}")
    return json_response(DocumentDeleted(deleted=path))


async def list_documents(request: Request) -> Response:
    services, owner = await begin(request)
    limit = limit_of(request, default=200, most=1000)
    prefix, after = request.query_params.get("prefix", ""), request.query_params.get("after", "")
    found = await services.documents.tree(owner, prefix, after=after, limit=limit + 1)
    shown = [DocumentOut(path=info.path, size=info.size, updated_at=info.updated_at) for info in found[:limit]]
    return json_response(DocumentPage(documents=shown, next=shown[-1].path if len(found) > limit else None))


def _path_of(request: Request) -> str:
    path: str = request.path_params["path"]
    if not 1 <= len(path) <= _MOST_PATH or path.startswith("/") or "//" in path or unstorable(path):
        raise RequestRefused("a path is like notes/today.md: no leading slash, at most 1024 characters", field="path")
    return path


def _text(body: bytes) -> str:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise UnsupportedMedia(f"a document is UTF-8 text; byte {error.start} is not") from None
    if problem := unstorable(text):
        raise RequestRefused(f"the document {problem}, which cannot be stored", field="(body)")
    return text
