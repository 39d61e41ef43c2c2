"""Encryption of the headers of HTTP tools, before anything of a request is stored."""

from typing import Any, TypeVar

from turnstream.api.schemas.requests import ChatSettings, FixedOptions, NewTurn, TurnOptions
from turnstream.api.schemas.tools import HttpToolIn, ToolIn
from turnstream.api.services import Services
from turnstream.domain.errors import RequestRefused
from turnstream.domain.secret_headers import needs_sealing
from turnstream.kit.sealing import CannotOpen

AnyOptions = TypeVar("AnyOptions", TurnOptions, NewTurn, ChatSettings, FixedOptions)


async def sealed(services: Services, owner: str, options: AnyOptions, field: str = "") -> AnyOptions:
    """The options with encrypted headers of HTTP tools, if this server has a master key. Headers are checked before:
    afterwards their values cannot be seen. Raises RequestRefused.
    """
    keys, tools = services.owner_keys, options.tools
    if keys is None or not tools or not any(isinstance(tool, HttpToolIn) and tool.headers for tool in tools):
        return options
    found: list[ToolIn] = []
    for place, tool in enumerate(tools):
        if isinstance(tool, HttpToolIn) and any(needs_sealing(value) for value in tool.headers.values()):
            where = f"{field}tools.{place}"
            services.resolver.check_declared(tool, where)
            try:
                headers = await keys.sealed_headers(owner, tool.url, tool.headers)
            except CannotOpen as error:
                raise RequestRefused(
                    f"`{where}.headers` must have the values themselves, not what the server stores: {error}",
                    field=f"{where}.headers",
                ) from None
            found.append(tool.model_copy(update={"headers": dict(headers)}))
        else:
            found.append(tool)
    return options.model_copy(update={"tools": found})


async def new_settings(services: Services, owner: str, sent: ChatSettings | None, field: str) -> dict[str, Any]:
    """The settings of a new chat, as they are stored. Raises RequestRefused."""
    if sent is not None:
        sent = await sealed(services, owner, sent, f"{field}.")
    return services.resolver.changed_settings({}, sent, field)
