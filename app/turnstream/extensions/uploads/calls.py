"""The calls of uploads."""

from turnstream.api.http.call_group import CallGroup
from turnstream.api.http.endpoint import Endpoint, Query
from turnstream.extensions.uploads.endpoints import delete_upload, put_upload
from turnstream.extensions.uploads.schemas import UploadDeleted, UploadOut
from turnstream.libraries.uploading import get_upload

CALLS = CallGroup(
    (
        Endpoint(
            "POST /api/uploads",
            put_upload,
            "Upload an image, a PDF or a text that turns can refer to; the same bytes are the same upload",
            "application/octet-stream",
            UploadOut,
            (200, 201),
            limits=("writes", "uploads"),
            reach="handler",
            scopes=("send", "chat"),
        ),
        Endpoint(
            "GET /api/uploads/{upload}",
            get_upload,
            "The bytes of an upload",
            gives="*/*",
            statuses=(200, 304),
            problems=(404,),
            headers=("If-None-Match",),
            queries=(Query("chat", "a chat that shows it, for a member of the chat"),),
            reach="handler",
        ),
        Endpoint(
            "DELETE /api/uploads/{upload}",
            delete_upload,
            "Delete an upload; turns that refer to it show that it is gone",
            gives=UploadDeleted,
            problems=(404, 409),
            queries=(Query("if", "`unused`: only where no turn refers to it"),),
        ),
    ),
    "Uploads",
    "Files that turns refer to",
)
