"""Decryption of the credentials that a provider gets in a request."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import structlog

from turnstream.domain.errors import PermanentError
from turnstream.domain.secret_headers import SERVERS_OF_PARAMS, credentials_of, server_of, servers_of, with_credentials
from turnstream.domain.turns import TurnRequest
from turnstream.kit.sealing import SEALED, CannotOpen, is_sealed
from turnstream.tools.toolset import OpenHeaders

log = structlog.get_logger(__name__)


async def opened_request(request: TurnRequest, owner: str, open_headers: OpenHeaders | None) -> TurnRequest:
    """The request with the credentials in plain text. Raises PermanentError."""

    async def opened(definition: Mapping[str, Any]) -> Mapping[str, Any]:
        secrets = credentials_of(definition)
        if not any(map(is_sealed, secrets.values())):
            return definition
        if open_headers is None:
            raise CannotOpen("This server has no master key (TURNSTREAM_MASTER_KEY).")
        return with_credentials(definition, await open_headers(owner, server_of(definition), secrets))

    tools, params = list(request.provider_tools), request.params
    try:
        for place, tool in enumerate(tools):
            if SEALED in tool:
                tools[place] = msgspec.json.encode(await opened(msgspec.json.decode(tool))).decode()
        if servers := servers_of(params):
            params = {**params, SERVERS_OF_PARAMS: [await opened(server) for server in servers]}
    except CannotOpen as error:
        log.error("tool.sealed", reason=str(error))
        raise PermanentError(
            "secrets_locked", "The stored credentials of a tool cannot be decrypted by this server."
        ) from None
    return replace(request, provider_tools=tuple(tools), params=params)
