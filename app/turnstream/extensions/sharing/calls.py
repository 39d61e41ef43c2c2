"""The calls of shared chats."""

from starlette.routing import Route

from turnstream.api.http.call_group import CallGroup
from turnstream.api.http.endpoint import Endpoint, Query
from turnstream.api.schemas.responses import Revoked
from turnstream.extensions.sharing import endpoints
from turnstream.extensions.sharing.schemas import ShareCreated, SharedChat, ShareIn, ShareList, ShareOut

CALLS = CallGroup(
    (
        Endpoint(
            "POST /api/chats/{chat}/shares",
            endpoints.create_share,
            "Share a chat by a link: a snapshot, or what comes later too",
            ShareIn,
            ShareCreated,
            (201,),
            (403, 404, 409, 422),
            limits=("writes",),
        ),
        Endpoint(
            "GET /api/shares",
            endpoints.list_shares,
            "The owner's links, newest first",
            gives=ShareList,
            problems=(403, 422),
            queries=(Query("limit", "how many", 100, 1000), Query("chat", "only links to this chat")),
        ),
        Endpoint("GET /api/shares/{share}", endpoints.get_share, "One link", gives=ShareOut, problems=(403, 404)),
        Endpoint(
            "DELETE /api/shares/{share}",
            endpoints.revoke_share,
            "Revoke a link",
            gives=Revoked,
            problems=(403, 404),
            limits=(),
        ),
        Endpoint(
            "GET /api/shared/{secret}",
            endpoints.get_shared,
            "The content of a shared chat, for everybody who has the link",
            gives=SharedChat,
            statuses=(200, 304),
            problems=(404,),
            headers=("If-None-Match",),
            open=True,
        ),
        Endpoint(
            "GET /api/shared/{secret}/files/{upload}",
            endpoints.get_shared_file,
            "A file of a shared chat",
            gives="application/octet-stream",
            problems=(404,),
            open=True,
        ),
    ),
    tag="Sharing",
    about="Links that show a chat to people without a credential",
    routes=(Route("/shared/{secret}", endpoints.shared_page),),
)
