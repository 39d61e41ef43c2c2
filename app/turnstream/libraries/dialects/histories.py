"""Histories that clients send: a digest, the match with stored turns, the matching position in a chat, and the
exchanges to record without a match.

Some messages have ids of turns (`last_answer`), others ids of their client (`key_of`, `posted_with`). A dialect of
messages without ids translates these into items: `find_place` finds the turn behind them, and `history_of` makes
exchanges of them.
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

_MOST_RECORDED = 1000  # exchanges of one history, all written in one transaction
_LONGEST_ID = 256  # characters: an index has the ids of calls
_NO_MESSAGE = "…"  # before an answer at the start of a history: providers need a message


@dataclass(frozen=True, slots=True)
class PastMessage:
    """A message of the user, with its blocks in the form of NewTurn."""

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
    """A block of an answer in a provider's own form, such as a thought with its signature: `data` and `text` as in
    `Block`.
    """

    type: str
    data: str
    text: str = ""
    id: str | None = None
    name: str | None = None


PastItem = PastMessage | PastText | PastCall | PastResult | PastBlock


# --- messages with ids -----------------------------------------------------------------------------------------------


async def turn_of(services: Services, owner: str, chat: UUID, id: str, role: Role) -> Turn | None:
    """The turn of the chat with a client's id, if it has this role."""
    try:
        turn = await services.storage.turns.get(owner, chat, UUID(id))
    except (ValueError, NotFound):
        return None
    return turn if turn.role == role else None


async def last_answer(services: Services, owner: str, chat: UUID, ids: Sequence[str]) -> tuple[Turn | None, int]:
    """The last answer of the chat with one of these ids, and the number of ids up to its id."""
    for place in range(len(ids), 0, -1):
        if turn := await turn_of(services, owner, chat, ids[place - 1], "assistant"):
            return turn, place
    return None, 0


def key_of(protocol: str, *parts: object) -> IdempotencyKey:
    """The key of an exchange from these parts: repeated requests with the same parts have the same key."""
    digest = hashlib.sha256(to_json([str(part) if isinstance(part, UUID) else part for part in parts])).digest()
    return IdempotencyKey(f"{protocol} {digest.hex()}", digest)


async def posted_with(services: Services, owner: str, key: IdempotencyKey | None) -> Turn | None:
    """The user turn of a message with this key."""
    with suppress(RequestRefused):
        exchange = await services.storage.exchanges.find(owner, key) if key else None
        return exchange.user_turn if exchange else None
    return None


# --- items without ids -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HistoryPlace:
    """The answer at the end of a history, or its part before a wait."""

    chat: UUID
    turn: UUID
    part: int


async def digest_of(items: Iterable[PastItem]) -> bytes:
    """The digest of a history, equal for all its equivalent forms. Runs in a thread: thousands of items take long to
    measure and to encode.
    """

    def digest() -> bytes:
        # Blocks of providers are excluded: some clients drop them.
        return hashlib.sha256(to_json([_canonical(item) for item in items if not isinstance(item, PastBlock)])).digest()

    return await asyncio.to_thread(digest)


async def find_place(
    services: Services, identity: Identity, history: Iterable[PastItem], answer: Iterable[PastItem]
) -> HistoryPlace | None:
    """The newest turn behind the same history, with the same answer, if the caller may read its chat."""
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
    """Returns the position in a chat where a model continues the text `answer`, and the items to record before it. If
    an answer of the chat ends with that text, no item is recorded. Returns None if no chat has the history. A different
    text (after an edit, or the beginning of a running answer) becomes a branch beside that answer.
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
    """The turns behind this history, newest first, if the caller may read their chats."""
    for chat, id in await histories_of(services).find(identity.owner, await digest_of(history)):
        if identity.chat in {None, chat}:
            try:
                turn = await services.storage.turns.get(identity.owner, chat, id)
            except NotFound:  # deleted
                continue
            yield turn


async def _question_of(services: Services, owner: str, turn: Turn) -> tuple[Turn, Sequence[Turn]]:
    """Returns the message before the turn, and the answers that the turn continues: each is followed by a message
    without blocks.
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
    """The text of the answers before a continuation: clients send all as one answer."""
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
        """`output` is the output of a structured turn: the only text of such a turn at a client."""
        texts = [closed.block.text for closed in part if isinstance(closed, Close) and closed.block.type == TEXT]
        text = "".join(texts) if output is None else output
        return cls("".join(text.split()), tuple(call.tool_use_id for call in calls_of_client(part)))


