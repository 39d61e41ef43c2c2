"""Handles histories that clients send: computes their digest, matches them with stored turns, finds the matching
position in a chat, and makes exchanges to record if no stored turn matches.

Some messages have ids of turns (`last_answer`), others have ids that their client chose (`key_of`, `posted_with`). If
the messages of a protocol have no ids, its dialect translates them into items: `find_place` finds the turn that follows
such items, and `history_of` makes exchanges from them.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import Any, Self
from uuid import UUID

from turnstream.api.attachments import Contents, allowed_blocks, allowed_text, user_blocks
from turnstream.api.caller import CALLER, with_fixed
from turnstream.api.codec import to_json
from turnstream.api.schemas.requests import NewTurn
from turnstream.api.services import Services
from turnstream.domain.blocks import Block
from turnstream.domain.chats import Chat, title_from
from turnstream.domain.errors import Conflict, NotFound, RequestRefused
from turnstream.domain.identity import Identity
from turnstream.domain.kinds import TEXT, TOOL_RESULT, TOOL_USE
from turnstream.domain.output import output_of
from turnstream.domain.turns import Role, Turn
from turnstream.kit.offload import Portions
from turnstream.kit.text import unstorable
from turnstream.libraries.dialects.chats import checked_turn
from turnstream.libraries.dialects.past_exchanges import PastExchange, histories_of
from turnstream.libraries.dialects.posting import History, post_behind, post_in_seeded_chat
from turnstream.libraries.dialects.projection import Close, Closed, Projection, calls_of_client
from turnstream.libraries.dialects.streams import current_view
from turnstream.storage.chats.exchanges import Exchange, IdempotencyKey, Target

_MOST_RECORDED = 1000  # exchanges of one history; one transaction writes them all
_LONGEST_ID = 256  # characters: an index contains the ids of calls
_NO_MESSAGE = "…"  # the message before a history that starts with an answer, because providers need a message


@dataclass(frozen=True, slots=True)
class PastMessage:
    """A message of the user. Its blocks have the form that NewTurn accepts."""

    blocks: Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class PastText:
    """A text of an answer."""

    text: str


@dataclass(frozen=True, slots=True)
class PastCall:
    """A call of a client tool."""

    id: str | None
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class PastResult:
    call: str
    text: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class PastBlock:
    """A block of an answer in a provider's own form, such as a thought with its signature. `data` and `text` have the
    same meaning as in `Block`.
    """

    type: str
    data: str
    text: str = ""
    id: str | None = None
    name: str | None = None


PastItem = PastMessage | PastText | PastCall | PastResult | PastBlock


# --- messages with ids -----------------------------------------------------------------------------------------------


async def turn_of(services: Services, owner: str, chat: UUID, id: str, role: Role) -> Turn | None:
    """Returns the chat's turn with the id `id`, if this turn has the role `role`. `id` is any text from a client."""
    try:
        turn = await services.storage.turns.get(owner, chat, UUID(id))
    except (ValueError, NotFound):
        return None
    return turn if turn.role == role else None


async def last_answer(services: Services, owner: str, chat: UUID, ids: Sequence[str]) -> tuple[Turn | None, int]:
    """Returns the chat's last answer whose id is in `ids`, and the number of ids up to that answer's id."""
    for place in range(len(ids), 0, -1):
        if turn := await turn_of(services, owner, chat, ids[place - 1], "assistant"):
            return turn, place
    return None, 0


def key_of(protocol: str, *parts: object) -> IdempotencyKey:
    """Derives the key of an exchange from these parts: repeated requests with the same parts have the same key."""
    digest = hashlib.sha256(to_json([str(part) if isinstance(part, UUID) else part for part in parts])).digest()
    return IdempotencyKey(f"{protocol} {digest.hex()}", digest)


async def posted_with(services: Services, owner: str, key: IdempotencyKey | None) -> Turn | None:
    """Returns the user turn of the message that was posted with this key."""
    with suppress(RequestRefused):
        exchange = await services.storage.exchanges.find(owner, key) if key else None
        return exchange.user_turn if exchange else None
    return None


