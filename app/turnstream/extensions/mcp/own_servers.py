"""MCP servers that owners add for themselves, if the operator allows it.

Two tools serve all these servers, like the two tools of `owner_tools`, so that the model's request is the same for all
owners. The row of a server is a sign-in whose encrypted tokens are the address and the headers of the server.
"""

import json
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from mcp import MCPError
from pydantic import Field
from yarl import URL

from turnstream.domain.errors import CannotOpen
from turnstream.extensions.mcp.connection import Changes, McpConnection, McpTiming
from turnstream.extensions.mcp.declared import MOST_OWN_SERVERS, McpServer
from turnstream.extensions.mcp.owner_lists import AppTool, OwnerLists, digests_of
from turnstream.extensions.mcp.session import McpSession
from turnstream.extensions.mcp.sign_ins import OWN, SignIns, delete_sign_in, note_sign_in
from turnstream.extensions.mcp.tool import McpTool
from turnstream.libraries.outgoing.addresses import Allowed
from turnstream.libraries.secrets.owner_keys import OwnerKeys
from turnstream.libraries.tool_sources.declarations import Declarations
from turnstream.storage.database import Database, Statement
from turnstream.storage.rows import to_json
from turnstream.tools.tool import Outcome, Tool, ToolContext, ToolError, ToolUnavailable, tool

PREFIX: Final = "own_servers"
_MOST_KEPT: Final = 1000  # maximum number of lists of tools in the memory of this replica

_NAMED = f"owner = :owner AND server LIKE '{OWN}%'"
LIST_OWN_SERVERS = Statement(
    f"SELECT server, tokens, signed_in_at FROM sign_ins WHERE {_NAMED} AND tokens IS NOT NULL ORDER BY server"
)
# By adding a server, a person accepts the tools that are displayed.
PUT_OWN_SERVER = Statement(
    f"""
    INSERT INTO sign_ins (owner, server, tokens, tools, signed_in_at)
    SELECT :owner, :server, :tokens, CAST(:tools AS json), now()
    WHERE (SELECT count(*) FROM sign_ins WHERE {_NAMED} AND server <> :server) < CAST(:most AS int)
    ON CONFLICT (owner, server) DO UPDATE
    SET tokens = EXCLUDED.tokens, tools = EXCLUDED.tools, signed_in_at = now(), version = sign_ins.version + 1
    RETURNING owner
    """
)


@dataclass(frozen=True, slots=True)
class OwnServer:
    """A server that an owner has added. `headers` are sent with each request to `url`, and never shown."""

    name: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    added_at: datetime | None = None


