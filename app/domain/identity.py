"""Identities: what every way to authenticate gives, and all that the code behind it sees of the caller."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args
from uuid import UUID

from app.domain.errors import Forbidden

Scope = Literal["read", "chat", "approve", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
# What a person may do with what is theirs. `admin` reaches other owners.
OF_A_PERSON: frozenset[Scope] = frozenset({"read", "chat", "approve"})
LONGEST_OWNER = 255
# Whose everything is while a server needs no token.
LOCAL_OWNER = "local"
# Ends of the names under which a move keeps an owner's rows out of reach (arriving_name, departed_name).
_OF_A_MOVE = re.compile(r" \((arriving|moved to [^()]*)\)\Z")


@dataclass(frozen=True, slots=True)
class Identity:
    """The owner on whose behalf a request is made, and what its credential allows. `credential` is the credential's id
    where it has one, `plan` the name of the limits that it comes with, `cell` the cell that it names. A `chat` or a
    `turn` is all that a bound credential reaches. Raises ValueError for values that no row can hold.
    """

    owner: str
    scopes: frozenset[Scope] = OF_A_PERSON
    expires_at: datetime | None = None
    credential: str | None = None
    plan: str | None = None
    chat: UUID | None = None
    turn: UUID | None = None
    cell: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.owner) <= LONGEST_OWNER or not self.owner.isprintable():
            raise ValueError(f"an owner must have 1 to {LONGEST_OWNER} printable characters")
        if _OF_A_MOVE.search(self.owner):
            raise ValueError(
                "an owner must not end with ` (arriving)` or ` (moved to …)`: moves between cells give such names to"
                " rows that nobody may reach"
            )
        if self.expires_at is not None and self.expires_at.tzinfo is None:
            raise ValueError("`expires_at` must have a time zone")
        object.__setattr__(self, "scopes", frozenset(checked_scopes(self.scopes)))

    @property
    def is_bound(self) -> bool:
        """Whether the credential reaches one chat or turn alone."""
        return self.chat is not None or self.turn is not None

    def has_expired(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    def require_reach(self, chat: UUID | None, turn: UUID | None = None) -> None:
        """Raises Forbidden where the credential is bound to another chat or turn, or to one alone."""
        if self.chat not in {None, chat}:
            raise Forbidden(f"The token reaches the chat {self.chat} alone.")
        if self.turn not in {None, turn}:
            raise Forbidden(f"The token reaches the turn {self.turn} alone, not what is around it.")

    def require(self, *scopes: Scope) -> None:
        """Raises Forbidden unless the credential has one of `scopes`."""
        if not self.scopes.intersection(scopes):
            needed = " or ".join(f"`{scope}`" for scope in scopes)
            has = ", ".join(f"`{scope}`" for scope in SCOPES if scope in self.scopes) or "none"
            raise Forbidden(f"The call needs the scope {needed}; the credential of the request has {has}.", scopes)


def arriving_name(owner: str) -> str:
    """The owner of what a move has copied ahead, in the new cell."""
    return f"{owner} (arriving)"


def departed_name(owner: str, cell: str) -> str:
    """The owner of what a move to `cell` leaves behind in the old cell, until it is erased."""
    return f"{owner} (moved to {cell})"


def known_scopes(names: Collection[str]) -> frozenset[Scope]:
    """The scopes among `names`; a later version may know others."""
    return frozenset(scope for scope in SCOPES if scope in names)


def checked_scopes(names: Collection[str]) -> list[Scope]:
    """The scopes in the order of `SCOPES`. Raises ValueError for a name that is none."""
    if unknown := sorted(set(names) - set(SCOPES)):
        raise ValueError(f"{unknown[0]!r} is no scope; scopes are {', '.join(SCOPES)}")
    return [scope for scope in SCOPES if scope in names]
