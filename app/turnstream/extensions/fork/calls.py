"""The call that copies a turn, or the path to a turn."""

from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.caller import of_caller, with_fixed
from turnstream.api.exchange import admit, made_before, notify
from turnstream.api.http.call_group import CallGroup
from turnstream.api.http.endpoint import Endpoint
from turnstream.api.http.reading import id_of, idempotency_key_of, read_body
from turnstream.api.schemas.fields import Body, Title
from turnstream.api.schemas.requests import TurnOptions
from turnstream.api.schemas.responses import ExchangeOut
from turnstream.api.services import Services, identity_of
from turnstream.api.turns import exchange_response, services_to_post
from turnstream.domain.errors import Conflict, RequestRefused
from turnstream.libraries.copies.cutting import cut_after
from turnstream.libraries.copies.rows import Fork, Forks
from turnstream.storage.chats.exchanges import Exchange, IdempotencyKey, KeyTaken

_TITLE_OF_FORK = 290  # maximum characters that the copy keeps of the original's title


class ForkIn(Body):
    """The target of a copy, and the last block that is copied. A copied user turn gets a new answer."""

    into: Annotated[
        Literal["branch", "chat"],
        Field(description="a sibling of the turn, or a new chat with the path to it"),
    ] = "branch"
    block: Annotated[
        int | None, Field(ge=0, description="index of the last block that is copied; without it, the whole turn")
    ] = None
    title: Annotated[Title | None, Field(description="of the new chat; by default that of the chat, and (fork)")] = None


async def fork(request: Request) -> Response:
    services, owner = services_to_post(request)
    chat, turn = id_of(request, "chat"), id_of(request, "turn")
    options, body = await read_body(request, ForkIn)
    if options.into == "chat":
        identity_of(request).require_reach(None)
    key = idempotency_key_of(request, body)
    exchange = await fork_turn(services, owner, chat, turn, options, key)
    return await exchange_response(request, services, owner, exchange)


async def fork_turn(
    services: Services, owner: str, chat: UUID, turn: UUID, options: ForkIn, key: IdempotencyKey | None
) -> Exchange:
    """Copies the path to a turn into a new chat, or copies the turn as a branch beside it. A copied user turn gets a
    new answer.
    """
    storage = services.storage
    try:
        if options.title is not None and options.into == "branch":
            raise RequestRefused("`title` is that of a new chat: send it with `into`: `chat`.", field="title")
        source = await storage.chats.get(owner, chat)
        original = await storage.turns.get(owner, chat, turn)
        request = None
        if original.role == "user":
            answer = await storage.chat_changes.newest_answer(chat, turn)
            if answer is None:
                raise Conflict(f"Turn {turn} has no answer whose request its copy could have.")
            before = await storage.exchanges.answer(owner, chat, answer)
            assert before.request is not None
            await admit(services, owner, TurnOptions())
            request = of_caller(services.resolver.again(with_fixed(TurnOptions()), before.request))
        title = options.title or (source.title and f"{source.title[:_TITLE_OF_FORK]} (fork)")
        fork = Fork(cut_after(original, options.block), options.into == "chat", title, request)
        made_in, leaf = await Forks(storage.of_owner).make(owner, fork, key, services.plans.of(owner).queued_turns)
    except (KeyTaken, RequestRefused) as error:
        return await made_before(services, owner, key, error)
    copied = await storage.turns.get(owner, made_in, leaf)
    assert copied.parent_id is not None
    exchange = Exchange(await storage.turns.get(owner, made_in, copied.parent_id), copied)
    notify(services, owner, exchange)
    return exchange


CALLS = CallGroup(
    (
        Endpoint(
            "POST /api/chats/{chat}/turns/{turn}/fork",
            fork,
            "Copy the turn as a branch beside it, or the path to it into a new chat; whole, or up to one of its blocks",
            ForkIn,
            ExchangeOut,
            (201,),
            (404, 409, 422),
            headers=("Idempotency-Key",),
            limits=("writes", "requests", "queued_turns", "streams"),
            streams=True,
        ),
    ),
    "Turns",
)
