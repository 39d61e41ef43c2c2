"""The calls of shared chats."""

from starlette.routing import Route

from turnstream.api.http.call_group import CallGroup
from turnstream.api.http.endpoint import Endpoint, Query
from turnstream.api.schemas.responses import Revoked
from turnstream.extensions.sharing import endpoints, member_endpoints
from turnstream.extensions.sharing.schemas import (
    MemberIn,
    MemberList,
    MemberOut,
    MemberRemoved,
    MembershipEnded,
    MembershipList,
    ShareCreated,
    SharedChat,
    ShareIn,
    ShareList,
    ShareOut,
)

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
            problems=(404, 500, 503),
            headers=("If-None-Match",),
            open=True,
        ),
        Endpoint(
            "GET /api/shared/{secret}/files/{upload}",
            endpoints.get_shared_file,
            "A file of a shared chat",
            gives="*/*",
            problems=(404, 500, 503),
            open=True,
        ),
        Endpoint(
            "POST /api/chats/{chat}/members",
            member_endpoints.add_member,
            "Add a member to a chat, or change the role of a member",
            MemberIn,
            MemberOut,
            problems=(403, 404, 409, 422),
            limits=("writes",),
        ),
        Endpoint(
            "GET /api/chats/{chat}/members",
            member_endpoints.list_members,
            "The members of a chat of the caller, oldest first",
            gives=MemberList,
            problems=(403, 404),
        ),
        Endpoint(
            "DELETE /api/chats/{chat}/members/{member:path}",
            member_endpoints.remove_member,
            "Remove a member from a chat",
            gives=MemberRemoved,
            problems=(403, 404),
            limits=(),
        ),
        Endpoint(
            "GET /api/memberships",
            member_endpoints.list_memberships,
            "The chats of others of which the caller is a member, last changed first",
            gives=MembershipList,
            problems=(403, 422),
            queries=(Query("limit", "how many", 100, 1000),),
        ),
        Endpoint(
            "DELETE /api/memberships/{membership}",
            member_endpoints.leave_chat,
            "Leave a chat of another owner, which the path names",
            gives=MembershipEnded,
            problems=(403, 404),
            limits=(),
        ),
    ),
    tag="Sharing",
    about="Links that show a chat to people without a credential, and members of a chat",
    routes=(Route("/shared/{secret}", endpoints.shared_page),),
)
