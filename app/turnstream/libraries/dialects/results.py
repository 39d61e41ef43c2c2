"""Stores results that clients send for the calls of a turn. A call is waiting, or has a stored result already."""

from collections.abc import Collection, Sequence
from typing import Any

from pydantic import ValidationError

from turnstream.api.actions import store_answers
from turnstream.api.attachments import steer_blocks
from turnstream.api.caller import check_turn, with_fixed
from turnstream.api.exchange import admit
from turnstream.api.http.errors import Invalid
from turnstream.api.http.validation import refusals
from turnstream.api.schemas.requests import NewTurn
from turnstream.api.schemas.tools import ResultIn
from turnstream.api.services import Services, count_writes
from turnstream.domain.asks import Ask
from turnstream.domain.identity import Identity
from turnstream.domain.turns import Turn
from turnstream.storage.chats.actions import Decision
from turnstream.storage.chats.exchanges import IdempotencyKey

Json = dict[str, Any]


def last_ask(turn: Turn, call: str) -> Ask | None:
    return next((ask for ask in reversed(turn.asks) if ask.tool_use_id == call), None)


def part_behind(turn: Turn, asks: Sequence[Ask]) -> int:
    """Returns the number of the part that follows the answers to these asks. Waits are in the order of rounds."""
    last = max(ask.round for ask in asks)
    return len({ask.round for ask in turn.asks if ask.is_marked and ask.round <= last})


def was_answered_so(asks: Sequence[Ask], decisions: Sequence[Decision]) -> bool:
    """Returns whether the same answers are stored already: the response to the first request may have been lost."""
    given = [ask.answer and (ask.answer.kind, ask.answer.text) for ask in asks]
    return given == [(decision.answer.kind, decision.answer.text) for decision in decisions]


def still_waiting(turn: Turn, answered: Collection[str] = ()) -> str | None:
    """Returns a call of the turn that waits for an answer and is not in `answered`, or None."""
    if turn.status != "waiting":
        return None
    calls = (ask.tool_use_id for ask in turn.asks if ask.answer is None)
    return next((call for call in calls if call not in answered), None)


def check_may_answer(identity: Identity, decisions: Sequence[Decision]) -> None:
    """A result of a call needs the scope `chat`, any other answer `approve`. Raises Forbidden."""
    for decision in decisions:
        identity.require("chat" if decision.answer.kind == "result" else "approve")


def result_with_files(call: str, blocks: Sequence[Json], place: str, *, is_error: bool = False) -> ResultIn:
    """Returns the result of a call from blocks in the form of NewTurn, without empty texts. `place` is the field of the
    result. Raises Invalid.
    """
    given = [block for block in blocks if block["type"] != "text" or block["text"]]
    try:
        return ResultIn.model_validate({"type": "result", "tool_use_id": call, "blocks": given, "is_error": is_error})
    except ValidationError as error:
        found = refusals(ResultIn, error, place.split("."))
        ours, theirs = f"{place}.blocks", f"{place}.content"
        raise Invalid([{name: text.replace(ours, theirs) for name, text in each.items()} for each in found]) from None


async def store_results(
    services: Services,
    identity: Identity,
    turn: Turn,
    decisions: Sequence[Decision],
    key: IdempotencyKey | None = None,
    new: NewTurn | None = None,
) -> Turn:
    """Stores the answers. A message `new`, if any, becomes a steer of the running turn. Raises RequestRefused."""
    check_may_answer(identity, decisions)
    if new is None:
        await count_writes(services, identity.owner, 1)
        return await store_answers(services, identity, turn, decisions, key)
    identity.require("send")
    check_turn(turn)
    new = with_fixed(new)
    await admit(services, identity.owner, new, writes=1)  # before the answers: a refusal must store nothing
    return await store_answers(services, identity, turn, decisions, key, steer_blocks(new.blocks))
