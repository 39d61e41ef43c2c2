"""The calls of self-service."""

from turnstream.api.http.call_group import CallGroup
from turnstream.api.http.endpoint import Endpoint, Query
from turnstream.api.schemas.responses import Revoked
from turnstream.extensions.self_service import endpoints
from turnstream.extensions.self_service.schemas import (
    AccountOut,
    AuditEntryList,
    CredentialList,
    ErasureIn,
    ErasureOut,
    ErasureUndone,
    OwnGrantList,
)

CALLS = CallGroup(
    (
        Endpoint("GET /api/account", endpoints.get_account, "What the owner has", gives=AccountOut, problems=(403,)),
        Endpoint(
            "GET /api/account/credentials",
            endpoints.list_credentials,
            "The owner's tokens and sessions, newest first",
            gives=CredentialList,
            problems=(403, 422),
            queries=(Query("limit", "how many", 100, 1000),),
        ),
        Endpoint(
            "DELETE /api/account/credentials/{credential}",
            endpoints.revoke_credential,
            "Revoke a token of the owner, and those that were exchanged for it, or end a session",
            gives=Revoked,
            problems=(403, 404),
            limits=(),
        ),
        Endpoint(
            "GET /api/account/grants",
            endpoints.list_own_grants,
            "The remembered approvals of all chats, newest first",
            gives=OwnGrantList,
            problems=(403, 422),
            queries=(Query("limit", "how many", 100, 1000),),
        ),
        Endpoint(
            "GET /api/account/audit",
            endpoints.list_entries,
            "The owner's entries of the audit trail, newest first",
            gives=AuditEntryList,
            problems=(403, 422),
            queries=(Query("limit", "how many", 50, 500), Query("before", "`next` of the page before")),
        ),
        Endpoint(
            "POST /api/account/erasure",
            endpoints.ask_erasure,
            "Have everything of the owner erased, after a time in which that can be undone",
            ErasureIn,
            ErasureOut,
            (202,),
            (403, 422),
            limits=("writes",),
        ),
        Endpoint(
            "DELETE /api/account/erasure",
            endpoints.undo_erasure,
            "Undo the request for an erasure",
            gives=ErasureUndone,
            problems=(403, 404),
            limits=(),
        ),
    ),
    "Account",
    "What owners see of their own account, and its erasure",
)
