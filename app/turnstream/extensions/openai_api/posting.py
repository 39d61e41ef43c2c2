"""Creates a response: posts a message after its history, or answers the calls that wait."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from starlette.requests import Request

from turnstream.api.actions import decisions_of
from turnstream.api.exchange import post_message
from turnstream.api.schemas.requests import NewTurn
from turnstream.api.services import Services, identity_of
from turnstream.domain.asks import Ask, AskAnswer
from turnstream.domain.errors import NotFound, RequestRefused
from turnstream.domain.turns import Turn
from turnstream.extensions.openai_api.history import PLACE, past_items
from turnstream.extensions.openai_api.inputs import (
    Input,
    Options,
    new_turn,
    result_of,
    unknown_previous,
)
from turnstream.extensions.openai_api.objects import ResponseId, approval_id
from turnstream.extensions.openai_api.schemas import ApprovalItem, ChatIn, FunctionOutputItem, ResponseIn
from turnstream.libraries.dialects.chats import new_chat
from turnstream.libraries.dialects.histories import (
    NO_MESSAGE,
    PastCall,
    check_may_record,
    check_prefill,
    continue_answer,
    digest_of,
    find_place,
    history_of,
)
from turnstream.libraries.dialects.past_exchanges import histories_of
from turnstream.libraries.dialects.posting import post_in_seeded_chat
from turnstream.libraries.dialects.results import (
    check_may_answer,
    last_ask,
    part_behind,
    still_waiting,
    store_results,
    was_answered_so,
)
from turnstream.storage.chats.actions import Decision
from turnstream.storage.chats.exchanges import IdempotencyKey, Parent, Target


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a response: its chat, or None for a new chat, and the previous response `origin`. `named` is set if
    the request names the response or its conversation, not only items.
    """

    chat: UUID | None = None
    origin: ResponseId | None = None
    named: bool = False


