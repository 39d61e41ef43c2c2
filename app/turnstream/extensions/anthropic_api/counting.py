"""Handles requests that count the tokens of a message."""

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.codec import to_json
from turnstream.api.http.reading import read_body
from turnstream.api.services import identity_of, services_and_owner
from turnstream.domain.errors import ProviderError
from turnstream.domain.turns import TurnError
from turnstream.extensions.anthropic_api.errors import failure, failure_of
from turnstream.extensions.anthropic_api.inputs import items_of, new_turn, options_of
from turnstream.extensions.anthropic_api.schemas import CountIn
from turnstream.libraries.dialects.counting import count_input
from turnstream.llm.provider import report_account


async def count_message_tokens(request: Request) -> Response:
    services, owner = services_and_owner(request)
    identity_of(request).require_reach(None)
    sent, _ = await read_body(request, CountIn)
    new = new_turn(options_of(services, sent, betas=False), [{"type": "text", "text": "…"}])
    try:
        count = await count_input(services, owner, new, await items_of(sent.messages), "messages")
    except ProviderError as error:
        report_account(error)
        return failure(request, failure_of(TurnError(error.type, error.shown)), error.retry_after)
    return Response(to_json({"input_tokens": count}), media_type="application/json")
