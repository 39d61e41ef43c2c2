"""The use cases of an exchange: post a message, generate its answer again, cancel the answer.

Each use case checks first, then opens the transaction, writes and commits. While the chat is locked, no file is stored,
and only the chat is read.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from uuid import UUID

from turnstream.api.attachments import allowed_blocks, check_attachments, steer_blocks, user_blocks
from turnstream.api.caller import check_turn, of_caller, with_author, with_fixed
from turnstream.api.schemas.blocks import TextBlockIn
from turnstream.api.schemas.requests import NewTurn, TurnOptions
from turnstream.api.services import Services, check_rate
from turnstream.domain.blocks import Block
from turnstream.domain.chats import Chat, title_from
from turnstream.domain.errors import RequestRefused
from turnstream.domain.turns import Turn
from turnstream.storage.chats.exchanges import (
    Draft,
    Exchange,
    IdempotencyKey,
    KeyTaken,
    NewExchange,
    Position,
    Target,
    key_refused,
)


async def post_message(
    services: Services, new: NewTurn, target: Target, key: IdempotencyKey | None, *, admitted: bool = False
) -> Exchange:
    """Writes a message and the assistant turn that answers it. If the key was used before, returns the exchange of the
    first request. `admitted` means that the caller has already called `admit`.
    """
    new = await services.resolver.sealed(target.owner, with_fixed(new))
    try:
        known = services.recent_chats.take(target)
        if known and services.resolver.secrets.encrypts and services.resolver.secrets.may_differ(known):
            known = None
        position = known or await services.storage.exchanges.position(target)  # an unknown chat raises before `admit`
        if not admitted:
            await admit(services, target.owner, new)
        compose = await composer(services, new, target.owner, key)
        if known:
            with suppress(RequestRefused):  # the remembered chat may be outdated: its rows are read below
                if begun := await _begin(services, known, compose):
                    return begun
            position = await services.storage.exchanges.position(target)
        return await _begin(services, position, compose) or await _queue(services, target, position, compose)
    except (KeyTaken, RequestRefused) as error:
        return await made_before(services, target.owner, key, error)


async def post_in_new_chat(services: Services, new: NewTurn, chat: Chat, key: IdempotencyKey | None) -> Exchange:
    """Posts a message in a new chat. Raises Conflict if the chat exists."""
    new = await services.resolver.sealed(chat.owner, with_fixed(new))
    try:
        await admit(services, chat.owner, new)
        compose = await composer(services, new, chat.owner, key)
        if begun := await _begin(services, Position(chat, new=True), compose):
            return begun
        most_queued = services.plans.of(chat.owner).queued_turns
        async with services.storage.exchanges.in_new_chat(chat, key, most_queued) as draft:
            message = compose(draft.chat, draft.before)
            exchange = await draft.create(message.blocks, message.request, message.title)
    except (KeyTaken, RequestRefused) as error:
        return await made_before(services, chat.owner, key, error)
    notify(services, chat.owner, exchange)
    return exchange


async def composer(services: Services, new: NewTurn, owner: str, key: IdempotencyKey | None) -> "Composer":
    """Passes the message through the guards, stores its files, and returns its composer."""
    new = new.model_copy(update={"blocks": await allowed_blocks(new.blocks, owner, services)})
    return Composer(services, new, with_author(await user_blocks(new.blocks, owner, services)), key)


async def generate_again(
    services: Services, owner: str, chat: UUID, turn: UUID, options: TurnOptions, key: IdempotencyKey | None
) -> Exchange:
    """Writes another assistant turn beside `turn`."""
    storage, options = services.storage, await services.resolver.sealed(owner, with_fixed(options))
    try:
        before = await storage.exchanges.answer(owner, chat, turn)
        assert before.request is not None
        await admit(services, owner, options)
        request = of_caller(services.resolver.again(options, before.request))
        async with storage.exchanges.beside(owner, before, key, services.plans.of(owner).queued_turns) as draft:
            answer = await draft.create_sibling(request)
    except (KeyTaken, RequestRefused) as error:
        return await made_before(services, owner, key, error)
    assert answer.parent_id is not None
    exchange = Exchange(await storage.turns.get(owner, chat, answer.parent_id), answer)
    notify(services, owner, exchange)
    return exchange


async def cancel_turn(services: Services, owner: str, chat: UUID, turn: UUID) -> Turn:
    """Cancels a turn, and returns its present state: a running turn may not have ended yet."""
    found = await services.storage.turns.cancel(owner, chat, turn)
    if found.ended:
        services.live.wake()  # another turn may have waited for the end of this turn
    else:
        await services.live.cancel(turn)
    services.live.notify_owner(owner)
    return found


@dataclass(frozen=True, slots=True)
class Composer:
    """Composes the message and the request of its answer for a position in the chat. Raises RequestRefused."""

    services: Services
    new: NewTurn
    blocks: Sequence[Block]
    key: IdempotencyKey | None

    def __call__(self, chat: Chat, before: Turn | None) -> NewExchange:
        resolver = self.services.resolver
        request = of_caller(resolver.resolve(self.new, chat, before.request if before else None))
        check_attachments(resolver.models.check(request.model), self.blocks)
        return NewExchange(self.blocks, request, _title_of(self.new), self.key)


# A message opens a turn in one of these ways. The first row that applies is used.
#
#   position                   replica   statement                            the answer
#   new chat, no history       has room  BEGIN_CHAT                           runs here
#   new chat                   any       CREATE_CHAT, CREATE_EXCHANGE         queued
#   after an ended answer      has room  BEGIN_EXCHANGE                       runs here
#   steers an open turn        any       chat locked: STEER                   is the open turn
#   otherwise                  any       chat locked: CREATE_EXCHANGE         queued


async def _begin(services: Services, position: Position, compose: Composer) -> Exchange | None:
    """Writes the message and an answer that runs here at once. None without a free slot, or if nothing was written."""
    if position.before is not None and not position.before.ended:
        return None
    owner = position.chat.owner
    with services.live.reserve_slot() as replica:
        if replica is None:
            return None
        message, most_running = compose(position.chat, position.before), services.plans.of(owner).running_turns
        begun = await services.storage.exchanges.begin(position, message, replica, most_running)
        if begun is not None:
            services.live.begin(owner, [begun.user_turn, begun.assistant_turn])
            services.live.notify(owner, position.chat.id)
            services.recent_chats.keep(position.chat, begun)
        return begun


async def _queue(services: Services, target: Target, read: Position, compose: Composer) -> Exchange:
    """Writes the message with a queued answer, or as a steer to an open turn."""
    most_queued = services.plans.of(target.owner).queued_turns
    async with services.storage.exchanges.after(target, compose.key, read, most_queued) as draft:
        if draft.steered is not None:
            exchange = await _steer(draft, compose.new)
        else:
            message = compose(draft.chat, draft.before)
            exchange = await draft.create(message.blocks, message.request, message.title)
    for interrupted in draft.interrupted:
        await services.live.cancel(interrupted)
    if exchange.steered:
        await services.live.refresh(exchange.assistant_turn.id)
        turn = await services.storage.turns.get(target.owner, target.chat, exchange.assistant_turn.id)
        exchange = replace(exchange, assistant_turn=turn)
    notify(services, target.owner, exchange)
    return exchange


async def _steer(draft: Draft, new: NewTurn) -> Exchange:
    """Adds the message to the draft's open turn. Raises RequestRefused and Forbidden."""
    check_turn(draft.steered)
    return await draft.steer(with_author(steer_blocks(new.blocks)))


