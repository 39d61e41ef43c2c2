"""Posts the message of a schedule or a trigger for its owner."""

import asyncio
from contextvars import copy_context
from dataclasses import dataclass
from uuid import UUID

from turnstream.api.caller import CALLER
from turnstream.api.exchange import post_in_new_chat, post_message
from turnstream.api.schemas.blocks import TextBlockIn
from turnstream.api.services import Services
from turnstream.domain.chats import Chat
from turnstream.domain.identity import Identity
from turnstream.extensions.schedules.schemas import ScheduledTurn
from turnstream.kit.clock import CLOCK
from turnstream.kit.ids import new_id
from turnstream.storage.chats.exchanges import Exchange, IdempotencyKey, Target
from turnstream.storage.database import ANONYMOUS, OWNER


@dataclass(frozen=True, slots=True)
class DueMessage:
    """A message that is due. `request` is the JSON of the message, and `more` is a text that follows its blocks. If
    `chat` is None, a new chat is created, with `name` as its title.
    """

    owner: str
    name: str
    chat: UUID | None
    request: str
    plan: str | None
    key: IdempotencyKey
    more: str | None = None


async def posted(services: Services, posting: DueMessage) -> Exchange:
    """Posts the message and returns its exchange, which is the same for every call with the same key. Raises
    RequestRefused.
    """
    # A context of its own limits the owner and the credential to the statements of this message.
    return await asyncio.create_task(_post(services, posting), context=copy_context())


async def _post(services: Services, posting: DueMessage) -> Exchange:
    OWNER.set(posting.owner)
    ANONYMOUS.set(False)
    CALLER.set(Identity(posting.owner, plan=posting.plan))
    new = ScheduledTurn.model_validate_json(posting.request)
    if posting.more is not None:
        new = new.model_copy(update={"blocks": [*new.blocks, TextBlockIn(type="text", text=posting.more)]})
    if posting.chat is not None:
        target = Target(posting.owner, posting.chat, "newest", new.on_busy)
        return await post_message(services, new, target, posting.key)
    now = CLOCK.now()
    chat = Chat(new_id(), posting.owner, posting.name, None, {}, created_at=now, updated_at=now)
    return await post_in_new_chat(services, new, chat, posting.key)