class Posting:
    """One request for a response. Without `stores`, a chat that begins with the response is deleted when the response
    has ended.
    """

    def __init__(
        self,
        request: Request,
        services: Services,
        options: Options,
        input: Input,
        key: IdempotencyKey | None,
        *,
        stores: bool,
    ) -> None:
        self._identity = identity_of(request)
        self._owner = self._identity.owner
        self._services = services
        self._options = options
        self._input = input
        self._key = key
        self._stores = stores

    async def respond(self, place: Place) -> tuple[Turn, int]:
        """Returns the turn that answers, and the number of its part that is the response."""
        if not (self._input.blocks or self._input.answers):
            return await self._continue(place), 0
        if place.named:
            return await self._follow(place) or (await self._post(place), 0)
        histories, input = histories_of(self._services), self._input
        found = None
        if input.last_answer:
            history, answer = past_items(input.history), past_items(input.last_answer)
            found = await find_place(self._services, self._identity, history, answer)
        if found is None and input.origin is not None and not await self._is_edited(input.origin):
            # The input names a part of the conversation by ids, so a digest of the input would not match the history.
            return await self._follow(Place(input.origin.chat, input.origin)) or (await self._post(_FOREIGN), 0)
        place = Place(found.chat, ResponseId(found.chat, found.turn, found.part)) if found else _FOREIGN
        answered = await self._follow(place) or (await self._post(_FOREIGN), 0)
        await histories.keep(self._owner, await digest_of(past_items(input.items)), answered[0].id)
        return answered

    async def _is_edited(self, origin: ResponseId) -> bool:
        """Returns whether the response does not exist, or the history before it differs from the stored history."""
        with suppress(NotFound):
            self._identity.require_reach(origin.chat)
            await self._services.storage.turns.get(self._owner, origin.chat, origin.turn)
            return await histories_of(self._services).is_kept(self._owner, origin.turn)
        return True

    async def _follow(self, place: Place) -> tuple[Turn, int] | None:
        """Answers calls of the response at `place`, or posts a message after it. Returns None if it can do neither."""
        if self._input.answers:
            return await self._answer(place)
        return (await self._post(place), 0) if place.chat else None

    # --- a message ---------------------------------------------------------------------------------------------------

    async def _post(self, place: Place) -> Turn:
        services, owner = self._services, self._owner
        self._identity.require("send")
        goes_on = not self._input.blocks
        if goes_on:
            self._input.blocks = [NO_MESSAGE]
        new = new_turn(services, self._options, self._input, follows=place.origin is not None)
        if place.chat is None:
            return await self._post_in_new_chat(new, goes_on=goes_on)
        parent: Parent = None
        if place.origin is not None:
            before = await self._turn_of(place.origin)
            _check_nothing_waits(before, ())
            parent = before.id
        return (await post_message(services, new, Target(owner, place.chat, parent), self._key)).assistant_turn

    async def _post_in_new_chat(self, new: NewTurn, *, goes_on: bool) -> Turn:
        """Records the history of the input in a new chat, and posts the message after the history."""
        services, owner = self._services, self._owner
        self._identity.require_reach(None)
        history = None
        if self._input.last_answer:
            items = list(past_items([*self._input.history, *self._input.last_answer, *self._input.answers]))
            check_may_record(self._identity, items)
            history = history_of(services, owner, items, PLACE, goes_on=goes_on)
        turn = (await post_in_seeded_chat(services, new, new_chat(owner), self._key, history)).assistant_turn
        if not self._stores:
            await histories_of(services).keep_unstored(turn, owner)
        return turn

    async def _continue(self, place: Place) -> Turn:
        """Continues the answer at the end of the input. Continues it in a new chat if no chat has the history, or if
        the response must not be stored.
        """
        self._identity.require("send")
        self._input.blocks = [NO_MESSAGE]
        new = new_turn(self._services, self._options, self._input, follows=False)
        history, answer = list(past_items(self._input.history)), list(past_items(self._input.last_answer))
        check_prefill(self._services, new, [] if place.named else [*history, *answer], PLACE)
        turn = None
        if self._stores:
            turn = await continue_answer(self._services, self._identity, new, history, answer, self._key, PLACE)
        turn = turn or await self._post_in_new_chat(new, goes_on=True)
        await histories_of(self._services).keep(self._owner, await digest_of(history), turn.id)
        return turn

    async def _turn_of(self, id: ResponseId) -> Turn:
        """Returns the turn of a response. Raises RequestRefused."""
        with suppress(NotFound):
            turn = await self._services.storage.turns.get(self._owner, id.chat, id.turn)
            if turn.role == "assistant":
                return turn
        raise unknown_previous(str(id))

    # --- answers to calls --------------------------------------------------------------------------------------------

    async def _answer(self, place: Place) -> tuple[Turn, int] | None:
        """Stores the answers of the input. Returns the turn, and the number of its part after the answers. A message
        beside the answers becomes a steer of the running turn. Returns None if no call waits for the answers, and the
        input contains the calls.
        """
        services, identity, origin = self._services, self._identity, place.origin
        has_calls = not place.named and self._has_calls()
        if origin is None:
            if has_calls:
                return None
            call = self._input.answers[0]
            name = call.call_id if isinstance(call, FunctionOutputItem) else call.approval_request_id
            detail = f"No tool call found for the output of {name}: name the response that has the call, or send its"
            raise RequestRefused(f"{detail} items.", field="input")
        turn = await self._turn_of(origin)
        if has_calls and not _are_asked(turn, self._input.answers):
            return None
        decisions = await self._decisions(turn)
        if has_calls and not _may_wait(turn, decisions):
            return None
        check_may_answer(identity, decisions)
        asks = _asks_of(turn, decisions)
        part = part_behind(turn, asks)
        if was_answered_so(asks, decisions):
            return turn, part
        if turn.ended and has_calls:
            return None
        if turn.ended:  # not 409, after which the SDKs would retry
            raise RequestRefused(f"No call of {origin} waits for an output any more: it has ended.", field="input")
        _check_nothing_waits(turn, [decision.tool_use_id for decision in decisions])
        new = new_turn(services, self._options, self._input, follows=True) if self._input.blocks else None
        return await store_results(services, identity, turn, decisions, self._key, new), part

    async def _decisions(self, turn: Turn) -> Sequence[Decision]:
        """Returns the decision of each answer, and stores the files of outputs. Raises RequestRefused."""
        outputs = [item for item in self._input.answers if isinstance(item, FunctionOutputItem)]
        if outputs:
            self._identity.require("chat")
        results = [result_of(item, PLACE) for item in outputs]
        decided = iter(await decisions_of(results, turn, self._owner, self._services, PLACE))
        return [
            next(decided) if isinstance(item, FunctionOutputItem) else _decision(turn, item)
            for item in self._input.answers
        ]

    def _has_calls(self) -> bool:
        """Returns whether the input contains the call of each answer."""
        items = [*self._input.history, *self._input.last_answer]
        calls = {item.id for item in past_items(items) if isinstance(item, PastCall)}
        return all(isinstance(item, FunctionOutputItem) and item.call_id in calls for item in self._input.answers)