async def _answers_of(services: Services, turn: Turn) -> list[_PastAnswer]:
    """The present parts of the answer. The event loop runs other tasks in between."""
    view = current_view(services, turn)
    projection, written, portions = Projection(view.turn), view.block_being_written(), Portions()
    for mark in view.marks.copy():  # at one moment
        projection.take(mark)
        await portions.pause()
    if written is not None:
        projection.close(written)
    is_structured = view.turn.request is not None and view.turn.request.output is not None
    output = (output_of(view.turn) or "") if is_structured else None
    return [_PastAnswer.of_part(projection.part(part), output) for part in range(projection.waits + 1)]


def _canonical(item: PastMessage | PastText | PastCall | PastResult) -> list[Any]:
    """Stored digests: the same history must have the same digest in every version."""
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

# The message before an answer that continues from results of calls. This message is not stored.
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
    """Raises Forbidden if the credential may only send messages: a history's answers are not by a person. A greeting is
    allowed: texts before the first message, which a page shows to everybody.
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
    """Creates the turn that continues `answer`, in the chat with this history. None if no chat has it. Raises
    RequestRefused.
    """
    found = await find_continuation(services, identity, history, answer)
    if found is None:
        return None
    target, items = found
    check_may_record(identity, items)
    past = history_of(services, identity.owner, items, place, goes_on=True)
    return (await post_behind(services, new, target, key, past)).assistant_turn


def seed_of(services: Services, identity: Identity, items: Iterable[PastItem], place: str) -> History | None:
    """The history of a chat whose first messages came from its client. Raises RequestRefused."""
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
    """Records a history that ends in results of calls, and starts a model call behind it. The history follows the
    answer `before`. Without `before`, the history begins a new chat, or a branch at the root of the chat. Returns None
    if the history does not end in complete pairs of call and result. Raises RequestRefused, and Conflict while the
    answer before runs.
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
    """Posts a message behind an answer and the client's items after that answer, which are recorded. Returns None if no
    item is part of an answer: the chat has the messages of its user. Raises RequestRefused, and Conflict while the
    answer runs.
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
    """Returns the answer at the end of these items, if the chat of the path began with them. Raises RequestRefused."""
    count = sum(1 for _ in _exchanges_of(items, place))
    is_whole = path[0].parent_id is None and 0 < 2 * count <= len(path)
    return path[2 * count - 1] if is_whole and is_recorded(path[2 * count - 1]) else None


def is_recorded(turn: Turn) -> bool:
    """Whether the answer was recorded from a client's history. An answer of a model here takes time."""
    return turn.role == "assistant" and turn.created_at == turn.ended_at


def spoken(path: Sequence[Turn]) -> Sequence[Turn]:
    """The path without placeholder messages: a first one, before a recorded history that starts with an answer, and
    those without blocks, before continuations of results.
    """
    began = len(path) > 1 and is_recorded(path[1]) and [block.text for block in path[0].blocks] == [_NO_MESSAGE]
    return [turn for turn in (path[1:] if began else path) if turn.blocks or turn.role == "assistant"]


@dataclass(slots=True)
class _Past:
    """An exchange: the message in the form of NewTurn, and its answer's blocks in rounds."""

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
        """Adds the result of a call. A result without its call is dropped: no provider accepts it."""
        if (name := self.open.pop(id, None)) is not None:
            self.add(TOOL_RESULT, text, id, name, error=error)

    def close(self) -> None:
        for id in list(self.open):
            self.answer(id, "This call has no result.", error=True)


def _exchanges_of(items: Iterable[PastItem], place: str) -> Iterator[_Past]:
    """Every call gets a result. Raises RequestRefused."""
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
    """Returns the exchanges in the form of rows. Bytes of files become uploads. Raises RequestRefused."""
    exchanges, contents = [], Contents(services.http.max_turn_bytes)
    for past in pasts:
        blocks: Sequence[Block] = ()
        if past.message or not follows:  # an answer behind another one has an empty message before it
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
    """A block of an answer; a tool's result after the guards."""
    if block.type != TOOL_RESULT:
        return block
    text = await allowed_text(block.text, owner, services, "tool_result")
    return block if text == block.text else replace(block, text=text, data=None)