# --- items without ids -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HistoryPlace:
    """The stored answer that matches the end of a history. `part` is the index of the matching part: the waits of a
    turn divide its answer into parts.
    """

    chat: UUID
    turn: UUID
    part: int


async def digest_of(items: Iterable[PastItem]) -> bytes:
    """Returns the digest of a history. All equivalent forms of a history have the same digest. Runs in a thread,
    because thousands of items take long to measure and to encode.
    """

    def digest() -> bytes:
        # Blocks in a provider's own form are excluded, because some clients drop such blocks.
        return hashlib.sha256(to_json([_canonical(item) for item in items if not isinstance(item, PastBlock)])).digest()

    return await asyncio.to_thread(digest)


async def find_place(
    services: Services, identity: Identity, history: Iterable[PastItem], answer: Iterable[PastItem]
) -> HistoryPlace | None:
    """Returns the place of the newest turn that follows the same history and has the same answer. Ignores chats that
    the caller may not read.
    """
    wanted = _PastAnswer.of_items(answer)
    async for turn in _turns_behind(services, identity, history):
        answers = await _answers_of(services, turn)
        begun = "" if wanted in answers else await _text_before(services, identity.owner, turn)
        for part, given in enumerate(answers):
            if wanted == (replace(given, text=begun + given.text) if part == 0 else given):
                return HistoryPlace(turn.chat_id, turn.id, part)
    return None


async def find_continuation(
    services: Services, identity: Identity, history: Sequence[PastItem], answer: Sequence[PastItem]
) -> tuple[Target, Sequence[PastItem]] | None:
    """Returns the position in a chat where a model continues the text `answer`, and the items to record before that
    position. If the text matches the end of a stored answer, no item is recorded. If the text differs (the client
    edited it, or sent the beginning of a running answer), it becomes a branch beside that answer. Returns None if no
    chat has the history.
    """
    owner = identity.owner
    if found := await find_place(services, identity, history, answer):
        turn = await services.storage.turns.get(owner, found.chat, found.turn)
        if turn.ended and found.part == len({ask.round for ask in turn.asks if ask.is_marked}):
            if not turn.blocks:  # the turn failed before its first text, so `answer` is an earlier answer
                _, earlier = await _question_of(services, owner, turn)
                turn = next((each for each in reversed(earlier) if each.blocks), turn)
            return Target(owner, found.chat, turn.id), ()
    message = list(takewhile(lambda item: isinstance(item, PastMessage), reversed(history)))[::-1]
    if message:
        async for turn in _turns_behind(services, identity, history):
            question, _ = await _question_of(services, owner, turn)
            return Target(owner, turn.chat_id, question.parent_id), [*message, *answer]
    return None


async def _turns_behind(services: Services, identity: Identity, history: Iterable[PastItem]) -> AsyncIterator[Turn]:
    """Yields the turns that follow this history, newest first. Skips chats that the caller may not read."""
    for chat, id in await histories_of(services).find(identity.owner, await digest_of(history)):
        if identity.chat in {None, chat}:
            try:
                turn = await services.storage.turns.get(identity.owner, chat, id)
            except NotFound:  # deleted
                continue
            yield turn


async def _question_of(services: Services, owner: str, turn: Turn) -> tuple[Turn, Sequence[Turn]]:
    """Returns the message that the turn answers, and the earlier answers that the turn continues. A user turn without
    blocks follows each of these earlier answers.
    """
    earlier: list[Turn] = []
    assert turn.parent_id is not None
    question = await services.storage.turns.get(owner, turn.chat_id, turn.parent_id)
    while not question.blocks and question.parent_id is not None:
        earlier.append(await services.storage.turns.get(owner, turn.chat_id, question.parent_id))
        assert earlier[-1].parent_id is not None
        question = await services.storage.turns.get(owner, turn.chat_id, earlier[-1].parent_id)
    return question, earlier[::-1]


async def _text_before(services: Services, owner: str, turn: Turn) -> str:
    """Returns the text of the answers that this turn continues: clients send all these answers as one answer."""
    try:
        _, earlier = await _question_of(services, owner, turn)
    except NotFound:  # deleted meanwhile
        return ""
    return "".join([(await _answers_of(services, each))[-1].text for each in earlier])


