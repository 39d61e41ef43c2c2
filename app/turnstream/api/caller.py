"""The credential of the present request: the data that its messages may name and its turns may reach."""

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TypeVar

from pydantic import BaseModel

from turnstream.api.codec import to_json
from turnstream.api.schemas.requests import FixedOptions, TurnOptions
from turnstream.domain.blocks import AUTHOR, Block
from turnstream.domain.errors import Forbidden
from turnstream.domain.identity import Identity
from turnstream.domain.plans import Plan, Plans
from turnstream.domain.turns import Turn, TurnRequest

Options = TypeVar("Options", bound=TurnOptions)

# Set when the request is admitted. Code that stores a message reads it here, so that no handler can leave it out.
CALLER: ContextVar[Identity] = ContextVar("caller")
# The verified token of another issuer in the request. Only that issuer may receive the token, for an exchange.
SUBJECT_TOKEN: ContextVar[str | None] = ContextVar("subject_token", default=None)
# Labels are only for the client: no model receives labels.
_OPTIONS = frozenset(TurnOptions.model_fields) - {"labels"}


@dataclass(frozen=True, slots=True)
class OwnerPlans:
    """The plans of owners, for their requests."""

    plans: Plans

    def of(self, owner: str) -> Plan:
        """The plan of the owner by the credential of the request."""
        return self.plans.of(owner, CALLER.get().plan)


def held_options() -> frozenset[str]:
    """The options that the request may not set, because its credential fixes them. Without the scope `chat`, and for a
    member of the chat, all options: the owner pays, and tools act for the owner.
    """
    caller = CALLER.get()
    return frozenset(caller.fixed) if "chat" in caller.scopes and caller.member is None else _OPTIONS


def check_named(sent: BaseModel, place: str = "") -> None:
    """Raises Forbidden if `sent` sets a forbidden option. `place` is the prefix of its members."""
    held = held_options()
    for name in type(sent).model_fields if held else ():
        if name in held and getattr(sent, name) is not None:
            why = "the token fixes it" if name in CALLER.get().fixed else "the token lacks the scope `chat`"
            if CALLER.get().member:
                why = "the chat has the options of members' turns"
            raise Forbidden(f"`{place}{name}` must be left out: {why}.", field=f"{place}{name}")


def with_fixed(options: Options) -> Options:
    """The options, with the fixed options of the credential. Raises Forbidden for others that it does not allow."""
    check_named(options)
    fixed = CALLER.get().fixed
    if not fixed:
        return options
    values = FixedOptions.model_validate(fixed)
    return options.model_copy(update={name: getattr(values, name) for name in fixed})


def of_caller(request: TurnRequest) -> TurnRequest:
    """The request with the credential's plan, its author, and the documents that its tools may read."""
    caller = CALLER.get()
    return replace(request, plan=caller.plan, documents=caller.documents, author=caller.member)


def with_author(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """The blocks of a message. The first block names its author, unless the author is the owner."""
    author = CALLER.get().member
    if author is None or not blocks:
        return tuple(blocks)
    return replace(blocks[0], notes=to_json({AUTHOR: author}).decode()), *blocks[1:]


def check_turn(turn: Turn | None) -> None:
    """Raises Forbidden if the turn's tools may read more than the credential, because the message could request it."""
    reached, request = CALLER.get().documents, turn.request if turn else None
    if reached != "" and request is not None and request.documents not in {None, reached}:
        raise Forbidden("The credential of the turn reaches more documents than the token of this request.")
