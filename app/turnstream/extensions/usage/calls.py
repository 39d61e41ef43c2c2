"""The call for usage."""

from turnstream.api.http.call_group import CallGroup
from turnstream.api.http.endpoint import Endpoint, Query
from turnstream.extensions.usage.endpoints import get_usage
from turnstream.extensions.usage.schemas import UsageOut

CALLS = CallGroup(
    (
        Endpoint(
            "GET /api/usage",
            get_usage,
            "What the owner's model calls have used and cost, also of chats that are deleted",
            gives=UsageOut,
            problems=(422,),
            queries=(
                Query("by", "groups: `day`, `model`, `chat`, or several with commas; `day` unless it is given"),
                Query("since", "the first day (of UTC); by default the first of this month"),
                Query("until", "the last day; by default today"),
                Query("owner", "of another owner, or `*` for all, whom `by` may then name; needs the scope `admin`"),
                Query("limit", "how many", 100, 1000),
            ),
        ),
    ),
    "Usage",
    "What the calls of models have used",
)