@dataclass(frozen=True, slots=True)
class _PastAnswer:
    """A client's copy of an answer: the text without white space, and the ids of the calls."""

    text: str
    calls: tuple[str | None, ...]

    @classmethod
    def of_items(cls, items: Iterable[PastItem]) -> Self:
        found = list(items)
        text = "".join(item.text for item in found if isinstance(item, PastText))
        return cls("".join(text.split()), tuple(item.id for item in found if isinstance(item, PastCall)))

    @classmethod
    def of_part(cls, part: Sequence[Closed], output: str | None) -> Self:
        """Makes the answer of one part. `output` is the output of a structured turn, because clients have no other text
        of such a turn. For other turns, `output` is None.
        """
        texts = [closed.block.text for closed in part if isinstance(closed, Close) and closed.block.type == TEXT]
        text = "".join(texts) if output is None else output
        return cls("".join(text.split()), tuple(call.tool_use_id for call in calls_of_client(part)))


async def _answers_of(services: Services, turn: Turn) -> list[_PastAnswer]:
    """Returns the answer's parts so far. Pauses between marks, so that the event loop can run other tasks."""
    view = current_view(services, turn)
    projection, written, portions = Projection(view.turn), view.block_being_written(), Portions()
    for mark in view.marks.copy():  # all marks of one moment
        projection.take(mark)
        await portions.pause()
    if written is not None:
        projection.close(written)
    is_structured = view.turn.request is not None and view.turn.request.output is not None
    output = (output_of(view.turn) or "") if is_structured else None
    return [_PastAnswer.of_part(projection.part(part), output) for part in range(projection.waits + 1)]


def _canonical(item: PastMessage | PastText | PastCall | PastResult) -> list[Any]:
    """Returns the form of an item for the digest. Digests are stored, so the same history must have the same digest in
    every version.
    """
    match item:
        case PastMessage(blocks=blocks):
            return ["user", [block["text"] if "text" in block else str(block["source"]) for block in blocks]]
        case PastText(text=text):
            return ["assistant", text.strip()]
        case PastCall(id=id):
            return ["call", id]
        case PastResult(call=call, text=text):
            return ["output", call, text]


# --- exchanges that took place elsewhere -----------------------------------------------------------------------------

# A placeholder for the message before an answer that continues from results of calls. It is not stored.
NO_MESSAGE = {"type": "text", "text": "…"}


def history_of(
    services: Services,
    owner: str,
    items: Iterable[PastItem],
    place: str,
    *,
    goes_on: bool = False,
    follows: bool = False,
) -> History:
    """Makes exchanges from the items of the field `place`. `goes_on`: the items end with results of calls or a text,
    and the model continues from there. `follows`: the exchanges are recorded behind an answer. Raises RequestRefused.
    """
    pasts = list(_exchanges_of(items, place))
    if len(pasts) > _MOST_RECORDED:
        detail = f"`{place}` must have at most {_MOST_RECORDED:,} messages of a history that is not known here."
        raise RequestRefused(detail, field=place)
    return History(len(pasts), partial(_load, services, owner, pasts, place, follows=follows), goes_on)


def check_may_record(identity: Identity, items: Iterable[PastItem]) -> None:
    """Raises Forbidden if the credential may only send messages, because no person wrote the answers of a history.
    Items that are all texts are allowed: they are a greeting, which a page shows to everybody before the first message.
    """
    if not all(isinstance(item, PastText) for item in items):
        identity.require("chat")


def check_prefill(services: Services, new: NewTurn, items: Sequence[PastItem], place: str) -> None:
    """Raises RequestRefused unless the model can continue the text at the end of these items."""
    resolver = services.resolver
    model = resolver.models.check(with_fixed(new).model or resolver.defaults.model)
    if not model.prefill or not items or not isinstance(items[-1], PastText):
        detail = f"`{place}` must end with a message of the user, or with the results of calls"
        raise RequestRefused(f"{detail}: the model {model.id} does not continue an answer.", field=place)


