"""The handler that lists, over all chats of an owner, the tool calls that wait for the owner's answer."""

from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.codec import to_json
from turnstream.api.http.errors import BadRequest
from turnstream.api.http.reading import limit_of
from turnstream.api.services import services_and_owner
from turnstream.api.views import json_response
from turnstream.extensions.inbox.schemas import WaitingOut, WaitingPage
from turnstream.extensions.inbox.waiting_rows import WaitingCalls, WaitingPlace

_place = msgspec.json.Decoder(WaitingPlace)


async def list_waiting(request: Request) -> Response:
    services, owner = services_and_owner(request)
    limit = limit_of(request, default=50, most=200)
    token = request.query_params.get("after")
    after = _place_of(token) if token else None
    waiting = WaitingCalls(services.storage.of_owner)
    calls = await waiting.page(owner, limit + 1, after)
    out = [
        WaitingOut(
            chat=call.chat,
            title=call.title,
            turn=call.place.turn,
            tool_use_id=call.tool_use_id,
            name=call.name,
            type=call.kind,
            input=call.input,
            since=call.place.since,
            expires_at=call.expires_at,
        )
        for call in calls[:limit]
    ]
    last = calls[limit - 1].place if len(calls) > limit else None
    next_token = None if last is None else urlsafe_b64encode(to_json(last)).decode().rstrip("=")
    return json_response(WaitingPage(calls=out, count=await waiting.count(owner), next=next_token))


def _place_of(token: str) -> WaitingPlace:
    try:
        return _place.decode(urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    except ValueError:
        detail = "`after` must be the `next` of an earlier page; leave it out for the first page."
        raise BadRequest(detail, field="after") from None
