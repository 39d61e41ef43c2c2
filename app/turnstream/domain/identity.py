"""Identities: the result of every authentication, and the only description of the caller behind it."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, get_args
from uuid import UUID

from turnstream.domain.errors import Forbidden

Scope = Literal["read", "send", "chat", "approve", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
# The members of a turn's options that a credential may fix for all turns that it posts.
FIXABLE = ("model", "system_prompt", "params", "tools", "limits")
# The rights of a person over their own data: `chat` allows all that `send` does. `admin` reaches other owners.
OF_A_PERSON: frozenset[Scope] = frozenset({"read", "chat", "approve"})
LONGEST_OWNER = 255
# The owner of all rows while a server needs no token.
LOCAL_OWNER = "local"
# Ends of the names under which a move keeps an owner's rows out of reach (arriving_name, departed_name).
_OF_A_MOVE = re.compile(r" \((arriving|moved to [^()]*)\)\Z")


@dataclass(frozen=True, slots=True)
class Identity:
    """The owner on whose behalf a request is made, and what its credential allows. `credential` is the credential's id
    if it has one, `plan` the name of the limits that it comes with, `cell` the cell that it names. A bound credential
    reaches its `chat` or `turn` only. `folder` is the folder of documents that a restricted credential reaches. `fixed`
    are options of all turns that it posts, as the API takes them: members of `FIXABLE`. `roles` are those that the
    credential names: a policy may name them as approvers. `member` is the owner whose credential it is, if the request
    is that of a member of a chat: `owner` is the chat's then. Raises ValueError for values that no row can hold.
    """

    owner: str
    scopes: frozenset[Scope] = OF_A_PERSON
    expires_at: datetime | None = None
    credential: str | None = None
    plan: str | None = None
    chat: UUID | None = None
    turn: UUID | None = None
    cell: str | None = None
    folder: str | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    roles: frozenset[str] = frozenset()
    member: str | None = None

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
        if unknown := self.fixed.keys() - set(FIXABLE):
            raise ValueError(f"`fixed` must have some of {', '.join(FIXABLE)}, not {min(unknown)}")
        object.__setattr__(self, "scopes", frozenset(checked_scopes(self.scopes)))

    @property
    def person(self) -> str:
        """The owner of the credential."""
        return self.member or self.owner

    @property
    def actor(self) -> str:
        """The caller as the audit trail names it: the credential, or the owner of one without an id."""
        return self.credential or f"owner:{self.person}"

    @property
    def principals(self) -> tuple[str, ...]:
        """The names by which a policy may make the caller an approver."""
        return (f"person:{self.person}", *(f"role:{role}" for role in sorted(self.roles)))

    @property
    def is_bound(self) -> bool:
        """Whether the credential reaches one chat or turn alone."""
        return self.chat is not None or self.turn is not None

    @property
    def is_restricted(self) -> bool:
        """Whether its messages and its turns reach less than what the owner has."""
        return self.is_bound or "chat" not in self.scopes

    @property
    def is_whole(self) -> bool:
        """Whether it has all rights of a person over what the owner has, and nothing narrows them."""
        return self.scopes >= OF_A_PERSON and not self.is_restricted and not self.fixed

    @property
    def documents(self) -> str | None:
        """The beginning of the paths of all documents that its messages may name and its turns' tools may read: empty
        for every document, None for none.
        """
        if not self.is_restricted:
            return ""
        return None if self.folder is None else f"{self.folder}/"

    def has_expired(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    def require_reach(self, chat: UUID | None, turn: UUID | None = None) -> None:
        """Raises Forbidden if the credential is bound to another chat or turn, or to one alone."""
        if self.chat not in {None, chat}:
            raise Forbidden(f"{'A member' if self.member else 'The token'} reaches the chat {self.chat} alone.")
        if self.turn not in {None, turn}:
            raise Forbidden(f"The token reaches the turn {self.turn} alone, not what is around it.")

    def require(self, *scopes: Scope) -> None:
        """Raises Forbidden unless the credential has one of `scopes`."""
        accepted: set[Scope] = {*scopes, "chat"} if "send" in scopes else {*scopes}
        if not self.scopes & accepted:
            needed = " or ".join(f"`{scope}`" for scope in scopes)
            has = ", ".join(f"`{scope}`" for scope in SCOPES if scope in self.scopes) or "none"
            raise Forbidden(f"The call needs the scope {needed}; the credential of the request has {has}.", scopes)


def arriving_name(owner: str) -> str:
    """Returns the owner's temporary name in the new cell, for the rows that a move has copied ahead."""
    return f"{owner} (arriving)"


def departed_name(owner: str, cell: str) -> str:
    """Returns the owner's name in the old cell after a move to `cell`, for the rows that remain until their erasure."""
    return f"{owner} (moved to {cell})"


def owner_before_move(name: str) -> str:
    """Returns the owner whose rows a move keeps under this name; any other name as it is."""
    return _OF_A_MOVE.sub("", name)


def known_scopes(names: Collection[str]) -> frozenset[Scope]:
    """The scopes among `names`; a later version may know others."""
    return frozenset(scope for scope in SCOPES if scope in names)


def checked_scopes(names: Collection[str]) -> list[Scope]:
    """The scopes in the order of `SCOPES`. Raises ValueError for a name that is none."""
    if unknown := sorted(set(names) - set(SCOPES)):
        raise ValueError(f"{unknown[0]!r} is no scope; scopes are {', '.join(SCOPES)}")
    return [scope for scope in SCOPES if scope in names]