async def continue_answer(
    services: Services,
    identity: Identity,
    new: NewTurn,
    history: Sequence[PastItem],
    answer: Sequence[PastItem],
    key: IdempotencyKey | None,
    place: str,
) -> Turn | None:
    """Creates the turn that continues `answer`, in the chat that has this history. Returns None if no chat has the
    history. Raises RequestRefused.
    """
    found = await find_continuation(services, identity, history, answer)
    if found is None:
        return None
    target, items = found
    check_may_record(identity, items)
    past = history_of(services, identity.owner, items, place, goes_on=True)
    return (await post_behind(services, new, target, key, past)).assistant_turn


def seed_of(services: Services, identity: Identity, items: Iterable[PastItem], place: str) -> History | None:
    """Returns the history with which a new chat begins, from items that its client sent. Returns None without items.
    Raises RequestRefused.
    """
    found = list(items)
    check_may_record(identity, found)
    return history_of(services, identity.owner, found, place) if found else None


async def go_on_from_results(
    services: Services,
    new: NewTurn,
    chat: Chat,
    before: Turn | None,
    items: Sequence[PastItem],
    key: IdempotencyKey | None,
    place: str,
) -> Exchange | None:
    """Records a history that ends in results of calls, and starts a model call that continues from these results. The
    history follows the answer `before`. Without `before`, the history begins a new chat, or a branch at the root of the
    chat. Returns None if the history does not end in complete pairs of call and result. Raises RequestRefused, and
    Conflict while the answer `before` is running.
    """
    calls = {item.id for item in items if isinstance(item, PastCall)}
    results = {item.call for item in items if isinstance(item, PastResult)}
    if not items or not isinstance(items[-1], PastResult) or items[-1].call not in calls or calls - results:
        return None
    CALLER.get().require("chat")
    history = history_of(services, chat.owner, items, place, goes_on=True, follows=before is not None)
    target = Target(chat.owner, chat.id, before.id if before else None)
    if before is None:
        with suppress(NotFound):
            return await post_behind(services, new, target, key, history)
        with suppress(Conflict):  # another request has just created the chat
            return await post_in_seeded_chat(services, new, chat, key, history)
    return await post_behind(services, new, target, key, history)


async def post_behind_items(
    services: Services,
    new: NewTurn,
    target: Target,
    key: IdempotencyKey | None,
    items: Iterable[PastItem],
    place: str,
) -> Exchange | None:
    """Records the items that a client sent after an answer, and posts a message behind them. Returns None if no item is
    part of an answer, because the chat already has the user's messages then. Raises RequestRefused, and Conflict while
    the answer is running.
    """
    found = list(items)
    calls = {item.id for item in found if isinstance(item, PastCall)}
    unknown = [item for item in found if not isinstance(item, PastResult) or item.call in calls]
    if not any(isinstance(item, PastText | PastCall) for item in unknown):
        return None
    check_may_record(CALLER.get(), unknown)
    history = history_of(services, target.owner, unknown, place, follows=True)
    return await post_behind(services, new, target, key, history)


def past_answer(path: Sequence[Turn], items: Iterable[PastItem], place: str) -> Turn | None:
    """Returns the answer of the path at the position where these items end, if the path's chat began with a recorded
    history of this length. Raises RequestRefused.
    """
    count = sum(1 for _ in _exchanges_of(items, place))
    is_whole = path[0].parent_id is None and 0 < 2 * count <= len(path)
    return path[2 * count - 1] if is_whole and is_recorded(path[2 * count - 1]) else None


def is_recorded(turn: Turn) -> bool:
    """Returns whether the answer was recorded from a client's history. A recorded answer ends at the time of its
    creation; an answer that a model writes here takes time.
    """
    return turn.role == "assistant" and turn.created_at == turn.ended_at


def spoken(path: Sequence[Turn]) -> Sequence[Turn]:
    """Returns the path without placeholder messages. A placeholder comes before a recorded history that starts with an
    answer. A placeholder without blocks comes before an answer that continues from results.
    """
    began = len(path) > 1 and is_recorded(path[1]) and [block.text for block in path[0].blocks] == [_NO_MESSAGE]
    return [turn for turn in (path[1:] if began else path) if turn.blocks or turn.role == "assistant"]


