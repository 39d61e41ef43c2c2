"""Masked secrets of tools. The API shows secrets masked; a client may send the masks back."""

from collections.abc import Mapping, Sequence
from typing import Any

from turnstream.api.schemas.requests import Params
from turnstream.api.schemas.tools import HttpToolIn, ProviderToolIn, ToolIn
from turnstream.domain.errors import RequestRefused
from turnstream.domain.secret_headers import (
    MASK,
    SERVERS_OF_PARAMS,
    credentials_of,
    server_of,
    servers_of,
    with_credentials,
)


def unmasked(tools: Sequence[ToolIn], stored: Sequence[Any], field: str) -> list[ToolIn]:
    """The tools with masked secrets replaced by the secrets of the stored tool with the same name and URL, so that no
    other host gets them. Raises RequestRefused for a mask without a stored secret.
    """
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


def unmasked_params(params: Params | None, stored: Mapping[str, Any], field: str) -> Params | None:
    """The same for the servers that parameters define."""
    if params is None or not (servers := servers_of(params.given)):
        return params
    known = servers_of(stored)
    changed = [_unmasked(each, known, f"{field}.{SERVERS_OF_PARAMS}.{place}") for place, each in enumerate(servers)]
    return Params(**{**params.given, SERVERS_OF_PARAMS: changed})


def _unmasked(definition: Mapping[str, Any], known: Sequence[Mapping[str, Any]], field: str) -> dict[str, Any]:
    secrets = credentials_of(definition)
    if MASK not in secrets.values():
        return dict(definition)
    before = next((credentials_of(each) for each in known if _names_of(each) == _names_of(definition)), {})
    return with_credentials(definition, _restored(secrets, before, field))


def _names_of(definition: Mapping[str, Any]) -> tuple[str, Any]:
    """The server and the name of it, since one may be there twice with other credentials."""
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
