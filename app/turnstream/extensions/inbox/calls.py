"""The calls of the API that list waiting tool calls, and accept the decisions of approvers."""

from turnstream.api.http.call_group import CallGroup
from turnstream.api.http.endpoint import Endpoint, Query
from turnstream.api.schemas.tools import ActionsIn
from turnstream.extensions.inbox.approvals import decide, list_approvals
from turnstream.extensions.inbox.schemas import ApprovalsOut, Decided, WaitingPage
from turnstream.extensions.inbox.waiting import list_waiting

_LIMIT = Query("limit", "the most that are returned", 50, 200)

WAITING = CallGroup(
    (
        Endpoint(
            "GET /api/waiting",
            list_waiting,
            "The calls that wait for the owner, in all chats, those that wait for longest first",
            gives=WaitingPage,
            problems=(400, 422),
            queries=(
                _LIMIT,
                Query("after", "`next` of an earlier page"),
            ),
        ),
    ),
    "Waiting calls",
    "The calls of all chats that wait for the owner",
)
APPROVALS = CallGroup(
    (
        Endpoint(
            "GET /api/approvals",
            list_approvals,
            "The calls of other owners that wait for a decision of the caller, as a policy's `approvers` name them",
            gives=ApprovalsOut,
            problems=(422,),
            queries=(_LIMIT,),
            scopes=("approve",),
        ),
        Endpoint(
            "POST /api/approvals/{turn}",
            decide,
            "Decide about calls of a turn that name the caller as an approver",
            ActionsIn,
            Decided,
            problems=(404, 409, 422),
            headers=("Idempotency-Key",),
            limits=("writes",),
            scopes=("approve",),
        ),
    ),
    "Approvals",
    "Calls of other owners that wait for a decision of the caller",
)
CALLS = (WAITING, APPROVALS)