class OwnServers:
    """The servers of all owners, as one source of tools. `allowed` has the permitted addresses; `declarations` has the
    policies of the two tools.
    """

    def __init__(
        self, allowed: Allowed, timing: McpTiming | None = None, declarations: Declarations | None = None
    ) -> None:
        self._allowed = allowed
        self._timing = timing or McpTiming()
        self._database: Database | None = None
        self._keys: OwnerKeys | None = None
        self._sign_ins: SignIns | None = None
        self._kept: OrderedDict[tuple[str, str], tuple[str, OwnerLists]] = OrderedDict()
        found = [self.find_tools, self.call_tool]
        named = [replace(each, spec=replace(each.spec, name=f"{PREFIX}__{each.spec.name}")) for each in found]
        given = declarations or Declarations()
        policies = {name: each for name, each in given.policies.items() if name.startswith(f"{PREFIX}__")}
        decided = replace(given, policies=policies).apply_policies(named)
        for_apps = self.call_from_app
        spec = replace(for_apps.spec, name=f"{PREFIX}__{for_apps.spec.name}")
        decided.append(AppTool.of(replace(for_apps, spec=spec, policy=decided[-1].policy)))
        self._tools: Mapping[str, Tool] = {each.spec.name: each for each in decided}

    def use(self, database: Database, keys: OwnerKeys, sign_ins: SignIns) -> None:
        """Sets the database, the keys and the sign-ins, so that the rows of owners can be read. Called when the server
        runs.
        """
        self._database, self._keys, self._sign_ins = database, keys, sign_ins

    def tools(self) -> Mapping[str, Tool]:
        return self._tools

    # --- rows --------------------------------------------------------------------------------------------------------

    async def list(self, owner: str) -> Sequence[OwnServer]:
        return [each for each, _ in await self._rows(owner)]

    async def _rows(self, owner: str) -> Sequence[tuple[OwnServer, str]]:
        """Returns the servers of an owner, each with its encrypted form, except servers that this replica cannot
        decrypt.
        """
        assert self._database is not None
        assert self._keys is not None
        rows = await self._database.rows(LIST_OWN_SERVERS, owner=owner)
        found = []
        for row in rows:
            try:
                if (key := await self._keys.find(owner)) is None:
                    break
                opened = msgspec.json.decode(key.open(row["tokens"], "own_server", row["server"]))
            except CannotOpen:
                continue
            name = row["server"].removeprefix(OWN)
            found.append((OwnServer(name, opened["url"], opened["headers"], row["signed_in_at"]), row["tokens"]))
        return found

    async def put(
        self, owner: str, name: str, url: str, headers: Mapping[str, str], actor: str | None
    ) -> Sequence[McpTool] | None:
        """Reads the tools of a server, stores the server, and returns the tools. Returns None if the owner has too many
        servers. Raises ValueError if the address is not allowed, and ToolUnavailable if the server does not list its
        tools.
        """
        assert self._database is not None
        assert self._keys is not None
        assert self._sign_ins is not None
        self._allowed.check(URL(url))
        connection = self._connection(OwnServer(name, url, headers))

        async def read(session: McpSession) -> Collection[McpTool]:
            return (await connection.listed(session)).values()

        try:
            tools = list(await connection.use_as(owner, read))
        except MCPError as error:
            raise ToolUnavailable(f"The server does not list its tools: {error.message[:300]}") from error
        server = f"{OWN}{name}"
        key = await self._keys.find_or_create(owner)
        sealed = key.seal(to_json({"url": url, "headers": dict(headers)}), "own_server", server)
        accepted = to_json({each.name: digests_of(each) for each in tools})
        values = {"owner": owner, "server": server, "tokens": sealed, "tools": accepted, "most": MOST_OWN_SERVERS}
        async with self._database.transaction() as transaction:
            if await transaction.row(PUT_OWN_SERVER, **values) is None:
                return None
            await note_sign_in(transaction, "sign_in.made", owner, server, str(URL(url).origin()), (), actor)
        return tools

    async def delete(self, owner: str, name: str, actor: str | None) -> bool:
        assert self._database is not None
        self._kept.pop((owner, name), None)
        return await delete_sign_in(self._database, owner, f"{OWN}{name}", actor) is not None

    # --- tools -------------------------------------------------------------------------------------------------------

    @tool(read_only=True)
    async def find_tools(
        self,
        context: ToolContext,
        server: Annotated[str, Field(description="the name of a server; without it, all servers of the user")] = "",
        query: Annotated[str, Field(description="words of names and descriptions; without any, all tools")] = "",
    ) -> Outcome:
        """Finds tools of the MCP servers that the user has added, and returns their definitions."""
        lists = await self._lists(context.owner)
        if not lists:
            return Outcome("The user has added no MCP server.")
        if server:
            if server not in lists:
                return _unknown(server, lists)
            lists = {server: lists[server]}
        told = []
        for name, each in lists.items():  # one after another, because two simultaneous lists could ask the person twice
            try:
                found = await each.find_tools(context, json.dumps({"query": query}))
            except (ToolError, ToolUnavailable) as error:
                found = Outcome(str(error))
            told.append(f"The server {name!r}:\n{found.text}")
        return Outcome("\n\n".join(told))

    @tool(approval="always")
    async def call_tool(
        self,
        context: ToolContext,
        server: Annotated[str, Field(description="the name of the server")],
        name: Annotated[str, Field(description="the name of the tool")],
        input: Annotated[dict[str, Any] | None, Field(description="its input, by its schema")] = None,
    ) -> Outcome:
        """Calls a tool of an MCP server that the user has added."""
        lists = await self._lists(context.owner)
        if server not in lists:
            return _unknown(server, lists)
        return await lists[server].call_tool(context, json.dumps({"name": name, "input": input}))

    @tool
    async def call_from_app(
        self, context: ToolContext, server: str, name: str, input: dict[str, Any] | None = None
    ) -> Outcome:
        """Calls a tool of an MCP server of the user for an app of that server."""
        lists = await self._lists(context.owner)
        if server not in lists:
            return _unknown(server, lists)
        return await lists[server].call_from_app(context, json.dumps({"name": name, "input": input}))

    async def _lists(self, owner: str) -> Mapping[str, OwnerLists]:
        """Returns the lists of an owner, by server name. If a server was changed, its list is read again."""
        if self._database is None:
            raise ToolUnavailable("Servers of owners can be used by a running server alone.")
        found = {}
        for server, sealed in await self._rows(owner):
            key = (owner, server.name)
            kept = self._kept.get(key)
            if kept is None or kept[0] != sealed:
                lists = OwnerLists(self._connection(server), self._timing.shortest_ttl, self._timing.start_timeout)
                kept = self._kept[key] = (sealed, lists)
            self._kept.move_to_end(key)
            found[server.name] = kept[1]
        while len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        return found

    async def connections(self, owner: str) -> Sequence[McpConnection]:
        return [each.connection for each in (await self._lists(owner)).values()]

    def _connection(self, server: OwnServer) -> McpConnection:
        declared = McpServer(
            f"{OWN}{server.name}",
            url=server.url,
            headers=server.headers,
            owner_tools=True,
            prefix=PREFIX,
            allowed=self._allowed,
        )
        connection = McpConnection(declared, Changes(), self._timing)
        connection.sign_ins = self._sign_ins
        return connection


def _unknown(server: str, known: Collection[str]) -> Outcome:
    names = ", ".join(known) or "none"
    return Outcome(f"The user has no MCP server {server[:100]!r}. The servers are: {names}.", kind="unknown")
