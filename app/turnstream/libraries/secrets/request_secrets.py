"""Encrypts the secrets of tools in requests and rows by the keys of owners, if this server has a master key."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from turnstream.api.request_secrets import AnyOptions, RequestSecrets
from turnstream.api.schemas.requests import Params
from turnstream.api.schemas.tools import HttpToolIn, ProviderToolIn, ToolIn
from turnstream.api.services import Services
from turnstream.domain.errors import CannotOpen, RequestRefused
from turnstream.domain.secret_headers import MASK, SERVERS_OF_PARAMS, servers_of
from turnstream.domain.turns import TurnRequest
from turnstream.libraries.secrets.credentials import credentials_of, needs_sealing, server_of, with_credentials
from turnstream.libraries.secrets.owner_keys import OwnerKeys
from turnstream.libraries.secrets.sealing import is_sealed
from turnstream.storage.chats.exchanges import Position
from turnstream.tools.secrets import SEALED, locked


class SealedSecrets(RequestSecrets):
    """Encrypts and decrypts secrets by the `keys` of owners. Without `keys`, secrets are stored in plain text."""

    def __init__(self, keys: OwnerKeys | None) -> None:
        self.keys = keys
        self.encrypts = keys is not None

    async def sealed(
        self, owner: str, options: AnyOptions, field: str, check: Callable[[HttpToolIn, str], None]
    ) -> AnyOptions:
        keys = self.keys
        assert keys is not None
        tools, params = list(options.tools or ()), {} if options.params is None else options.params.given
        for place, tool in enumerate(tools):
            where = f"{field}tools.{place}"
            if isinstance(tool, HttpToolIn) and any(map(needs_sealing, tool.headers.values())):
                check(tool, where)
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

    def may_differ(self, known: Position) -> bool:
        return _has_secrets(known)

    def unmasked(self, tools: Sequence[ToolIn], stored: Sequence[Any], field: str) -> Sequence[ToolIn]:
        known = {(tool["name"], tool["url"]): tool for tool in stored if isinstance(tool, dict) and "url" in tool}
        definitions = [tool["definition"] for tool in stored if isinstance(tool, dict) and "definition" in tool]
        found: list[ToolIn] = []
        for place, tool in enumerate(tools):
            if isinstance(tool, HttpToolIn) and MASK in tool.headers.values():
                before = known.get((tool.name, tool.url), {}).get("headers", {})
                headers = _restored(tool.headers, before, f"{field}.{place}.headers")
                found.append(tool.model_copy(update={"headers": headers}))
            elif isinstance(tool, ProviderToolIn):
                definition = _unmasked(tool.definition, definitions, f"{field}.{place}.definition")
                found.append(tool.model_copy(update={"definition": definition}))
            else:
                found.append(tool)
        return found

    def unmasked_params(self, params: Params | None, stored: Mapping[str, Any], field: str) -> Params | None:
        if params is None or not (servers := servers_of(params.given)):
            return params
        known = servers_of(stored)
        changed = [_unmasked(each, known, f"{field}.{SERVERS_OF_PARAMS}.{place}") for place, each in enumerate(servers)]
        return Params(**{**params.given, SERVERS_OF_PARAMS: changed})

    async def opened_headers(self, owner: str, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        if not any(map(is_sealed, headers.values())):
            return headers
        if self.keys is None:
            raise CannotOpen("This server has no master key (TURNSTREAM_MASTER_KEY).")
        return await self.keys.opened_headers(owner, url, headers)

    async def opened_request(self, owner: str, request: TurnRequest) -> TurnRequest:
        async def opened(definition: Mapping[str, Any]) -> Mapping[str, Any]:
            secrets = credentials_of(definition)
            values = await self.opened_headers(owner, server_of(definition), secrets)
            return definition if values is secrets else with_credentials(definition, values)

        tools, params = list(request.provider_tools), request.params
        try:
            for place, tool in enumerate(tools):
                if SEALED in tool:
                    tools[place] = msgspec.json.encode(await opened(msgspec.json.decode(tool))).decode()
            if servers := servers_of(params):
                params = {**params, SERVERS_OF_PARAMS: [await opened(server) for server in servers]}
        except CannotOpen as error:
            raise locked(str(error)) from None
        return replace(request, provider_tools=tuple(tools), params=params)


def stores_secrets(services: Services) -> bool:
    """Returns whether this server has the extension `keys`. Without the extension, no new secret is stored."""
    return isinstance(services.resolver.secrets, SealedSecrets)


def owner_keys_of(services: Services) -> OwnerKeys | None:
    """Returns the keys of owners, if this server has a master key."""
    secrets = services.resolver.secrets
    return secrets.keys if isinstance(secrets, SealedSecrets) else None


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


def _has_secrets(known: Position) -> bool:
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


def _unmasked(definition: Mapping[str, Any], known: Sequence[Mapping[str, Any]], field: str) -> dict[str, Any]:
    secrets = credentials_of(definition)
    if MASK not in secrets.values():
        return dict(definition)
    before = next((credentials_of(each) for each in known if _names_of(each) == _names_of(definition)), {})
    return with_credentials(definition, _restored(secrets, before, field))


def _names_of(definition: Mapping[str, Any]) -> tuple[str, Any]:
    """Returns the server, and the name that the definition gives it: the same server may occur twice with different
    credentials.
    """
    return server_of(definition), definition.get("server_label", definition.get("name"))


def _restored(sent: Mapping[str, str], before: Mapping[str, str], field: str) -> dict[str, str]:
    for name in [name for name, value in sent.items() if value == MASK and name not in before]:
        where = f"{field}.{name}"
        raise RequestRefused(
            f"`{where}` must be the value itself: the chat has no tool with this name, URL and header whose value could"
            " stay.",
            field=where,
        )
    return {name: before[name] if value == MASK else value for name, value in sent.items()}
