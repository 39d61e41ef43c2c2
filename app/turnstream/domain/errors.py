"""Errors that cross a floor, sorted by who must act.

TurnstreamError
├── RequestRefused        the caller: the request is wrong; has a status, a field and a reason
│   ├── Unauthorized      … has no credential, or one that is not valid
│   ├── Forbidden         … has a credential that does not allow it
│   ├── NotFound          … names nothing the caller may see
│   ├── NoSuchPage        … is for a page that no list has
│   ├── OfAnotherCell     … is of an owner whose rows another cell has
│   ├── Conflict          … does not fit the present state
│   ├── MessageBlocked    … has a message that a guardrail does not allow
│   ├── GuardFailed       … has a message that a guardrail could not check; try again
│   └── TooMany           … must wait: a limit of the owner is reached
├── ProviderError         the provider refused or failed
│   ├── TransientError    … trying again may help (rate limit, overload, 5xx, connection, silence)
│   └── PermanentError    … trying again will not (an invalid request)
│       ├── AccountRefused  … before the operator has settled it (key, rights, balance)
│       └── TooLong       … unless the conversation is shortened first
├── StorageError          Postgres
│   ├── StorageUnavailable  … nobody at once: it is away or busy; accepted work is safe, try again
│   │   ├── Overloaded        … it answers, and requests wait for it already: later
│   │   └── StatementTooLong  … it answers, and this statement took too long: not at once
│   └── StatementRefused  … us: it takes neither the statement nor its values, and would not the next time
├── CannotOpen            the operator: a stored secret needs a key that this server lacks, or was changed
├── ClaimLost             nobody: another attempt owns the turn; stop without touching a row
├── IllegalTransition     us: a bug
└── ConfigError           the operator: a setting is wrong
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

# The causes of a refusal, for programs: a client decides by the code, and shows the sentence to people.
RefusalCode = Literal[
    "call_answered",
    "call_over",
    "conflict",
    "delivered",
    "forbidden",
    "guardrail",
    "idempotency_key_reused",
    "invalid",
    "limit_reached",
    "method_not_allowed",
    "not_found",
    "other_cell",
    "overloaded",
    "server_failed",
    "too_large",
    "turn_running",
    "turn_waiting",
    "unauthorized",
    "unavailable",
    "unknown_cursor",
    "unknown_model",
    "unknown_path",
    "unreadable",
    "unsupported_media_type",
    "version_outdated",
    "withdrawn",
]


class TurnstreamError(Exception):
    """The base of all errors here."""


class RequestRefused(TurnstreamError):
    """The caller must change the request. `field` is the name of the wrong field, if any. A `code` replaces the code of
    the class, if clients may have to distinguish the refusal.
    """

    status = 422
    title = "The request is not valid"
    code: RefusalCode = "invalid"

    def __init__(self, detail: str, *, field: str | None = None, code: RefusalCode | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.field = field
        if code is not None:
            self.code = code

    @property
    def members(self) -> Mapping[str, Any]:
        """Further members of the problem document."""
        return {}


class Unauthorized(RequestRefused):
    """The request has no credential, or an invalid or expired one."""

    status = 401
    title = "Not authorized"
    code = "unauthorized"


class Forbidden(RequestRefused):
    """The credential does not allow the request. A credential with one of `scopes` would."""

    status = 403
    title = "Not allowed"
    code = "forbidden"

    def __init__(self, detail: str, scopes: Sequence[str] = (), *, field: str | None = None) -> None:
        super().__init__(detail, field=field)
        self.scopes = scopes


class NotFound(RequestRefused):
    """The named object does not exist, or the caller may not see it."""

    status = 404
    title = "Not found"
    code = "not_found"


class NoSuchPage(RequestRefused):
    """`before` is not the `next` of a page."""

    status = 400
    title = "The request cannot be read"
    code = "unreadable"

    def __init__(self) -> None:
        super().__init__(
            "`before` must be the `next` of an earlier page; leave it out for the first page.", field="before"
        )


class OfAnotherCell(RequestRefused):
    """The owner belongs to `cell`. This server belongs to `here`, another cell."""

    status = 421
    title = "The owner is in another cell"
    code = "other_cell"

    def __init__(self, cell: str, here: str) -> None:
        super().__init__(f"The owner belongs to the cell {cell}; this server belongs to the cell {here}.")
        self.cell = cell


class Conflict(RequestRefused):
    """The request does not fit the present state."""

    status = 409
    title = "Conflict with the present state"
    code = "conflict"


class MessageBlocked(RequestRefused):
    """A guardrail does not allow the message."""

    title = "The message is not allowed"
    code = "guardrail"


class GuardFailed(RequestRefused):
    """A guardrail could not check the message, and no model may receive an unchecked message."""

    status = 503
    title = "Temporarily unavailable"
    code = "unavailable"


class TooMany(RequestRefused):
    """The owner has reached `limit`. A retry may succeed after `retry_after` seconds."""

    status = 429
    title = "Too many requests"
    code = "limit_reached"

    def __init__(self, detail: str, retry_after: int, limit: str) -> None:
        super().__init__(detail)
        self.retry_after = retry_after
        self.limit = limit

    @property
    def members(self) -> Mapping[str, Any]:
        return {"limit": self.limit}


class ProviderError(TurnstreamError):
    """A model API refused or failed. `type` is the provider's name of the error, `request_id` its id of the call."""

    def __init__(
        self,
        type: str,
        message: str,
        *,
        request_id: str | None = None,
        retry_after: float | None = None,
        busy: bool = False,
    ) -> None:
        super().__init__(f"{type}: {message}")
        self.type = type
        self.message = message
        self.request_id = request_id
        self.retry_after = retry_after
        self.busy = busy

    @property
    def shown(self) -> str:
        """The text that users may read."""
        return self.message


