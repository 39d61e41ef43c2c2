"""Errors that pass between floors of the code, sorted by who must act.

TurnstreamError
├── RequestRefused        the caller: the request is wrong; the error has a status, a field and a reason
│   ├── Unauthorized      … the request has no credential, or an invalid credential
│   ├── Forbidden         … the credential does not allow the request
│   ├── NotFound          … the named object does not exist, or the caller may not see it
│   ├── NoSuchPage        … the request asks for a page that no list has
│   ├── OfAnotherCell     … the owner's rows are in another cell
│   ├── Conflict          … the request does not fit the present state
│   ├── MessageBlocked    … a guardrail does not allow the message
│   ├── GuardFailed       … a guardrail could not check the message; a retry may succeed
│   └── TooMany           … the owner has reached a limit and must wait
├── ProviderError         the provider refused or failed
│   ├── TransientError    … a retry may succeed (rate limit, overload, 5xx, connection, silence)
│   └── PermanentError    … a retry cannot succeed (an invalid request)
│       ├── AccountRefused  … until the operator has repaired the account (key, rights, balance)
│       └── TooLong       … unless the conversation is shortened first
├── StorageError          Postgres did not execute a statement
│   ├── StorageUnavailable  … nobody: Postgres is unreachable or busy; accepted work is safe, and a retry may succeed
│   │   ├── Overloaded        … Postgres answers, but other requests already wait: retry later
│   │   └── StatementTooLong  … Postgres answers, but this statement took too long: do not retry at once
│   └── StatementRefused  … us: Postgres refuses the statement or its values, and would refuse a retry too
├── CannotOpen            the operator: a stored secret was changed, or needs a key that this server lacks
├── ClaimLost             nobody: another attempt owns the turn, so the run stops and writes no row
├── IllegalTransition     us: a bug
└── ConfigError           the operator: a setting is wrong
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

# The codes of refusals. A client program decides by the code, and shows the sentence of the error to people.
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
    """The base class of all errors in this tree."""


class RequestRefused(TurnstreamError):
    """The caller must change the request. `field` is the name of the wrong field, if any. A `code` replaces the code of
    the class, if clients may have to distinguish the refusal from others.
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
        """Members that the problem document has in addition to its usual members."""
        return {}


class Unauthorized(RequestRefused):
    """The request has no credential, or an invalid or expired credential."""

    status = 401
    title = "Not authorized"
    code = "unauthorized"


class Forbidden(RequestRefused):
    """The credential does not allow the request. A credential with one of `scopes` would allow it."""

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
    """`before` in the request is not the `next` of an earlier page."""

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
    """A retry may succeed. `retry_after` is the pause in seconds that the provider asks for. `busy` is True if the
    provider has no capacity for the call now, because of a rate limit or an overload.
    """


MODEL_NOT_AVAILABLE = "model_not_available"  # the `type` if no configured provider has the model


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
    """The statement has exceeded its own time limit. Postgres works, but an immediate retry would take as long."""


class StatementRefused(StorageError):
    """Postgres refuses the statement or its values. No retry can succeed. The cause is a bug or another version's
    tables.
    """


class CannotOpen(TurnstreamError):
    """A value or key cannot be decrypted: it was encrypted with another key or for another row, or was changed."""


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
    """Converts a ValueError to an error of the class `kind`, whose text begins with `place`."""
    try:
        yield
    except ValueError as error:
        raise kind(f"{place} {error}") from None


@contextmanager
def errors_collected(problems: list[str]) -> Iterator[None]:
    """Catches a ConfigError and adds its sentences to `problems`, so that one start reports all mistakes."""
    try:
        yield
    except ConfigError as error:
        problems += error.args
