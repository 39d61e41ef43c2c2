"""Identities: the result of every authentication. Later code knows the caller only by the identity."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, get_args
from uuid import UUID

from turnstream.domain.errors import Forbidden

Scope = Literal["read", "send", "chat", "approve", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
# The options of a turn that a credential may fix for all turns that it creates.
FIXABLE = ("model", "system_prompt", "params", "tools", "limits")
# The rights that people have over their own data: `chat` includes `send`. Only `admin` reaches other owners.
OF_A_PERSON: frozenset[Scope] = frozenset({"read", "chat", "approve"})
LONGEST_OWNER = 255
# The owner of all rows while the server requires no token.
LOCAL_OWNER = "local"
# Suffixes that a move adds to owners' names (arriving_name, departed_name). No request reaches rows of such an owner.
_OF_A_MOVE = re.compile(r" \((arriving|moved to [^()]*)\)\Z")


@dataclass(frozen=True, slots=True)
class Identity:
    """The owner of a request, and the rights of its credential. `credential` is the id of the credential, if it has an
    id; `plan` and `cell` are the plan and the cell that the credential names. A bound credential reaches only its
    `chat` or `turn`. `folder` is the only folder of documents that a restricted credential reaches. `fixed` has options
    for all turns of the credential, in the form of the API: members of `FIXABLE`. `roles` are the roles that the
    credential names: a policy may name roles as approvers. If the request is for a chat of another owner, `member` is
    the owner of the credential, and `owner` is the owner of the chat. Raises ValueError for values that rows cannot
    store.
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
        """The caller in the audit trail: the id of the credential, or the owner if the credential has no id."""
        return self.credential or f"owner:{self.person}"

    @property
    def principals(self) -> tuple[str, ...]:
        """The names by which a policy may make the caller an approver."""
        return (f"person:{self.person}", *(f"role:{role}" for role in sorted(self.roles)))

    @property
    def is_bound(self) -> bool:
        """Whether the credential reaches only one chat or turn."""
        return self.chat is not None or self.turn is not None

    @property
    def is_restricted(self) -> bool:
        """Whether messages and turns of the credential reach only a part of the owner's data."""
        return self.is_bound or "chat" not in self.scopes

    @property
    def is_whole(self) -> bool:
        """Whether the credential has all rights of a person, without a restriction."""
        return self.scopes >= OF_A_PERSON and not self.is_restricted and not self.fixed

    @property
    def documents(self) -> str | None:
        """The path prefix of the documents that messages of the credential may name and tools of its turns may read:
        empty for every document, None for no document.
        """
        if not self.is_restricted:
            return ""
        return None if self.folder is None else f"{self.folder}/"

    def has_expired(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    def require_reach(self, chat: UUID | None, turn: UUID | None = None) -> None:
        """Raises Forbidden unless the credential reaches the chat and the turn or, without `turn`, the whole chat."""
        if self.chat not in {None, chat}:
            raise Forbidden(f"{'A member' if self.member else 'The token'} reaches only the chat {self.chat}.")
        if self.turn not in {None, turn}:
            raise Forbidden(f"The token reaches only the turn {self.turn}, not the rest of its chat.")

    def require(self, *scopes: Scope) -> None:
        """Raises Forbidden unless the credential has one of `scopes`."""
        accepted: set[Scope] = {*scopes, "chat"} if "send" in scopes else {*scopes}
        if not self.scopes & accepted:
            needed = " or ".join(f"`{scope}`" for scope in scopes)
            has = ", ".join(f"`{scope}`" for scope in SCOPES if scope in self.scopes) or "none"
            raise Forbidden(f"The call needs the scope {needed}; the credential of the request has {has}.", scopes)


def arriving_name(owner: str) -> str:
    """Returns the owner's temporary name in the new cell, for rows that a move copies in advance."""
    return f"{owner} (arriving)"


def departed_name(owner: str, cell: str) -> str:
    """Returns the owner's name in the old cell after a move to `cell`, for the rows that remain until their erasure."""
    return f"{owner} (moved to {cell})"


def owner_before_move(name: str) -> str:
    """Returns the owner's name without the suffix of a move; a name without such a suffix is unchanged."""
    return _OF_A_MOVE.sub("", name)


def known_scopes(names: Collection[str]) -> frozenset[Scope]:
    """Returns the scopes in `names` that this version knows; a later version may have stored other scopes."""
    return frozenset(scope for scope in SCOPES if scope in names)


def checked_scopes(names: Collection[str]) -> list[Scope]:
    """Returns the scopes in the order of `SCOPES`. Raises ValueError for an unknown name."""
    if unknown := sorted(set(names) - set(SCOPES)):
        raise ValueError(f"{unknown[0]!r} is no scope; scopes are {', '.join(SCOPES)}")
    return [scope for scope in SCOPES if scope in names]
