"""Tokens with which programs elsewhere post the result of a single job."""

from hashlib import sha256
from secrets import token_urlsafe
from typing import Final

# The path to which a program posts the result of a job.
RESULT_PATH: Final = "/api/jobs/{job}/result"
_TOKEN_BYTES = 32


def new_token() -> str:
    """Returns a token that allows its holder to settle one job."""
    return f"tsj_{token_urlsafe(_TOKEN_BYTES)}"


def digest_of_token(token: str) -> bytes:
    """Returns the digest of the token, which the row of the job stores."""
    return sha256(token.encode()).digest()