@dataclass(slots=True)
class _Past:
    """An exchange that is being built: the message's blocks in the form of NewTurn, and the answer's blocks with their
    rounds.
    """

    message: list[dict[str, Any]] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    stop_reasons: list[str] = field(default_factory=list)
    open: dict[str, str] = field(default_factory=dict)  # calls without a result, and their names

    def add(
        self,
        type: str,
        text: str,
        id: str | None = None,
        name: str | None = None,
        *,
        data: str | None = None,
        error: bool = False,
    ) -> None:
        if type != TOOL_RESULT and (not self.blocks or self.blocks[-1].type == TOOL_RESULT):
            self.stop_reasons.append("end_turn")
        if type == TOOL_USE:
            self.stop_reasons[-1] = "tool_use"
            self.open[id or ""] = name or ""
        round, index = len(self.stop_reasons), len(self.blocks)
        self.blocks.append(Block(index, round, 1, type, text, data, tool_use_id=id, name=name, is_error=error))

    def answer(self, id: str, text: str, *, error: bool = False) -> None:
        """Adds the result of a call. Drops a result without its call, because no provider accepts such a result."""
        if (name := self.open.pop(id, None)) is not None:
            self.add(TOOL_RESULT, text, id, name, error=error)

    def close(self) -> None:
        for id in list(self.open):
            self.answer(id, "This call has no result.", error=True)


def _exchanges_of(items: Iterable[PastItem], place: str) -> Iterator[_Past]:
    """Groups the items into exchanges, and gives every call a result. Raises RequestRefused."""
    now = _Past()
    for item in items:
        match item:
            case PastMessage(blocks=blocks):
                if now.blocks:
                    now.close()
                    yield now
                    now = _Past()
                now.message += blocks
            case PastText(text=text):
                if text.strip():
                    now.close()
                    now.add(TEXT, text)
            case PastCall(id=id, name=name, arguments=arguments):
                if not id or not name or len(id) > _LONGEST_ID:
                    detail = f"`{place}` must have calls with a `name` and an id of at most {_LONGEST_ID} characters."
                    raise RequestRefused(detail, field=place)
                if now.blocks and now.blocks[-1].type == TOOL_RESULT:
                    now.close()
                now.add(TOOL_USE, arguments, id, name)
            case PastResult(call=call, text=text, is_error=is_error):
                now.answer(call, text, error=is_error)
            case PastBlock(type=type, data=data, text=text, id=id, name=name):
                if now.blocks and now.blocks[-1].type == TOOL_RESULT:
                    now.close()
                now.add(type, text, id, name, data=data)
    now.close()
    if now.message or now.blocks:
        yield now


async def _load(
    services: Services, owner: str, pasts: Sequence[_Past], place: str, *, follows: bool
) -> Sequence[PastExchange]:
    """Stores the bytes of files as uploads, and returns the exchanges in the form of rows. Raises RequestRefused."""
    exchanges, contents = [], Contents(services.http.max_turn_bytes)
    for past in pasts:
        blocks: Sequence[Block] = ()
        if past.message or not follows:  # between two answers, the message is empty
            new = checked_turn({"blocks": past.message or [{"type": "text", "text": _NO_MESSAGE}]})
            allowed = await allowed_blocks(new.blocks, owner, services)
            blocks = await user_blocks(allowed, owner, services, contents=contents)
        for block in past.blocks:
            for text in (block.tool_use_id, block.name, block.text):
                if text and (problem := unstorable(text)):
                    raise RequestRefused(f"`{place}` {problem}, which cannot be stored; remove it.", field=place)
            contents.add_text(block.text, place)
        texts = [block.text for block in blocks if block.text]
        answer = [await _allowed(block, owner, services) for block in past.blocks]
        exchanges.append(PastExchange(blocks, answer, past.stop_reasons, title_from(texts[0]) if texts else None))
    return exchanges


async def _allowed(block: Block, owner: str, services: Services) -> Block:
    """Returns a block of an answer. A result of a tool passes the guards first, which may change its text."""
    if block.type != TOOL_RESULT:
        return block
    text = await allowed_text(block.text, owner, services, "tool_result")
    return block if text == block.text else replace(block, text=text, data=None)
