"""Handlers for documents: texts that an owner stores, and that the document tools read."""

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from turnstream.api.attachments import UNTIL_DELETED
from turnstream.api.http.errors import UnsupportedMedia
from turnstream.api.http.reading import check_path, limit_of, read_bytes
from turnstream.api.schemas.responses import PieceOut
from turnstream.api.services import Services, services_and_owner
from turnstream.api.views import json_response
from turnstream.domain.errors import NotFound, RequestRefused, TooMany
from turnstream.domain.limits import ReachedLimit
from turnstream.extensions.documents.schemas import (
    DocumentDeleted,
    DocumentExcerptOut,
    DocumentOut,
    DocumentPage,
    ListedDocument,
)
from turnstream.extensions.documents.store import Documents
from turnstream.kit.text import unstorable
from turnstream.libraries.searches.search import FoundDocument, text_search, words_of
from turnstream.storage.owners.documents import DocumentInfo


async def put_document(request: Request) -> Response:
    services, owner = services_and_owner(request)
    path = _path_of(request)
    try:
        content = (await read_bytes(request)).decode()
    except UnicodeDecodeError as error:
        raise UnsupportedMedia(f"The body must be UTF-8 text; byte {error.start} is not.") from None
    if problem := unstorable(content):
        raise RequestRefused(f"The body {problem}, which cannot be stored; remove it.", field="(body)")
    put = await _documents(services).put_within(owner, path, content, services.plans.of(owner))
    if isinstance(put, ReachedLimit):
        what = "bytes of documents" if put.name == "document_bytes" else "documents"
        detail = f"The owner keeps {put.used:,} {what}, and the limit `{put.name}` of the plan is {put.limit:,}."
        raise TooMany(f"{detail} Delete unneeded ones.", UNTIL_DELETED, put.name)
    info, created = put
    return json_response(_document_out(info), 201 if created else 200)


async def get_document(request: Request) -> Response:
    services, owner = services_and_owner(request)
    path = _path_of(request)
    content = await _documents(services).read(owner, path)
    if content is None:
        raise NotFound(f"There is no document {path}.")
    return PlainTextResponse(content)


async def delete_document(request: Request) -> Response:
    services, owner = services_and_owner(request)
    path = _path_of(request)
    if not await _documents(services).delete(owner, path):
        raise NotFound(f"There is no document {path}.")
    return json_response(DocumentDeleted(deleted=path))


async def list_documents(request: Request) -> Response:
    services, owner = services_and_owner(request)
    prefix, after = _query(request, "prefix"), _query(request, "after")
    if words := words_of(request):
        if after:
            raise RequestRefused("`after` must be left out with `q`: a search has one page.", field="after")
        limit = limit_of(request, default=50, most=200)
        best = await text_search(services).documents(owner, words, prefix, limit)
        return json_response(DocumentPage(documents=list(map(_found_document, best)), next=None))
    limit = limit_of(request, default=200, most=1000)
    found = await _documents(services).tree(owner, prefix, after=after, limit=limit + 1)
    shown = [ListedDocument(**dict(_document_out(info)), excerpt=None) for info in found[:limit]]
    return json_response(DocumentPage(documents=shown, next=shown[-1].path if len(found) > limit else None))


def _documents(services: Services) -> Documents:
    return Documents(services.storage.of_owner)


def _document_out(info: DocumentInfo) -> DocumentOut:
    return DocumentOut(path=info.path, size=info.size, updated_at=info.updated_at)


def _found_document(found: FoundDocument) -> ListedDocument:
    pieces = [PieceOut(text=piece.text, found=piece.found) for piece in found.pieces]
    return ListedDocument(**dict(_document_out(found.info)), excerpt=DocumentExcerptOut(pieces=pieces))


def _path_of(request: Request) -> str:
    path: str = request.path_params["path"]
    check_path(path)
    return path


def _query(request: Request, name: str) -> str:
    text = request.query_params.get(name, "")
    if problem := unstorable(text):
        raise RequestRefused(f"`{name}` {problem}, which no path of a document may.", field=name)
    return text