class TransientError(ProviderError):
    """A retry may succeed. `retry_after` is the pause in seconds that the provider asks for. `busy`: the provider has
    no capacity for the call now, because of a rate limit or an overload.
    """


MODEL_NOT_AVAILABLE = "model_not_available"  # no configured provider has the model


class PermanentError(ProviderError):
    """A retry cannot succeed."""


class AccountRefused(PermanentError):
    """The operator's account at the provider does not allow the call, because of its key, rights or balance. Only the
    operator sees the provider's text.
    """

    @property
    def shown(self) -> str:
        return "The server cannot use the model at present; its operator finds the reason in the log."


class TooLong(PermanentError):
    """The request is longer than the model accepts."""


class StorageError(TurnstreamError):
    """Postgres did not execute a statement."""


class StorageUnavailable(StorageError):
    """Postgres is unreachable, or cannot execute the statement now. A retry may succeed."""


class Overloaded(StorageUnavailable):
    """Requests arrive faster than Postgres answers. Another request would only wait behind the others."""


class StatementTooLong(StorageUnavailable):
    """The statement has exceeded its own time limit. Postgres works; an immediate retry would take as long again."""


class StatementRefused(StorageError):
    """Postgres refuses the statement or its values. No retry can succeed. The cause is a bug or another version's
    tables.
    """


class CannotOpen(TurnstreamError):
    """A value or key was encrypted with another key or for another row, or has changed since."""


class ClaimLost(TurnstreamError):
    """Another attempt owns the turn, or the turn has ended. The run stops and writes no row."""


class IllegalTransition(TurnstreamError):
    """The table of states does not allow this change of status. The cause is a bug."""

    def __init__(self, now: str, then: str) -> None:
        super().__init__(f"a turn cannot go from {now} to {then}")


class ConfigError(TurnstreamError):
    """Settings are wrong. Each argument is a sentence with the name of a setting and a right value."""

    def __str__(self) -> str:
        return " ".join(map(str, self.args))


@contextmanager
def errors_named(place: str, kind: type[Exception] = ConfigError) -> Iterator[None]:
    """Turns a ValueError into a ConfigError, or an error of the class `kind`. The text begins with `place`."""
    try:
        yield
    except ValueError as error:
        raise kind(f"{place} {error}") from None


@contextmanager
def errors_collected(problems: list[str]) -> Iterator[None]:
    """Adds the sentences of a ConfigError to `problems`, so that one start shows all mistakes."""
    try:
        yield
    except ConfigError as error:
        problems += error.args
