"""Classifies failures of turns, for APIs that have one error for each class. Names blocks of refused messages."""

import re
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
_BLOCK = re.compile(r"(?:\w+\.(\d+)\.)?blocks\.(\d+)\.(.+)")  # of the new message, or of a result of a call
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


def naming_block(field: str, theirs: str) -> str:
    """Returns the name `theirs` of a field, and the block of the new message or of a result that `field` names."""
    if (found := _BLOCK.fullmatch(field)) is None:
        return f"`{theirs}`"
    result, block, member = found.groups()
    whole = "the new message" if result is None else f"result {int(result) + 1}"
    list_field = re.split(r"[.\[]", theirs)[0]
    return f"`{list_field}` (block {int(block) + 1} of {whole}: `{member}`)"
