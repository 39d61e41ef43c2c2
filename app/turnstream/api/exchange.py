"""The use cases of an exchange: post a message, generate its answer again, copy it, cancel the answer.

Each one checks first, then opens the transaction, writes and commits: no model is looked up and no file is stored while
the chat is locked.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from turnstream.api.attachments import check_attachments, steer_blocks, user_blocks
from turnstream.api.caller import check_turn, of_caller, with_fixed
from turnstream.api.events import frame
from turnstream.api.schemas.blocks import TextBlockIn
from turnstream.api.schemas.requests import ForkIn, NewTurn, TurnOptions
from turnstream.api.services import Services, check_rate
from turnstream.domain.blocks import Block
from turnstream.domain.chats import Chat, title_from
from turnstream.domain.cursor import START
from turnstream.domain.errors import Conflict, RequestRefused
from turnstream.domain.fork import cut_after
from turnstream.domain.turns import Turn
from turnstream.storage.chats.branches import Fork
from turnstream.storage.chats.exchanges import (
    Draft,
    Exchange,
    IdempotencyKey,
    KeyTaken,
    NewExchange,
    PlaceMoved,
    Preview,
    Target,
    key_refused,
)
from turnstream.storage.chats.histories import PastExchange, behind
from turnstream.stream.reader import follow

_TITLE_OF_FORK = 290  # characters of the original's title
# How often a message is checked against a chat that changes before each write.
_TRIES = 10
_STOP_TIMEOUT = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class History:
    """So many exchanges that took place elsewhere. `load` stores their files, and returns them."""

    exchanges: int
    load: Callable[[], Awaitable[Sequence[PastExchange]]]


async def post_message(
    services: Services, new: NewTurn, target: Target, key: IdempotencyKey | None, *, admitted: bool = False
) -> Exchange:
    """Writes a message and the assistant turn that answers it. A key that was used gives the exchange it made.
    `admitted`: the request has been counted by `admit`.
    """
    new = with_fixed(new)
    try:
        draft, exchange = await _write(services, new, target, key, admitted)
        if draft is None:
            return exchange
    except (KeyTaken, RequestRefused) as error:
        return await _made_before(services, target.owner, key, error)
    for interrupted in draft.interrupted:
        await services.live.cancel(interrupted)
    if draft.steered is not None:
        await services.live.refresh(draft.steered.id)
        turn = await services.storage.turns.get(target.owner, target.chat, draft.steered.id)
        exchange = replace(exchange, assistant_turn=turn)
    _notify(services, target.owner, exchange)
    return exchange


async def post_in_new_chat(
    services: Services, new: NewTurn, chat: Chat, key: IdempotencyKey | None, history: History | None = None
) -> Exchange:
    """The same in a chat that is created with it, behind its `history`. Raises Conflict where the chat exists."""
    new = with_fixed(new)
    exchanges, plan = services.storage.exchanges, services.plans.of(chat.owner)
    try:
        await admit(services, chat.owner, new, history.exchanges if history else 0)
        past = await history.load() if history else ()
        blocks = await user_blocks(new.blocks, chat.owner, services)
        message = _message_at(services, new, blocks, Preview(chat, None, steered=False), key)
        with services.live.reserve_slot() as replica:
            if (
                replica
                and not past
                and (begun := await exchanges.begin_chat(chat, message, replica, plan.running_turns))
            ):
                return _begin(services, chat, begun)
        async with exchanges.in_new_chat(chat, key, plan.queued_turns) as draft:
            place = await behind(draft, past, message.request)
            exchange = await place.create(blocks, message.request, message.title)
    except (KeyTaken, RequestRefused) as error:
        return await _made_before(services, chat.owner, key, error)
    _notify(services, chat.owner, exchange)
    return exchange


async def generate_again(
    services: Services, owner: str, chat: UUID, turn: UUID, options: TurnOptions, key: IdempotencyKey | None
) -> Exchange:
    """Writes another assistant turn beside `turn`."""
    storage, options = services.storage, with_fixed(options)
    try:
        before = await storage.exchanges.answer(owner, chat, turn)
        assert before.request is not None
        await admit(services, owner, options)
        request = of_caller(services.resolver.again(options, before.request))
        async with storage.exchanges.beside(owner, before, key, services.plans.of(owner).queued_turns) as draft:
            answer = await draft.create_sibling(request)
    except (KeyTaken, RequestRefused) as error:
        return await _made_before(services, owner, key, error)
    assert answer.parent_id is not None
    exchange = Exchange(await storage.turns.get(owner, chat, answer.parent_id), answer)
    _notify(services, owner, exchange)
    return exchange


async def fork_turn(
    services: Services, owner: str, chat: UUID, turn: UUID, options: ForkIn, key: IdempotencyKey | None
) -> Exchange:
    """Copies the path to a turn into a new chat, or the turn as a branch beside it. A copied user turn is answered."""
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
        made_in, leaf = await storage.branches.fork(owner, fork, key, services.plans.of(owner).queued_turns)
    except (KeyTaken, RequestRefused) as error:
        return await _made_before(services, owner, key, error)
    copied = await storage.turns.get(owner, made_in, leaf)
    assert copied.parent_id is not None
    exchange = Exchange(await storage.turns.get(owner, made_in, copied.parent_id), copied)
    _notify(services, owner, exchange)
    return exchange


async def cancel_turn(services: Services, owner: str, chat: UUID, turn: UUID) -> Turn:
    """Returns the turn as it is now: one that runs has not ended yet."""
    found = await services.storage.turns.cancel(owner, chat, turn)
    if found.ended:
        services.live.wake()  # another turn may have waited for its end
    else:
        await services.live.cancel(turn)
    services.live.feed.notify(owner)
    return found


async def wait_for_end(services: Services, owner: str, turn: Turn) -> None:
    """Returns when the turn, which was cancelled, has ended. Raises Conflict when that takes too long."""
    load = partial(services.storage.turns.get, owner, turn.chat_id, turn.id)
    frames = follow(services.live.directory, services.live.directory.view(turn), load, START, frame)
    try:
        async with asyncio.timeout(_STOP_TIMEOUT), aclosing(frames):
            async for _ in frames:
                pass
    except TimeoutError:
        raise Conflict(f"Turn {turn.id} is being stopped and still runs; try again.") from None


async def _write(
    services: Services, new: NewTurn, target: Target, key: IdempotencyKey | None, admitted: bool
) -> tuple[Draft | None, Exchange]:
    """Without a draft, the answer has begun."""
    exchanges, most_queued = services.storage.exchanges, services.plans.of(target.owner).queued_turns
    known = services.recent_chats.take(target)
    preview = None if known else await exchanges.preview(target)  # without a chat, nothing is counted
    if not admitted:
        await admit(services, target.owner, new)
    blocks = await user_blocks(new.blocks, target.owner, services)
    if known:
        with suppress(RequestRefused):  # by the chat as it was: now its rows are read
            message = _message_at(services, new, blocks, known, key)
            if begun := await _begin_at(services, known, message):
                return None, begun
    for _ in range(_TRIES):
        place, preview = preview or await exchanges.preview(target), None
        with suppress(PlaceMoved):
            if place.steered:
                async with exchanges.after(target, key, place) as draft:
                    check_turn(draft.steered)
                    return draft, await draft.steer(steer_blocks(new.blocks))
            message = _message_at(services, new, blocks, place, key)
            if begun := await _begin_at(services, place, message):
                return None, begun
            async with exchanges.after(target, key, place, most_queued) as draft:
                return draft, await draft.create(blocks, message.request, message.title)
    raise Conflict("The chat changes faster than a message can be checked against it; try again.")


def _message_at(
    services: Services, new: NewTurn, blocks: Sequence[Block], place: Preview, key: IdempotencyKey | None
) -> NewExchange:
    """The message with the request of its answer, as they follow from the place. Raises RequestRefused."""
    resolver, before = services.resolver, place.before
    request = of_caller(resolver.resolve(new, place.chat, before.request if before else None))
    check_attachments(resolver.models.check(request.model), blocks)
    return NewExchange(blocks, request, _title_of(new), key)


async def _begin_at(services: Services, place: Preview, message: NewExchange) -> Exchange | None:
    """None where this replica has no room, or anything else is in the way."""
    most_running = services.plans.of(place.chat.owner).running_turns
    with services.live.reserve_slot() as replica:
        if replica and (begun := await services.storage.exchanges.begin(place, message, replica, most_running)):
            return _begin(services, place.chat, begun)
    return None


async def admit(services: Services, owner: str, options: TurnOptions, writes: int = 0) -> None:
    """Counts a request that asks for an answer, or a message to a running turn, with further `writes`. Raises
    RequestRefused where it asks for a recording without the operator's leave, and TooMany where the owner's plan has no
    room for it.
    """
    recorded = services.http.recorded_owners
    if options.record and recorded is not None and owner not in recorded:
        detail = "`record` must be left out: the operator has not allowed you to ask (TURNSTREAM_RECORD_OWNERS)."
        raise RequestRefused(detail, field="record")
    plan = services.plans.of(owner)
    # Where plans differ, the queue learns the number of running turns from the account.
    if plan.rates or services.plans.plans.vary:
        check_rate(await services.storage.accounts.admit(owner, plan, writes))


async def _made_before(
    services: Services, owner: str, key: IdempotencyKey | None, error: KeyTaken | RequestRefused
) -> Exchange:
    """What the first request with this key made; raises `error` where there was none. A repetition may fail checks
    that the first one passed: an upload is gone, or its own answer keeps the branch busy.
    """
    exchange = await services.storage.exchanges.find(owner, key) if key else None
    if exchange is None:
        raise error if isinstance(error, RequestRefused) else key_refused()
    _notify(services, owner, exchange)  # the first request may have been cut off between its commit and this
    return exchange


def _begin(services: Services, chat: Chat, exchange: Exchange) -> Exchange:
    """Runs the answer, which this replica has claimed as it wrote it."""
    services.live.begin(chat.owner, [exchange.user_turn, exchange.assistant_turn])
    services.live.notify(chat.owner, chat.id)
    services.recent_chats.keep(chat, exchange)
    return exchange


def _notify(services: Services, owner: str, exchange: Exchange) -> None:
    services.live.wake()
    services.live.notify(owner, exchange.assistant_turn.chat_id)


def _title_of(new: NewTurn) -> str | None:
    """The beginning of the message, for a chat that has no title."""
    return title_from(next((block.text for block in new.blocks if isinstance(block, TextBlockIn)), ""))
