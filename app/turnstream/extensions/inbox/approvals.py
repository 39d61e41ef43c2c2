"""Handlers that list the calls of other owners about which a person may decide, and that store the decisions."""

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.actions import decisions_of, store_answers
from turnstream.api.http.reading import id_of, idempotency_key_of, limit_of, read_body
from turnstream.api.schemas.tools import ActionsIn
from turnstream.api.services import identity_of, services_and_owner
from turnstream.api.views import json_response
from turnstream.domain.errors import NotFound
from turnstream.extensions.inbox.approval_rows import Approvals
from turnstream.extensions.inbox.schemas import ApprovalOut, ApprovalsOut, Decided
from turnstream.storage.database import OWNER


async def list_approvals(request: Request) -> Response:
    services, _ = services_and_owner(request)
    found = await Approvals(services.storage.of_owner).list(
        identity_of(request), limit_of(request, default=50, most=200)
    )
    return json_response(
        ApprovalsOut(
            calls=[
                ApprovalOut(
                    owner=ask.owner,
                    title=ask.title,
                    turn=ask.turn,
                    tool_use_id=ask.tool_use_id,
                    name=ask.name,
                    type=ask.kind,
                    input=ask.input,
                    input_digest=ask.digest,
                    since=ask.since,
                    expires_at=ask.expires_at,
                )
                for ask in found
            ]
        )
    )


async def decide(request: Request) -> Response:
    services, _ = services_and_owner(request)
    turn_id, identity = id_of(request, "turn"), identity_of(request)
    sent, body = await read_body(request, ActionsIn)
    asks = {ask.tool_use_id: ask for ask in await Approvals(services.storage.of_owner).of_turn(identity, turn_id)}
    if missing := next((each for each in sent.actions if each.tool_use_id not in asks), None):
        raise NotFound(f"There is no call {missing.tool_use_id} of the turn {turn_id} that you may answer.")
    ask = asks[sent.actions[0].tool_use_id]
    # From here on, statements run as the owner of the turn. This is safe because `asks_to_approve` has returned the
    # asks, and each answer is compared with these asks again, here and by a trigger.
    OWNER.set(ask.owner)
    turn = await services.storage.turns.get(ask.owner, ask.chat, ask.turn)
    decisions = await decisions_of(sent.actions, turn, ask.owner, services)
    await store_answers(services, identity, turn, decisions, idempotency_key_of(request, body))
    return json_response(Decided(turn=turn_id, decided=[each.tool_use_id for each in sent.actions]))
