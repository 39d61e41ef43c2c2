"""Lists of tools that an MCP server returns only with the owner's token, because each owner may have other tools.

Two tools replace such a list: `find_tools` returns definitions, and `call_tool` calls a tool of the list. Apps have a
third tool. So the model's request is the same for all owners and lists, and a list is read only when a model needs it.
"""

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from hashlib import sha256
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Self

import structlog
from msgspec.json import encode as to_json
from pydantic import Field

from turnstream.extensions.mcp.session import McpSession
from turnstream.extensions.mcp.tool import McpTool, tool_name
from turnstream.kit.offload import offload
from turnstream.libraries.tool_ranking import ranked
from turnstream.tools.policy import Policy
from turnstream.tools.tool import FunctionTool, Outcome, PersonQuestion, Tool, ToolContext, tool

if TYPE_CHECKING:
    from turnstream.extensions.mcp.connection import McpConnection

log = structlog.get_logger(__name__)

_TTL: Final = 300.0  # the default life of a list in memory, in seconds
_MOST_OWNERS: Final = 1000  # owners with lists in memory
_MOST_SHOWN: Final = 30_000  # maximum characters of definitions in one result
_MOST_CHANGES: Final = 20  # maximum number of changes that one question, or one entry of the log, names
_SECONDS: Final = 300.0  # seconds for the answer to a question about changes


@dataclass(frozen=True, slots=True)
class _OwnerList:
    """The tools of one owner, by the names that the server uses. `read_at` and `until` are times of the monotonic
    clock.
    """

    tools: Mapping[str, McpTool]
    read_at: float
    until: float


@dataclass(frozen=True, slots=True)
class AppTool(FunctionTool):
    """A tool for apps only, which no turn may name."""

    hidden: ClassVar = True

    @classmethod
    def of(cls, tool: FunctionTool) -> Self:
        return cls(tool.spec, tool.policy, tool.function, tool.arguments, tool.bound, tool.on_stop)


