"""Handler for an owner's usage and cost of model calls."""

from collections.abc import Sequence
from datetime import date

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.http.reading import limit_of
from turnstream.api.services import identity_of, services_and_owner
from turnstream.api.views import json_response
from turnstream.domain.errors import Forbidden, RequestRefused
from turnstream.extensions.usage.schemas import UsageGroupOut, UsageOut
from turnstream.kit.clock import CLOCK
from turnstream.libraries.usage_sums import UsageFigures, UsageGroup, figures_json, usage_sums

_GROUPS: Sequence[UsageGroup] = ("day", "model", "chat")


async def get_usage(request: Request) -> Response:
    services, owner = services_and_owner(request)
    limit = limit_of(request, default=100, most=1000)
    today = CLOCK.now().date()
    since, until = _day_in(request, "since", today.replace(day=1)), _day_in(request, "until", today)
    if until < since:
        raise RequestRefused("`until` must not be a day before `since`.", field="until")
    database, whose, groups_known = services.storage.of_owner, request.query_params.get("owner"), _GROUPS
    if whose is not None:
        if "admin" not in identity_of(request).scopes:
            raise Forbidden("`owner` needs the scope `admin`; leave it out for your own usage.", ("admin",))
        database, groups_known = services.storage.database, (*_GROUPS, "owner")
    named = request.query_params.get("by", "day").split(",")
    if wrong := next((name for name in named if name not in groups_known), None):
        raise RequestRefused(f"`by` must name some of {', '.join(groups_known)}, not {wrong!r}.", field="by")
    by = [group for group in groups_known if group in named]
    summed = owner if whose is None else None if whose == "*" else whose
    total, *groups = await usage_sums(database, summed, by, since, until, limit + 1)
    return json_response(
        UsageOut(
            since=since,
            until=until,
            total=UsageFigures(**figures_json(total)),
            groups=[
                UsageGroupOut(
                    day=group.day, model=group.model, chat=group.chat, owner=group.owner, **figures_json(group)
                )
                for group in groups[:limit]
            ],
            more=len(groups) > limit,
        )
    )


def _day_in(request: Request, name: str, default: date) -> date:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise RequestRefused(f"`{name}` must be a day, such as {default}.", field=name) from None
