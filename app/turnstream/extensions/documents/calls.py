"""The API calls for documents."""

from turnstream.api.http.call_group import CallGroup
from turnstream.api.http.endpoint import Endpoint, Query
from turnstream.extensions.documents import endpoints
from turnstream.extensions.documents.schemas import DocumentDeleted, DocumentOut, DocumentPage

CALLS = CallGroup(
    (
        Endpoint(
            "GET /api/documents",
            endpoints.list_documents,
            "The owner's documents by path, or those in which words are found",
            gives=DocumentPage,
            problems=(422,),
            queries=(
                Query("limit", "how many", 200, 1000),
                Query("prefix", "only paths with this prefix"),
                Query(
                    "q",
                    "only documents where each of these words, 8 at most, is found in the path or the text; each with "
                    "an `excerpt` of where it was found; the best match first, 50 of them, or up to 200 by `limit`",
                ),
                Query("after", "`next` of an earlier page"),
            ),
        ),
        Endpoint(
            "PUT /api/documents/{path:path}",
            endpoints.put_document,
            "Write a document (UTF-8 text)",
            "text/plain",
            DocumentOut,
            (200, 201),
            (422,),
            limits=("writes", "documents"),
        ),
        Endpoint(
            "GET /api/documents/{path:path}",
            endpoints.get_document,
            "Read a document",
            gives="text/plain",
            problems=(404, 422),
        ),
        Endpoint(
            "DELETE /api/documents/{path:path}",
            endpoints.delete_document,
            "Remove a document",
            gives=DocumentDeleted,
            problems=(404, 422),
        ),
    ),
    "Documents",
    "Texts of the owner that tools can read",
)
