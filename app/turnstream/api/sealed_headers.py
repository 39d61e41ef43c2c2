"""Encryption of the secrets of tools, before anything of a request is stored."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from turnstream.api.schemas.requests import ChatSettings, FixedOptions, NewTurn, Params, TurnOptions
from turnstream.api.schemas.tools import HttpToolIn, ProviderToolIn
from turnstream.api.services import Services
from turnstream.domain.errors import RequestRefused
from turnstream.domain.secret_headers import (
    SERVERS_OF_PARAMS,
    credentials_of,
    needs_sealing,
    server_of,
    servers_of,
    with_credentials,
)
from turnstream.kit.sealing import CannotOpen
from turnstream.storage.chats.exchanges import Position
from turnstream.storage.owners.owner_keys import OwnerKeys

AnyOptions = TypeVar("AnyOptions", TurnOptions, NewTurn, ChatSettings, FixedOptions)


async def sealed(services: Services, owner: str, options: AnyOptions, field: str = "") -> AnyOptions:
    """The options with encrypted secrets of tools, if this server has a master key. Headers are checked before:
    afterwards their values cannot be seen. Raises RequestRefused.
    """
    if (keys := services.owner_keys) is None:
        return options
    tools, params = list(options.tools or ()), {} if options.params is None else options.params.given
    for place, tool in enumerate(tools):
        where = f"{field}tools.{place}"
        if isinstance(tool, HttpToolIn) and any(map(needs_sealing, tool.headers.values())):
            services.resolver.check_declared(tool, where)
            headers = await _sealed(keys, owner, tool.url, tool.headers, f"{where}.headers")
            tools[place] = tool.model_copy(update={"headers": headers})
        elif isinstance(tool, ProviderToolIn) and credentials_of(tool.definition):
            definition = await _sealed_definition(keys, owner, tool.definition, f"{where}.definition")
            tools[place] = tool.model_copy(update={"definition": definition})
    changed: dict[str, Any] = {"tools": tools} if tools else {}
    if servers := servers_of(params):
        where = f"{field}params.{SERVERS_OF_PARAMS}"
        each = [await _sealed_definition(keys, owner, one, f"{where}.{place}") for place, one in enumerate(servers)]
        changed["params"] = Params(**{**params, SERVERS_OF_PARAMS: each})
    return options.model_copy(update=changed)


def has_secrets(known: Position) -> bool:
    settings, request = known.chat.settings, known.before.request if known.before else None
    if any(isinstance(tool, Mapping) for tool in settings.get("tools") or ()) or servers_of(
        settings.get("params") or {}
    ):
        return True
    if request is None:
        return False
    calls = [spec.http.headers for spec in request.tools if spec.http]
    definitions = [*map(msgspec.json.decode, request.provider_tools), *servers_of(request.params)]
    values = [value for each in (*calls, *map(credentials_of, definitions)) for value in each.values()]
    return any(map(needs_sealing, values))


async def new_settings(services: Services, owner: str, sent: ChatSettings | None, field: str) -> dict[str, Any]:
    """The settings of a new chat, as they are stored. Raises RequestRefused."""
    if sent is not None:
        sent = await sealed(services, owner, sent, f"{field}.")
    return services.resolver.changed_settings({}, sent, field)


async def _sealed_definition(
    keys: OwnerKeys, owner: str, definition: Mapping[str, Any], field: str
) -> Mapping[str, Any]:
    secrets = credentials_of(definition)
    return with_credentials(definition, await _sealed(keys, owner, server_of(definition), secrets, field))


async def _sealed(keys: OwnerKeys, owner: str, server: str, values: Mapping[str, str], field: str) -> Mapping[str, str]:
    try:
        return await keys.sealed_headers(owner, server, values)
    except CannotOpen as error:
        raise RequestRefused(
            f"`{field}` must have the values themselves, not what the server stores: {error}", field=field
        ) from None