async def admit(services: Services, owner: str, options: TurnOptions, writes: int = 0) -> None:
    """Counts a request for an answer, or a message to a running turn, and `writes` additional writes. Raises
    RequestRefused for a recording that the operator has not allowed, and TooMany if the owner's plan has no room.
    """
    recorded = services.http.recorded_owners
    if options.record and recorded is not None and owner not in recorded:
        detail = "`record` must be left out: the operator has not allowed you to ask (TURNSTREAM_RECORD_OWNERS)."
        raise RequestRefused(detail, field="record")
    plan = services.plans.of(owner)
    # If plans differ, the queue reads the owner's limit of running turns from the account, which each request updates.
    if plan.rates or services.plans.plans.vary:
        check_rate(await services.storage.accounts.admit(owner, plan, writes))


async def made_before(
    services: Services, owner: str, key: IdempotencyKey | None, error: KeyTaken | RequestRefused
) -> Exchange:
    """Returns the exchange of the first request with this key. Raises `error` if there was no such request. A repeated
    request may fail checks that the first request passed: an upload may be deleted by now, or the answer to the first
    request may keep the branch busy.
    """
    exchange = await services.storage.exchanges.find(owner, key) if key else None
    if exchange is None:
        raise error if isinstance(error, RequestRefused) else key_refused()
    notify(services, owner, exchange)  # the first request may have been interrupted after its commit
    return exchange


def notify(services: Services, owner: str, exchange: Exchange) -> None:
    services.live.wake()
    services.live.notify(owner, exchange.assistant_turn.chat_id)


def _title_of(new: NewTurn) -> str | None:
    """Returns the title for a chat that has no title: the beginning of the message."""
    return title_from(next((block.text for block in new.blocks if isinstance(block, TextBlockIn)), ""))
