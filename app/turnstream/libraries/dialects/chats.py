"""Helpers for dialects whose clients choose ids, and create a chat by sending its first message."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid5

from pydantic import ValidationError

from turnstream.api.caller import held_options
from turnstream.api.events import frame
from turnstream.api.exchange import cancel_turn, generate_again, post_message
from turnstream.api.http.validation import invalid
from turnstream.api.schemas.requests import ChatSettings, NewTurn, TurnOptions
from turnstream.api.services import Services
from turnstream.domain.chats import Chat, OnBusy
from turnstream.domain.cursor import START
from turnstream.domain.errors import Conflict, NotFound, RequestRefused
from turnstream.domain.identity import Identity
from turnstream.domain.turns import Turn
from turnstream.kit.clock import CLOCK
from turnstream.kit.ids import new_id
from turnstream.kit.text import unstorable
from turnstream.libraries.dialects.posting import History, post_in_seeded_chat
from turnstream.libraries.dialects.schemas import UiOptions
from turnstream.storage.chats.exchanges import Exchange, IdempotencyKey, Target
from turnstream.stream.reader import follow

_NAMESPACE = UUID("5f3c1f6e-6f0b-5c58-9d3b-2f9c3a1f7f10")
# If a turn ended longer ago than this, a client that connects does not need the end of the turn.
_RECENTLY = timedelta(minutes=1)
_STOP_TIMEOUT = 10.0  # seconds


async def chat_of(services: Services, identity: Identity, id: str) -> UUID:
    """Returns the id of a chat: `id` itself if the owner has a chat with this id, else a UUID that is derived from
    `id`. Raises Forbidden if the credential is bound to another chat, or to a turn.
    """
    try:
        chat = UUID(id)
        await services.storage.chats.get(identity.owner, chat)
    except (ValueError, NotFound):
        chat = uuid5(_NAMESPACE, f"{identity.owner}\0{id}")
    identity.require_reach(chat)
    return chat


def new_chat(owner: str, id: UUID | None = None, settings: Mapping[str, Any] | None = None) -> Chat:
    now = CLOCK.now()
    return Chat(id or new_id(), owner, None, None, dict(settings or {}), created_at=now, updated_at=now)


async def newest_turn(services: Services, owner: str, chat: UUID) -> Turn | None:
    newest = await services.storage.turns.newest(owner, chat)
    return await services.storage.turns.get(owner, chat, newest) if newest else None


async def newest_path(services: Services, owner: str, chat: UUID) -> Sequence[Turn]:
    """Returns the path to the newest turn. Raises NotFound if the chat does not exist."""
    await services.storage.chats.get(owner, chat)
    newest = await services.storage.turns.newest(owner, chat)
    return await services.storage.turns.path(owner, chat, newest) if newest else []


def is_news(turn: Turn) -> bool:
    """Returns whether a client that connects may not know the end of the turn: the turn is open, or has just ended."""
    return turn.ended_at is None or turn.ended_at > CLOCK.now() - _RECENTLY


async def newest_answer(services: Services, owner: str, user_turn: Turn | None) -> Turn | None:
    if user_turn is None:
        return None
    answer = await services.storage.chat_changes.newest_answer(user_turn.chat_id, user_turn.id)
    return await services.storage.turns.get(owner, user_turn.chat_id, answer) if answer else None


def new_turn(options: UiOptions, blocks: Sequence[dict[str, Any]]) -> NewTurn:
    """Creates a message with its options. Raises RequestRefused."""
    members = options.model_dump(exclude_unset=True, by_alias=True)
    return checked_turn({**members, "on_busy": options.on_busy, "blocks": blocks})


def checked_turn(members: Mapping[str, Any]) -> NewTurn:
    """Validates the members of a message. Raises RequestRefused."""
    try:
        return NewTurn.model_validate(members)
    except ValidationError as error:
        raise invalid(NewTurn, error) from None


async def post_by_chat(
    services: Services, new: NewTurn, target: Target, key: IdempotencyKey | None, seed: Callable[[], History | None]
) -> Exchange:
    """Posts a message. If the chat does not exist, creates it with the history that `seed` makes from the client's
    messages.
    """
    for _ in range(3):
        with suppress(NotFound):
            return await post_message(services, new, target, key)
        with suppress(Conflict):  # another request has just created the chat
            created = new_chat(target.owner, target.chat)
            return await post_in_seeded_chat(services, new, created, key, seed())
    raise Conflict(f"Chat {target.chat} is created and deleted again and again; try later.")


async def wait_for_end(services: Services, owner: str, turn: Turn, seconds: float | None = _STOP_TIMEOUT) -> None:
    """Waits until the turn has ended. Raises Conflict after `seconds`; by default, this is the time that a cancellation
    may take.
    """
    load = partial(services.storage.turns.get, owner, turn.chat_id, turn.id)
    frames = follow(services.live.directory, services.live.directory.view(turn), load, START, frame)
    try:
        async with asyncio.timeout(seconds), aclosing(frames):
            async for _ in frames:
                pass
    except TimeoutError:
        raise Conflict(f"Turn {turn.id} is being stopped, but still runs; try again.") from None


async def replace_answer(
    services: Services, owner: str, turn: Turn, options: TurnOptions, on_busy: OnBusy, key: IdempotencyKey | None
) -> Exchange:
    """Creates another answer beside `turn`. A running `turn` is cancelled first if `on_busy` demands a cancellation."""
    # The key is looked up after `turn` was read: the first request with this key may have created `turn`.
    if key and (made := await services.storage.exchanges.find(owner, key)):
        return made
    if not turn.ended and on_busy == "interrupt":
        await cancel_turn(services, owner, turn.chat_id, turn.id)
        await wait_for_end(services, owner, turn)
    return await generate_again(services, owner, turn.chat_id, turn.id, options, key)


@dataclass(frozen=True, slots=True)
class PageOptions:
    """The options that a page adds to the options of a turn. `tools` are all tools of the page, as `page_tool` makes
    them, or None if its client does not send tools. `system` is the page's system prompt; `context` are texts that
    follow the prompt.
    """

    tools: Sequence[dict[str, Any]] | None = None
    system: str = ""
    context: Sequence[str] = ()


# Seconds for which a call waits for the program that runs it. A call of a page waits for a person, who may return the
# next day.
PROGRAM_EXPIRY, PAGE_EXPIRY = 3600.0, 86_400.0


def page_tool(name: str, description: str | None, schema: object) -> dict[str, Any]:
    input_schema = schema if isinstance(schema, dict) else {"type": "object"}
    about = {"name": name, "description": description or name, "input_schema": input_schema}
    return {"type": "client", **about, "expiry": PAGE_EXPIRY}


async def with_page(
    services: Services, owner: str, chat: UUID, options: UiOptions, page: PageOptions, before: Turn | None
) -> UiOptions:
    """Returns the options together with the options that the page adds. The page's tools are added to the tools of the
    turn, the chat or the server. The next turn has the page's tools only if the page sends them again. `before` is the
    answer before the turn.
    """
    stored: Chat | None = None
    with suppress(NotFound):
        stored = await services.storage.chats.get(owner, chat)
    changes: dict[str, Any] = {}
    had = before is not None and before.request is not None and any(spec.client for spec in before.request.tools)
    had = had and "tools" not in held_options()  # if the tools are fixed, the turn keeps its tools
    if page.tools or (page.tools is not None and had and options.tools is None):
        settings = ChatSettings.model_validate(stored.settings if stored else {})
        own = options.tools if options.tools is not None else settings.tools
        changes["tools"] = [*(services.resolver.toolset.names if own is None else own), *page.tools]
    if page.system or page.context:
        usual = stored.system_prompt if stored and stored.system_prompt else services.resolver.defaults.system_prompt
        prompt = options.system_prompt or page.system or usual
        changes["system_prompt"] = "\n\n".join(part for part in (prompt, *page.context) if part)
    if not changes:
        return options
    members = options.model_dump(exclude_unset=True, by_alias=True) | {"on_busy": options.on_busy}
    try:
        return UiOptions.model_validate({**members, **changes})
    except ValidationError as error:
        raise invalid(UiOptions, error) from None


async def stop_all(services: Services, owner: str, chat: UUID) -> list[str]:
    """Cancels all open turns of the chat, and returns their ids. Raises NotFound."""
    await services.storage.chats.get(owner, chat)
    state = await services.storage.chat_changes.state(chat)
    for turn in state.open:
        await cancel_turn(services, owner, chat, turn)
    return [str(turn) for turn in state.open]


def storable_in_messages(text: str) -> str:
    if problem := unstorable(text):
        raise RequestRefused(f"`messages` {problem}, which cannot be stored; remove it.", field="messages")
    return text
