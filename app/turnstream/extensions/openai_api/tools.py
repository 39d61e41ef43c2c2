"""Converts the tools in OpenAI's requests to tools of a turn.

A tool in a namespace has a name that begins with the tool's own name and ends with the namespace's name. A custom tool,
whose input is any text, becomes a function with one text.
"""

from collections.abc import Sequence
from typing import Any

from turnstream.api.codec import to_json
from turnstream.api.services import Services
from turnstream.domain.errors import RequestRefused
from turnstream.extensions.openai_api.objects import CUSTOM, SERVER, Json, flat_name
from turnstream.extensions.openai_api.schemas import (
    AllowedIn,
    CustomToolIn,
    ForwardedToolIn,
    FunctionIn,
    FunctionToolIn,
    McpToolIn,
    NamedToolIn,
    NamespaceToolIn,
    ToolIn,
)
from turnstream.libraries.dialects.chats import PROGRAM_EXPIRY

# Agents offer these tools in every request, to every model.
_OFFERS = frozenset({"web_search", "web_search_preview"})


def tools_of(
    services: Services, model: str | None, given: Sequence[ToolIn] | None, *, structured: bool = False
) -> list[Any]:
    """Returns the tools of the client, followed by tools of the server. A request without tools and without a format
    gets all tools of the server; any other request gets the tools that its item of the type `mcp` allows. A tool of the
    client replaces a tool of the server with the same name. The client's tools come first, so that positions in errors
    match the request.
    """
    resolver, names = services.resolver, list(services.resolver.toolset.names)
    if not resolver.models.check(model or resolver.defaults.model).supports("tools"):
        names = []
    own = names if given is None and not structured else []
    others: list[Json] = []
    for number, tool in enumerate(given or ()):
        place = f"tools.{number}"
        match tool:
            case FunctionToolIn() | CustomToolIn():
                others.append(_client_tool(tool))
            case NamespaceToolIn():
                others += [_client_tool(each, tool.name) for each in tool.tools]
            case McpToolIn():
                own = _allowed(tool, names, place)
            case ForwardedToolIn(type=None):
                field = f"{place}.type"
                raise RequestRefused(f"`{field}` must be `function`, `mcp`, or a tool of the provider.", field=field)
            case ForwardedToolIn():
                others.append({"type": "provider", "definition": tool.sent()})
    taken = {tool.get("name") for tool in others}
    return [*others, *(name for name in own if name not in taken)]


def offered(
    services: Services, model: str | None, given: Sequence[ToolIn] | None
) -> tuple[Sequence[ToolIn] | None, list[str]]:
    """Returns the tools to use, and the names of omitted tools. Agents offer some tools to every model; these tools are
    omitted if the provider does not have them.
    """
    resolver = services.resolver
    checked = resolver.models.check(model or resolver.defaults.model)
    if any(parameter.name == "include" for parameter in resolver.models.parameters(checked.id)):
        return given, []  # the provider has the Responses API, which defines these tools
    places = [place for place, tool in enumerate(given or ()) if _is_offer(tool)]
    kept = given and [tool for tool in given if not _is_offer(tool)]
    return kept, [f"tools[{place}]" for place in places]


def allowed(given: Sequence[ToolIn] | None, choice: AllowedIn) -> Sequence[ToolIn]:
    """Returns the tools that a choice allows. Raises RequestRefused if the choice allows none of the given tools."""
    wanted = [(each.type, _name_of(each)) for each in choice.tools or ()]
    kept = [
        tool
        for tool in given or ()
        if any(type == tool.type and (name is None or name == _name_of(tool)) for type, name in wanted)
    ]
    if not kept:
        raise RequestRefused("`tool_choice.tools` must name tools that are in `tools`.", field="tool_choice.tools")
    return kept


def _name_of(tool: ToolIn | NamedToolIn) -> object:
    inside = getattr(tool, "function", None) or getattr(tool, "custom", None)
    return getattr(inside or tool, "name", None)


def _is_offer(tool: ToolIn) -> bool:
    return isinstance(tool, ForwardedToolIn) and tool.type in _OFFERS


def _client_tool(tool: FunctionToolIn | CustomToolIn, namespace: str | None = None) -> Json:
    about = tool.function or tool if isinstance(tool, FunctionToolIn) else tool
    description, schema = about.description or about.name, CUSTOM
    if isinstance(about, FunctionIn):
        schema = about.parameters or {"type": "object", "properties": {}}
    elif about.format:
        description = f"{description}\n\nThe format of its input: {to_json(about.format).decode()}"
    name = flat_name(about.name, namespace)
    more = {"input_schema": schema, "expiry": PROGRAM_EXPIRY}
    return {"type": "client", "name": name, "description": description, **more}


def _allowed(tool: McpToolIn, own: Sequence[str], place: str) -> list[str]:
    if tool.server_label != SERVER:
        detail = f"`{place}.server_label` must be `{SERVER}`: other MCP servers are configured by the operator."
        raise RequestRefused(detail, field=f"{place}.server_label")
    names = tool.allowed_tools
    if names is None:
        return list(own)
    if not all(name in own for name in names):
        detail = f"`{place}.allowed_tools` must be a list of names of tools: {', '.join(own) or 'there are none'}."
        raise RequestRefused(detail, field=f"{place}.allowed_tools")
    return list(names)
