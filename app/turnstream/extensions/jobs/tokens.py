"""Tokens for the result of a single job, posted by programs elsewhere."""

from hashlib import sha256
from secrets import token_urlsafe
from typing import Final

# The path to which a program posts the result of a job.
RESULT_PATH: Final = "/api/jobs/{job}/result"
_TOKEN_BYTES = 32


def new_token() -> str:
    """A token that may settle one job."""
    return f"tsj_{token_urlsafe(_TOKEN_BYTES)}"


def digest_of_token(token: str) -> bytes:
    """The stored digest of the token."""
    return sha256(token.encode()).digest()