_FOREIGN = Place()


def _are_asked(turn: Turn, answers: Sequence[FunctionOutputItem | ApprovalItem]) -> bool:
    """Returns whether the turn has asked its client for each of these outputs."""
    asks = [last_ask(turn, item.call_id) for item in answers if isinstance(item, FunctionOutputItem)]
    return len(asks) == len(answers) and all(ask is not None and ask.kind == "client" for ask in asks)


def _may_wait(turn: Turn, decisions: Sequence[Decision]) -> bool:
    """Returns whether the turn has received the same answers, or none, to its asks."""
    asks = [(last_ask(turn, decision.tool_use_id), decision.answer) for decision in decisions]
    given = [(ask.answer, answer) for ask, answer in asks if ask is not None and ask.answer is not None]
    return all((stored.kind, stored.text) == (answer.kind, answer.text) for stored, answer in given)


def _decision(turn: Turn, item: ApprovalItem) -> Decision:
    call = next((block for block in turn.blocks if approval_id(turn, block) == item.approval_request_id), None)
    ask = None if call is None else last_ask(turn, call.tool_use_id or "")
    if ask is None:
        detail = f"No approval has the id {item.approval_request_id}: send that of an `mcp_approval_request`."
        raise RequestRefused(detail, field="input")
    answer = AskAnswer("approve") if item.approve else AskAnswer("deny", item.reason or "")
    return Decision(ask.tool_use_id, ask.digest, answer, "input")


def _asks_of(turn: Turn, decisions: Sequence[Decision]) -> list[Ask]:
    """Returns the ask of each decision. Raises RequestRefused if a call has no ask."""
    asks = [(decision.tool_use_id, last_ask(turn, decision.tool_use_id)) for decision in decisions]
    for call, ask in asks:
        if ask is None:
            detail = f"No call of the response has the id {call}, or it waits for no output."
            raise RequestRefused(detail, field="input")
    return [ask for _, ask in asks if ask is not None]


def _check_nothing_waits(turn: Turn, answered: Sequence[str]) -> None:
    """Raises RequestRefused if a call of the turn would still wait."""
    if call := still_waiting(turn, answered):
        detail = f"No tool output found for function call {call}: send one for each call that waits."
        raise RequestRefused(detail, field="input")


def is_to_be_stored(services: Services, sent: ResponseIn | ChatIn) -> bool:
    """Returns whether to store the response. The request decides, or else the operator's setting for the model. Raises
    RequestRefused.
    """
    resolver = services.resolver
    return resolver.models.check(sent.model or resolver.defaults.model).stores if sent.store is None else sent.store