class OwnerLists:
    """The lists of all owners at one server. Each replica caches a list until its TTL has passed."""

    @property
    def connection(self) -> "McpConnection":
        return self._connection

    def __init__(self, connection: "McpConnection", shortest_ttl: float, timeout: float) -> None:
        self._connection = connection
        self._server = connection.server
        self._shortest_ttl = shortest_ttl
        self._timeout = timeout
        self._kept: OrderedDict[str, _OwnerList] = OrderedDict()
        found = [self._named(self.find_tools, self._policy(finds=True))]
        found.append(self._named(self.call_tool, self._policy(finds=False)))
        found.append(AppTool.of(self._named(self.call_from_app, self._policy(finds=False))))
        self.tools: Mapping[str, Tool] = {each.spec.name: each for each in found}

    def _named(self, tool: FunctionTool, policy: Policy) -> FunctionTool:
        name = tool_name(self._server.name_prefix, tool.spec.name)
        description = tool.spec.description.replace("the server", self._server.name)
        return replace(tool, spec=replace(tool.spec, name=name, description=description), policy=policy)

    def _policy(self, *, finds: bool) -> Policy:
        base = replace(self._server.policy, memo=False, cache_seconds=None, approval_scope="call")
        named = (base, *self._server.policies.values())
        if finds or all(each.approval == "never" for each in named):
            return replace(base, approval="never", approval_expiry=None)
        return replace(base, approval=self._needs_approval)

    def _needs_approval(self, given: Mapping[str, Any]) -> bool:
        return self._server.policy_of(str(given.get("name"))).approval != "never"

    @tool(read_only=True)
    async def find_tools(
        self,
        context: ToolContext,
        query: Annotated[str, Field(description="words of names and descriptions; without any, all tools")] = "",
    ) -> Outcome:
        """Finds the tools of the server that the user may call, and returns their definitions."""
        found = await self._list(context)
        if isinstance(found, Outcome):
            return found
        tools = {name: each for name, each in found.tools.items() if not each.hidden}
        names = await _ranked(tools, query)
        if not names:
            return Outcome(f"No tool of {self._server.name} fits. All names: {', '.join(tools) or 'none'}.")
        told = [f"Call them with {tool_name(self._server.name_prefix, 'call_tool')}."]
        size = 0
        for place, name in enumerate(names):
            spec = tools[name].spec
            told.append(f"{name}: {spec.description}\nSchema of its input: {spec.input_schema}")
            size += len(told[-1])
            if place and size > _MOST_SHOWN:
                told[-1] = f"Find these by their names: {', '.join(names[place:])}"
                break
        return Outcome("\n\n".join(told))

    @tool
    async def call_tool(
        self,
        context: ToolContext,
        name: Annotated[str, Field(description="the name of the tool")],
        input: Annotated[dict[str, Any] | None, Field(description="its input, by its schema")] = None,
    ) -> Outcome:
        """Calls a tool of the server for the user."""
        return await self._call(context, name, input, from_app=False)

    @tool
    async def call_from_app(self, context: ToolContext, name: str, input: dict[str, Any] | None = None) -> Outcome:
        """Calls a tool of the server for an app of it."""
        return await self._call(context, name, input, from_app=True)

    async def _call(self, context: ToolContext, name: str, input: dict[str, Any] | None, *, from_app: bool) -> Outcome:
        found = await self._list(context)
        if isinstance(found, _OwnerList) and name not in found.tools:  # the tool may be new
            found = await self._list(context, kept=self._shortest_ttl)
        if isinstance(found, Outcome):
            return found
        tools = {name: each for name, each in found.tools.items() if (each.for_apps if from_app else not each.hidden)}
        called = tools.get(name)
        if called is None:
            like = ", ".join(get_close_matches(name, tools, 3))
            hint = f" Tools of similar names: {like}." if like else ""
            return Outcome(f"{self._server.name} has no tool {name[:100]!r} for the user.{hint}", kind="unknown")
        return await called(context, json.dumps(input or {}))

    # --- the list of an owner ----------------------------------------------------------------------------------------

    async def _list(self, context: ToolContext, kept: float | None = None) -> _OwnerList | Outcome:
        """Returns the list of the owner, after the owner has accepted its changes. If `kept` is given, a list in memory
        must have been read less than `kept` seconds ago. Returns an outcome instead if the owner must sign in, or has
        not accepted the changes. Raises ToolUnavailable.
        """
        found = self._kept.get(context.owner)
        now = monotonic()
        if found is not None and now < found.until and (kept is None or now - found.read_at < kept):
            return found
        read = await self._read(context)
        if isinstance(read, Outcome):
            return read
        if (refused := await self._unaccepted(context, read.tools)) is not None:
            return refused
        self._kept[context.owner] = read
        self._kept.move_to_end(context.owner)
        if len(self._kept) > _MOST_OWNERS:
            self._kept.popitem(last=False)
        return read

    async def _read(self, context: ToolContext) -> _OwnerList | Outcome:
        async def read(session: McpSession) -> _OwnerList:
            listed = await self._connection.listed(session)
            ttl, now = _TTL if session.ttl is None else session.ttl, monotonic()
            return _OwnerList({each.name: each for each in listed.values()}, now, now + max(ttl, self._shortest_ttl))

        # A call has its own time limit. This limit interrupts the read of a list that never ends.
        return await self._connection.use_for(context, read, self._timeout)

    async def _unaccepted(self, context: ToolContext, tools: Mapping[str, McpTool]) -> Outcome | None:
        """Asks the owner about new or changed definitions, before a model or a call uses them. Returns an outcome if
        the owner does not accept them. By signing in, the owner has accepted the first list. Lists of a `trusted`
        server are always accepted.
        """
        sign_ins, server = self._connection.owner_calls().sign_ins, self._server
        stored = await sign_ins.accepted_tools(context.owner, server.name)
        before: dict[str, list[str]] = {} if stored is None else json.loads(stored)
        digests = {name: digests_of(each) for name, each in tools.items()}
        changes = [] if stored is None else list(_changes(before, digests))
        if changes:
            names = [name for name, _ in changes[:_MOST_CHANGES]]
            log.warning("mcp.tools_changed", server=server.name, tools=names, number=len(changes))
            if not server.trusted:
                more = len(changes) - _MOST_CHANGES
                lines = [f"- {name}: {words}" for name, words in changes[:_MOST_CHANGES]]
                lines += [f"- and {more} more"] if more > 0 else []
                text = f"{server.name} has changed its tools. Accept the changes?\n" + "\n".join(lines)
                seconds = _SECONDS if server.elicitation is None else server.elicitation
                schema = '{"type": "object", "properties": {}}'
                answer = await context.ask(PersonQuestion(text, seconds, schema=schema)) if context.ask else None
                if answer is None or answer.action != "accept":
                    refusal = f"{server.name} has changed its tools, and the user has not accepted the changes."
                    return Outcome(f"{refusal} The call was not made.", kind="refused")
        if stored is None or changes:
            # a tool that is listed again later is compared with its earlier form
            accepted = to_json(before | digests).decode()
            await sign_ins.accept_tools(context.owner, server.name, accepted, stored)
        return None


async def _ranked(tools: Mapping[str, McpTool], query: str) -> list[str]:
    """Returns the names of the tools that match the query, the best match first. Returns all names if there is no
    query.
    """
    if not query.strip():
        return list(tools)
    specs = [replace(each.spec, name=name) for name, each in tools.items()]
    size = sum(len(spec.description) + len(spec.input_schema) for spec in specs)
    return [spec.name for spec in await offload(10 * size, ranked, specs, query, len(specs))]


def digests_of(tool: McpTool) -> list[str]:
    return [sha256(text.encode()).hexdigest()[:32] for text in (tool.spec.description, tool.spec.input_schema)]


def _changes(before: Mapping[str, list[str]], now: Mapping[str, list[str]]) -> "list[tuple[str, str]]":
    """Returns the new or changed tools, each with a description of the change for a person."""
    found = []
    for name, digests in now.items():
        known = before.get(name)
        if known is None:
            found.append((name, "it is new"))
        elif known != digests:
            parts = [part for part, a, b in zip(("description", "schema"), known, digests, strict=True) if a != b]
            found.append((name, f"its {' and its '.join(parts)} changed"))
    return found
