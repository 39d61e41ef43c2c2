"""The AI SDK's `useChat`: the same chats, asked for and told in its own protocol."""

import asyncio
import hashlib
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID, uuid5

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from app.api.ai_sdk.answers import decisions_in
from app.api.ai_sdk.messages import ui_message
from app.api.ai_sdk.schemas import UiChatOut, UiMessageIn, UiOptions, UiRequest, UiStopped, new_turn
from app.api.ai_sdk.stream import ui_stream
from app.api.codec import to_json
from app.api.events import frame
from app.api.exchange import cancel_turn, generate_again, post_in_new_chat, post_message
from app.api.http.reading import read_body
from app.api.http.validation import invalid
from app.api.schemas.requests import NewTurn
from app.api.services import Services, begin
from app.api.views import json_response
from app.domain.chats import Chat
from app.domain.cursor import START
from app.domain.errors import Conflict, NotFound, RequestRefused
from app.domain.turns import Turn
from app.storage.exchanges import Exchange, IdempotencyKey, Parent, Target
from app.stream.reader import follow

_FOREIGN = UUID("5f3c1f6e-6f0b-5c58-9d3b-2f9c3a1f7f10")
# Whoever lost the connection just before the end may still ask for the rest.
_RECENTLY = timedelta(minutes=1)
_PATIENCE = 10.0  # seconds, for a turn to stop


async def converse(request: Request) -> Response:
    """What a person said, or answered to calls that wait, or wants to be said again; answered with the stream."""
    services, owner = await begin(request)
    asked, _ = await read_body(request, UiRequest)
    if not asked.all_messages:
        raise RequestRefused("`messages` must hold at least the last message.", field="messages")
    id = await chat_of(services, owner, asked.id)
    if asked.trigger == "regenerate-message":
        exchange = await _regenerate(services, owner, id, asked)
    elif asked.all_messages[-1].role == "assistant":
        return await _go_on(services, owner, id, asked.all_messages[-1])
    else:
        exchange = await _say(services, owner, id, asked)
    return ui_stream(services, owner, exchange.assistant_turn)


async def resume_answer(request: Request) -> Response:
    """The newest answer from its beginning, while it has not ended, or has only just."""
    services, owner = await begin(request)
    id = await chat_of(services, owner, request.path_params["id"])
    newest = await services.storage.turns.newest(owner, id)
    turn = await services.storage.turns.get(owner, id, newest) if newest else None
    if turn is None or (turn.ended_at is not None and turn.ended_at < datetime.now(UTC) - _RECENTLY):
        return Response(status_code=204)
    return ui_stream(services, owner, turn)


async def list_messages(request: Request) -> Response:
    """What `useChat({messages})` begins with: the path to the newest turn."""
    services, owner = await begin(request)
    id = await chat_of(services, owner, request.path_params["id"])
    await services.storage.chats.get(owner, id)
    newest = await services.storage.turns.newest(owner, id)
    path = await services.storage.turns.path(owner, id, newest) if newest else []
    return json_response(UiChatOut(id=str(id), messages=[ui_message(turn) for turn in path]))


async def stop_chat(request: Request) -> Response:
    """Stops whatever has not ended in the chat: `stop()` of the SDK only hangs up."""
    services, owner = await begin(request)
    id = await chat_of(services, owner, request.path_params["id"])
    await services.storage.chats.get(owner, id)
    standing = await services.storage.chat_changes.state(id)
    for turn in standing.open:
        await cancel_turn(services, owner, id, turn)
    return json_response(UiStopped(stopped=[str(turn) for turn in standing.open]))


async def chat_of(services: Services, owner: str, id: str) -> UUID:
    """A chat of ours by its own id; under any other id the owner has one whose id is made of it."""
    try:
        known = UUID(id)
        await services.storage.chats.get(owner, known)
    except (ValueError, NotFound):
        return uuid5(_FOREIGN, f"{owner}\0{id}")
    return known


# --- something new ---------------------------------------------------------------------------------------------------


async def _say(services: Services, owner: str, chat: UUID, asked: UiRequest) -> Exchange:
    message = asked.all_messages[-1]
    new = _new_turn(message, asked.turnstream)
    place = await _place(services, owner, chat, asked)
    key = _key(chat, message, place)
    for _ in range(3):
        with suppress(NotFound):
            return await post_message(services, new, Target(owner, chat, place, new.on_busy), key)
        with suppress(Conflict):  # another request has just created it
            now = datetime.now(UTC)
            created = Chat(chat, owner, None, None, {}, created_at=now, updated_at=now)
            return await post_in_new_chat(services, new, created, key)
    raise Conflict(f"Chat {chat} is created and deleted all the time; try again later.")


