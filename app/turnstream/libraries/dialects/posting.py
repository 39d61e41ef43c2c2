"""Posts a message behind exchanges that took place elsewhere, and records these exchanges in the same transaction."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from turnstream.api import exchange
from turnstream.api.caller import with_fixed
from turnstream.api.schemas.requests import NewTurn
from turnstream.api.services import Services
from turnstream.domain.chats import Chat
from turnstream.domain.errors import RequestRefused
from turnstream.libraries.dialects.past_exchanges import PastExchange, behind
from turnstream.storage.chats.exchanges import Draft, Exchange, IdempotencyKey, KeyTaken, Target


@dataclass(frozen=True, slots=True)
class History:
    """Exchanges that took place elsewhere. `exchanges` is their number. `load` stores their files, and returns the
    exchanges. `goes_on`: the exchanges end with results of calls or a text, and the model continues without a new
    message, so the user turn behind the exchanges is empty.
    """

    exchanges: int
    load: Callable[[], Awaitable[Sequence[PastExchange]]]
    goes_on: bool = False


async def post_in_seeded_chat(
    services: Services, new: NewTurn, chat: Chat, key: IdempotencyKey | None, history: History | None
) -> Exchange:
    """Posts a message in a new chat with its history. Raises Conflict if the chat exists."""
    if history is None or not history.exchanges:
        return await exchange.post_in_new_chat(services, new, chat, key)
    most_queued = services.plans.of(chat.owner).queued_turns

    async def opening() -> AbstractAsyncContextManager[Draft]:
        return services.storage.exchanges.in_new_chat(chat, key, most_queued)

    return await _post(services, new, chat.owner, key, history, opening)


async def post_behind(
    services: Services, new: NewTurn, target: Target, key: IdempotencyKey | None, history: History
) -> Exchange:
    """Records a history at the target, and posts a message behind the history. The target must not be busy."""
    most_queued = services.plans.of(target.owner).queued_turns

    async def opening() -> AbstractAsyncContextManager[Draft]:
        position = await services.storage.exchanges.position(target)  # raises NotFound before any write is counted
        return services.storage.exchanges.after(target, key, position, most_queued)

    return await _post(services, new, target.owner, key, history, opening)


async def _post(
    services: Services,
    new: NewTurn,
    owner: str,
    key: IdempotencyKey | None,
    history: History,
    opening: Callable[[], Awaitable[AbstractAsyncContextManager[Draft]]],
) -> Exchange:
    new = await services.resolver.sealed(owner, with_fixed(new))
    try:
        drafts = await opening()
        await exchange.admit(services, owner, new, history.exchanges)
        past = await history.load()
        compose = await exchange.composer(services, new, owner, key)
        async with drafts as draft:
            message = compose(draft.chat, draft.before)
            place = await behind(draft, past, message.request)
            blocks, title = ((), None) if history.goes_on else (message.blocks, message.title)
            posted = await place.create(blocks, message.request, title)
    except (KeyTaken, RequestRefused) as error:
        return await exchange.made_before(services, owner, key, error)
    exchange.notify(services, owner, posted)
    return posted
