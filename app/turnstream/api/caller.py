"""The credential of the current request, which limits the data that its messages may name and its turns may reach."""

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

# The identity of the current request, set when the request is admitted. Code that stores a message reads the identity
# here, so that no handler can forget to pass it.
CALLER: ContextVar[Identity] = ContextVar("caller")
# The request's verified token from another issuer. The server may send it only to that issuer, for a token exchange.
SUBJECT_TOKEN: ContextVar[str | None] = ContextVar("subject_token", default=None)
# Labels are only for the client: no model receives labels.
_OPTIONS = frozenset(TurnOptions.model_fields) - {"labels"}


@dataclass(frozen=True, slots=True)
class OwnerPlans:
    """Finds the plan of an owner for a request."""

    plans: Plans

    def of(self, owner: str) -> Plan:
        """Returns the owner's plan. The credential of the request may name a plan."""
        return self.plans.of(owner, CALLER.get().plan)


def held_options() -> frozenset[str]:
    """Returns the options that the request may not set: those that its credential fixes. Without the scope `chat`, or
    as a member of the chat, the caller may set no option, because the owner pays, and tools act for the owner.
    """
    caller = CALLER.get()
    return frozenset(caller.fixed) if "chat" in caller.scopes and caller.member is None else _OPTIONS


def check_named(sent: BaseModel, place: str = "") -> None:
    """Raises Forbidden if `sent` sets a forbidden option. `place` is the prefix of the names of its fields."""
    held = held_options()
    for name in type(sent).model_fields if held else ():
        if name in held and getattr(sent, name) is not None:
            why = "the token fixes it" if name in CALLER.get().fixed else "the token lacks the scope `chat`"
            if CALLER.get().member:
                why = "the chat has the options of members' turns"
            raise Forbidden(f"`{place}{name}` must be left out: {why}.", field=f"{place}{name}")


def with_fixed(options: Options) -> Options:
    """Adds the credential's fixed options. Raises Forbidden for an option that the credential forbids."""
    check_named(options)
    fixed = CALLER.get().fixed
    if not fixed:
        return options
    values = FixedOptions.model_validate(fixed)
    return options.model_copy(update={name: getattr(values, name) for name in fixed})


def of_caller(request: TurnRequest) -> TurnRequest:
    """Sets the plan, the author and the readable documents of a turn's request from the credential."""
    caller = CALLER.get()
    return replace(request, plan=caller.plan, documents=caller.documents, author=caller.member)


def with_author(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """Notes the author in the first block of a message, unless the author is the owner."""
    author = CALLER.get().member
    if author is None or not blocks:
        return tuple(blocks)
    return replace(blocks[0], notes=to_json({AUTHOR: author}).decode()), *blocks[1:]


def check_turn(turn: Turn | None) -> None:
    """Raises Forbidden if the turn's tools may read documents that the credential cannot: a message could use them."""
    reached, request = CALLER.get().documents, turn.request if turn else None
    if reached != "" and request is not None and request.documents not in {None, reached}:
        raise Forbidden("The credential of the turn reaches more documents than the token of this request.")