def _new_turn(message: UiMessageIn, options: UiOptions) -> NewTurn:
    try:
        return new_turn(message.parts, options)
    except ValidationError as error:
        raise invalid(NewTurn, error) from None


async def _place(services: Services, owner: str, chat: UUID, asked: UiRequest) -> Parent:
    """Behind the last answer that is listed before the message; an edited first message at the root."""
    before = asked.messages if asked.message else asked.messages[:-1]
    for message in reversed(before):
        if message.role == "assistant" and await _turn_of(services, owner, chat, message):
            return UUID(message.id)
    return None if asked.message_id and not asked.message else "newest"


async def _turn_of(services: Services, owner: str, chat: UUID, message: UiMessageIn) -> Turn | None:
    try:
        turn = await services.storage.turns.get(owner, chat, UUID(message.id))
    except (ValueError, NotFound):
        return None
    return turn if turn.role == message.role else None


def _key(chat: UUID, message: UiMessageIn, place: Parent) -> IdempotencyKey | None:
    """The same message at the same place is one exchange, however often it is sent."""
    if not message.id:
        return None
    digest = hashlib.sha256(to_json([str(chat), message.id, str(place), message.parts])).digest()
    return IdempotencyKey(f"ai-sdk {digest.hex()}", digest)


# --- the same again --------------------------------------------------------------------------------------------------


async def _regenerate(services: Services, owner: str, chat: UUID, asked: UiRequest) -> Exchange:
    turn = await _answer_to_replace(services, owner, chat, asked)
    if turn is None:
        return await _say(services, owner, chat, asked)
    if not turn.ended and asked.turnstream.on_busy == "interrupt":
        await cancel_turn(services, owner, chat, turn.id)
        await _ended(services, owner, turn)
    return await generate_again(services, owner, chat, turn.id, asked.turnstream, None)


async def _answer_to_replace(services: Services, owner: str, chat: UUID, asked: UiRequest) -> Turn | None:
    """The one that is named, or the newest to the last message."""
    if asked.message_id and (
        turn := await _turn_of(services, owner, chat, UiMessageIn(id=asked.message_id, role="assistant", parts=[]))
    ):
        return turn
    message = asked.all_messages[-1]
    if message.role != "user":
        raise RequestRefused("`messages` must end with the user message to answer again.", field="messages")
    said = await _turn_of(services, owner, chat, message)
    if said is None:
        said = await _said_before(services, owner, _key(chat, message, await _place(services, owner, chat, asked)))
    answer = await services.storage.chat_changes.newest_answer(chat, said.id) if said else None
    return await services.storage.turns.get(owner, chat, answer) if answer else None


async def _said_before(services: Services, owner: str, key: IdempotencyKey | None) -> Turn | None:
    try:
        found = await services.storage.exchanges.find(owner, key) if key else None
    except RequestRefused:
        return None
    return found.user_turn if found else None


async def _ended(services: Services, owner: str, turn: Turn) -> None:
    """Returns when the turn has ended, which was told to stop. Raises Conflict when it takes too long."""
    load = partial(services.storage.turns.get, owner, turn.chat_id, turn.id)
    frames = follow(services.live.directory, services.live.directory.view(turn), load, START, frame)
    try:
        async with asyncio.timeout(_PATIENCE), aclosing(frames):
            async for _ in frames:
                pass
    except TimeoutError:
        raise Conflict(f"Turn {turn.id} is being stopped and still runs; try again.") from None


# --- what waits for a person -----------------------------------------------------------------------------------------


async def _go_on(services: Services, owner: str, chat: UUID, message: UiMessageIn) -> Response:
    """Takes the answers that the message has for calls that wait, and tells how the turn goes on."""
    turn = await _turn_of(services, owner, chat, message)
    if turn is None:
        raise RequestRefused(
            "`messages` must end with a user message, or with an answer of this chat.", field="messages"
        )
    calls = {str(part.get("toolCallId")): part for part in message.parts if "toolCallId" in part}
    decisions = decisions_in(calls, turn)
    if decisions and not turn.ended:
        turn = await services.storage.actions.answer(owner, chat, turn.id, decisions, None)
        if not turn.ended:
            await services.live.refresh(turn.id)
    return ui_stream(services, owner, turn, known=calls.keys())
