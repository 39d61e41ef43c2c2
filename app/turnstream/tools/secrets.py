"""Decrypts the stored secrets that calls of tools and models need."""

from collections.abc import Mapping
from typing import Final

import structlog

from turnstream.domain.errors import CannotOpen, PermanentError
from turnstream.domain.turns import TurnRequest

log = structlog.get_logger(__name__)

SEALED: Final = "turnstream-sealed:1:"  # the beginning of an encrypted value


class ToolSecrets:
    """Opens the secrets of tools. Without the extension `keys`, this class refuses encrypted secrets."""

    async def opened_headers(self, owner: str, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:  # noqa: ARG002
        """Returns a tool's headers in plain text; the same object if no header is encrypted. Raises CannotOpen."""
        if any(value.startswith(SEALED) for value in headers.values()):
            raise CannotOpen("This server lacks the extension keys.")
        return headers

    async def opened_request(self, owner: str, request: TurnRequest) -> TurnRequest:  # noqa: ARG002
        """Returns the request with all credentials for the provider in plain text. Raises PermanentError."""
        if SEALED in f"{request.provider_tools} {request.params}":
            raise locked("This server lacks the extension keys.")
        return request


def locked(reason: str) -> PermanentError:
    log.error("tool.sealed", reason=reason)
    return PermanentError("secrets_locked", "The stored credentials of a tool cannot be decrypted by this server.")
