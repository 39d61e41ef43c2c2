"""Creates the answer to a request for a message: posts the message after its history, or stores the results of waiting
calls.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from turnstream.api.actions import decisions_of
from turnstream.api.caller import with_fixed
from turnstream.api.exchange import cancel_turn, post_message
from turnstream.api.services import Services
from turnstream.domain.errors import RequestRefused
from turnstream.domain.identity import Identity
from turnstream.domain.turns import Turn, TurnRequest
from turnstream.extensions.anthropic_api.errors import ThreadRefused
from turnstream.extensions.anthropic_api.inputs import AskedOptions, NewMessages, new_turn
from turnstream.libraries.dialects.chats import new_chat
from turnstream.libraries.dialects.histories import (
    NO_MESSAGE,
    HistoryPlace,
    PastResult,
    check_may_record,
    check_prefill,
    continue_answer,
    digest_of,
    find_place,
    history_of,
)
from turnstream.libraries.dialects.past_exchanges import histories_of
from turnstream.libraries.dialects.posting import post_in_seeded_chat
from turnstream.libraries.dialects.results import last_ask, part_behind, still_waiting, store_results, was_answered_so
from turnstream.storage.chats.exchanges import IdempotencyKey, Target

_PLACE = "messages"


@dataclass(frozen=True, slots=True)
class MessagePosting:
    """One request for a message. If `stores` is false and the message begins a chat, the chat is deleted after the
    answer.
    """

    services: Services
    identity: Identity
    options: AskedOptions
    input: NewMessages
    key: IdempotencyKey | None
    stores: bool = True

    async def respond(self, continued: HistoryPlace | None = None) -> tuple[Turn, int]:
        """Returns the turn that answers, and the part of the turn that is the answer. `continued` is the answer before
        the message, if the request names it. Raises RequestRefused.
        """
        found, input = continued, self.input
        if not (input.blocks or input.results):
            return await self._continue(), 0
        if input.last_answer and input.new:
            found = await find_place(self.services, self.identity, input.history, input.last_answer)
        if found is None:
            answer = await self._post_in_new_chat(), 0
        elif input.results:
            turn = await self.services.storage.turns.get(self.identity.owner, found.chat, found.turn)
            if (answered := await self._answer(turn)) is None and continued is not None:
                raise ThreadRefused("No call of that message waits for these results.", "thread_already_continued")
            answer = answered or (await self._post_in_new_chat(), 0)
        else:
            answer = await self._post(found), 0
        if continued is None:
            digest = await digest_of(input.items)
            await histories_of(self.services).keep(self.identity.owner, digest, answer[0].id)
        return answer

    async def _post(self, place: HistoryPlace) -> Turn:
        """Posts the message after the answer at `place`."""
        self.identity.require("send")
        owner = self.identity.owner
        _check_nothing_waits(await self.services.storage.turns.get(owner, place.chat, place.turn), ())
        new, target = new_turn(self.options, self.input.blocks), Target(owner, place.chat, place.turn)
        return (await post_message(self.services, new, target, self.key)).assistant_turn

    async def _post_in_new_chat(self) -> Turn:
        """Records the history in a new chat, and posts the message after it."""
        self.identity.require("send")
        self.identity.require_reach(None)
        input, history, goes_on = self.input, None, not self.input.blocks
        results = [item for item in input.new if isinstance(item, PastResult)] if input.results else []
        if past := [*input.history, *input.last_answer, *results]:
            check_may_record(self.identity, past)
            history = history_of(self.services, self.identity.owner, past, _PLACE, goes_on=goes_on)
        new = new_turn(self.options, [NO_MESSAGE] if goes_on else input.blocks)
        seeded = await post_in_seeded_chat(self.services, new, new_chat(self.identity.owner), self.key, history)
        if not self.stores:
            await histories_of(self.services).keep_unstored(seeded.assistant_turn, self.identity.owner)
        return seeded.assistant_turn

    async def _continue(self) -> Turn:
        """Continues the answer at the end of the messages. If no chat has the history, continues it in a new chat."""
        services, identity, input = self.services, self.identity, self.input
        identity.require("send")
        new = new_turn(self.options, [NO_MESSAGE])
        check_prefill(services, new, input.last_answer, _PLACE)
        history, answer = input.history, input.last_answer
        turn = None
        if self.stores:
            turn = await continue_answer(services, identity, new, history, answer, self.key, _PLACE)
        turn = turn or await self._post_in_new_chat()
        await histories_of(services).keep(identity.owner, await digest_of(history), turn.id)
        return turn

    # --- results of calls --------------------------------------------------------------------------------------------

    async def _answer(self, turn: Turn) -> tuple[Turn, int] | None:
        """Stores the results. Returns the turn that waited for them, and the part of the turn that follows them.
        Returns None if the turn's calls do not wait for these results. A message beside the results becomes a steer of
        the running turn.
        """
        services, identity = self.services, self.identity
        identity.require("chat")
        decisions = await decisions_of(self.input.results, turn, identity.owner, services, _PLACE)
        asks = [last_ask(turn, decision.tool_use_id) for decision in decisions]
        asked = [ask for ask in asks if ask is not None and ask.kind == "client"]
        if len(asked) < len(asks):
            return None
        part = part_behind(turn, asked)
        if all(ask.answer is not None for ask in asked):
            return (turn, part) if was_answered_so(asked, decisions) else None
        if turn.ended:
            return None
        _check_nothing_waits(turn, [decision.tool_use_id for decision in decisions])
        if not await self._is_as_asked(turn):
            await cancel_turn(services, identity.owner, turn.chat_id, turn.id)
            return None
        new = new_turn(self.options, self.input.blocks) if self.input.blocks else None
        return await store_results(services, identity, turn, decisions, self.key, new), part

    async def _is_as_asked(self, turn: Turn) -> bool:
        """Whether this request has the same options as the turn. Some clients change their tools between two calls."""
        assert turn.request is not None
        chat = await self.services.storage.chats.get(self.identity.owner, turn.chat_id)
        # Encrypts the secrets of the request in the same way as the secrets of the turn, so that equal secrets have
        # equal ciphertexts.
        new = await self.services.resolver.sealed(self.identity.owner, with_fixed(new_turn(self.options, [NO_MESSAGE])))
        return _essence(self.services.resolver.resolve(new, chat, turn.request)) == _essence(turn.request)


def _essence(request: TurnRequest) -> tuple[object, ...]:
    """Returns the parts of a request that affect the next model call. A tool choice that forces a call is left out,
    because it applies only to the first model call. `max_tokens` is left out, because clients vary it.
    """
    params = {name: value for name, value in request.params.items() if name != "max_tokens"}
    choice = {name: value for name, value in (params.pop("tool_choice", None) or {}).items() if name != "name"}
    choice["type"] = "none" if choice.get("type") == "none" else "auto"
    return request.model, request.system, request.tools, request.provider_tools, request.output, params, choice


def _check_nothing_waits(turn: Turn, answered: Sequence[str]) -> None:
    """Raises RequestRefused if a call of the turn would still wait after the calls in `answered` have their results."""
    if call := still_waiting(turn, answered):
        detail = f"`messages` must have a `tool_result` for each call that waits; {call} has none."
        raise RequestRefused(detail, field="messages")
