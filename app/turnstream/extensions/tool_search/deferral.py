"""Defers tools: omits their definitions from a request, and offers two tools that find and call them."""

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import Field

from turnstream.domain.deferred import CALL_TOOL, FIND_TOOLS
from turnstream.domain.turns import ToolSpec, TurnRequest
from turnstream.kit.offload import offload
from turnstream.libraries.tool_ranking import ranked
from turnstream.tools.tool import Outcome, Tool, ToolContext, tool

_MOST_FOUND = 20
_MORE_NAMES = 15  # names of less likely tools, which are returned without definitions
_LEAST_GROUP = 3  # tools that must have a common prefix to get a separate line
_MOST_LINES = 40
_MOST_NAMES = 4  # names in a line
# The definition of the provider's search.
_SEARCH_OF_PROVIDER = json.dumps({"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"})


@tool(name=FIND_TOOLS, read_only=True)
async def find_tools(
    context: ToolContext,
    query: Annotated[str, Field(description="what the tool must do, in a few words; or its name", min_length=1)],
    count: Annotated[int, Field(description="the number of tools to return", ge=1, le=_MOST_FOUND)] = 5,
) -> Outcome:
    """Finds tools and returns their definitions."""
    deferred = [spec for spec in context.offered if spec.deferred]
    found = await offload(10 * _size(deferred), ranked, deferred, query, count + _MORE_NAMES)
    if not found:
        return Outcome(f"No tool has a word of {query!r}. Search by other words, or for the thing it works with.")
    told = [f"Call them with {CALL_TOOL}, by `name`, with an `input` by their schema."]
    told += [f"{spec.name}: {spec.description}\nSchema of its input: {spec.input_schema}" for spec in found[:count]]
    if more := found[count:]:
        told.append(f"Less likely; search by the name for a definition: {', '.join(spec.name for spec in more)}")
    return Outcome("\n\n".join(told))


@tool(name=CALL_TOOL)
async def call_tool(
    context: ToolContext,
    name: Annotated[str, Field(description="the name of the tool, as find_tools returned it")],
    input: Annotated[dict[str, Any] | None, Field(description="its input, by its schema")] = None,  # noqa: ARG001
) -> Outcome:
    """Calls a tool that find_tools has found."""
    # A call that names a tool of the turn never arrives here, because such a call runs the named tool.
    names = [spec.name for spec in context.offered if not spec.client and spec.role is None]
    like = get_close_matches(name, names, 3)
    hint = f" Tools of similar names: {', '.join(like)}." if like else ""
    return Outcome(f"There is no tool {name[:100]!r}.{hint} Search with {FIND_TOOLS}.", kind="unknown")


_OWN: Mapping[str, Tool] = {each.spec.name: each for each in (find_tools, call_tool)}


class SearchTools:
    """A source that has the two tools."""

    def tools(self) -> Mapping[str, Tool]:
        return _OWN


@dataclass(frozen=True, slots=True)
class Deferral:
    """Defers the tools of requests with more than `above` tools, or more than `above_chars` characters of definitions.
    Tools that match a pattern of `keep` are not deferred. For the models in `by_provider` the provider searches.
    """

    above: int | None
    above_chars: int | None
    keep: Sequence[str] = ()
    by_provider: Collection[str] = ()

    def offer(self, request: TurnRequest) -> TurnRequest:
        request = _undone(request)
        deferred = [spec for spec in request.tools if self._may_defer(spec, request)]
        if not self._is_large(request.tools) or not deferred or _searches(request):
            return request
        names = {spec.name for spec in deferred}
        if request.model in self.by_provider:
            marked = tuple(_mark_of(spec) for spec in deferred)
            return replace(request, provider_tools=(*request.provider_tools, _SEARCH_OF_PROVIDER, *marked))
        tools = (replace(spec, deferred=True) if spec.name in names else spec for spec in request.tools)
        search = replace(find_tools.spec, description=f"{find_tools.spec.description}\n\n{_overview(deferred)}")
        return replace(request, tools=(*tools, search, call_tool.spec))

    def _is_large(self, specs: Sequence[ToolSpec]) -> bool:
        return (self.above is not None and len(specs) > self.above) or (
            self.above_chars is not None and _size(specs) > self.above_chars
        )

    def _may_defer(self, spec: ToolSpec, request: TurnRequest) -> bool:
        chosen = request.params.get("tool_choice")
        is_chosen = isinstance(chosen, Mapping) and chosen.get("name") == spec.name
        kept = any(fnmatchcase(spec.name, pattern) for pattern in self.keep)
        return not (spec.client or spec.role is not None or is_chosen or kept)


def _undone(request: TurnRequest) -> TurnRequest:
    """Returns the request without the additions of an earlier deferral, because a request inherits its tools from the
    previous turn.
    """
    tools = tuple(replace(spec, deferred=False) for spec in request.tools if not _is_own(spec))
    provider = request.provider_tools
    if _SEARCH_OF_PROVIDER in provider:
        added = {_SEARCH_OF_PROVIDER, *map(_mark_of, tools)}
        provider = tuple(each for each in provider if each not in added)
    return replace(request, tools=tools, provider_tools=provider)


def _is_own(spec: ToolSpec) -> bool:
    """Returns whether the tool is one of the two tools, rather than another tool with the same name. Only its
    description may differ.
    """
    own = _OWN.get(spec.name)
    return own is not None and replace(spec, description=own.spec.description) == own.spec


def _mark_of(spec: ToolSpec) -> str:
    return json.dumps({"name": spec.name, "defer_loading": True})


def _searches(request: TurnRequest) -> bool:
    """Returns whether the request already has a search: the provider's search, or other tools with the two names."""
    named = any(spec.name in _OWN for spec in request.tools)
    return named or any('"tool_search' in each or '"defer_loading"' in each for each in request.provider_tools)


def _size(specs: Sequence[ToolSpec]) -> int:
    return sum(len(spec.name) + len(spec.description) + len(spec.input_schema) for spec in specs)


def _overview(specs: Sequence[ToolSpec]) -> str:
    """Returns one line for each group of tools with a common prefix (the tools of a server), and one line for all other
    tools.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for spec in specs:
        prefix, separator, _ = spec.name.partition("__")
        groups[prefix if separator else spec.name.partition("_")[0]].append(spec.name)
    large = {prefix: names for prefix, names in groups.items() if len(names) >= _LEAST_GROUP}
    others = [name for prefix, names in groups.items() if prefix not in large for name in names]
    lines = [f"{len(specs)} tools can be found:"]
    lines += [
        f"- {prefix}: {len(names)}, such as {_some(names)}" for prefix, names in list(large.items())[:_MOST_LINES]
    ]
    if others:
        lines.append(f"- others: {len(others)}, such as {_some(others)}")
    return "\n".join(lines)


def _some(names: Sequence[str]) -> str:
    """Returns some names, spread over the whole list."""
    return ", ".join(names[:: max(1, len(names) // _MOST_NAMES)][:_MOST_NAMES])
