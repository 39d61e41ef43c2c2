"""Classifies failures of turns, for APIs that have one error for each class."""

from typing import Literal

from turnstream.domain.guards import GUARDRAIL
from turnstream.libraries.providers.transport.failures import (
    ACCOUNT_STATUSES,
    BUSY,
    BUSY_STATUSES,
    OF_ACCOUNT,
    PERMANENT,
    STATUS,
    TOO_LONG,
)

_RATE_LIMITS = frozenset(
    {
        "RESOURCE_EXHAUSTED",
        "ThrottlingException",
        "TooManyRequestsException",
        "rate_limit_error",
        "rate_limit_exceeded",
    }
)
FailureClass = Literal["account", "rate_limit", "overloaded", "too_long", "refused", "server"]


def failure_class(type: str) -> FailureClass:
    """Returns the class of a turn's failure, by the type of the turn's error."""
    status = type.removeprefix("http_")
    if type in OF_ACCOUNT or status in map(str, ACCOUNT_STATUSES):
        return "account"
    if type in _RATE_LIMITS or status == "429":
        return "rate_limit"
    if type in BUSY or "overloaded" in type or status in map(str, BUSY_STATUSES):
        return "overloaded"
    if type == TOO_LONG:
        return "too_long"
    return "refused" if type in PERMANENT | {GUARDRAIL} or (STATUS.fullmatch(status) and status < "5") else "server"
