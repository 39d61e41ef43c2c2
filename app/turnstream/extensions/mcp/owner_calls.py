"""Calls to an MCP server that use the owner's token. Each call has its own connection, so that tokens are never mixed
up.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from mcp import MCPError, types
from mcp.shared.dispatcher import ProgressFnT

from turnstream.extensions.mcp.declared import McpServer
from turnstream.extensions.mcp.oauth import Challenge
from turnstream.extensions.mcp.session import McpSession, session_with
from turnstream.extensions.mcp.sign_ins import SignIns
from turnstream.extensions.mcp.tasks import TaskCreated, TaskRequest, TaskState
from turnstream.extensions.mcp.transport import Bearer
from turnstream.libraries.outgoing.owner_tokens import NoTokenNow, Token
from turnstream.tools.tool import Outcome, ToolContext, ToolError, ToolUnavailable

T = TypeVar("T")

_MOST_SCOPES = 300  # maximum characters of listed scopes

Use = Callable[[McpSession], Awaitable[T]]


class SignInNeeded(Exception):
    """The owner has no token, or the server refuses it."""

    def __init__(self, scopes: tuple[str, ...] = (), seen: int | None = None) -> None:
        super().__init__("sign-in needed")
        self.scopes = scopes
        self.seen = seen


@dataclass(frozen=True, slots=True)
class OwnerCalls:
    server: McpServer
    sign_ins: SignIns

    async def call(
        self, tool: str, arguments: Mapping[str, Any], progress: ProgressFnT, context: ToolContext
    ) -> types.CallToolResult | Outcome:
        """Calls a tool, and raises the exceptions of a session. If the owner must sign in, the tool is not called, and
        the returned outcome asks for the sign-in.
        """
        return await self.use(context, lambda session: session.call(tool, arguments, progress))

    async def use(self, context: ToolContext, use: Use[T]) -> T | Outcome:
        """Returns the result of `use`, which gets a session with the owner's token. If this is not possible, returns an
        outcome, which may ask for a sign-in.
        """
        try:
            return await self.with_token(context.owner, use)
        except SignInNeeded as needed:
            if needed.scopes and self.server.scopes and not set(needed.scopes) <= set(self.server.scopes):
                return Outcome(self._out_of_scope(needed.scopes), is_error=True)
            ask = self.sign_ins.ask(context.owner, context.turn_id, self.server, needed.scopes, needed.seen)
            return Outcome(f"The user must sign in to {self.server.name} first.", kind="refused", sign_in=ask)

    def _out_of_scope(self, scopes: Sequence[str]) -> str:
        wanted = ", ".join(scope for scope in scopes if scope not in self.server.scopes)[:_MOST_SCOPES]
        return (
            f"The MCP server {self.server.name} wants the scopes {wanted}, which the operator's `scopes` do not have."
            " The call was not made."
        )

    async def send_task(self, owner: str, request: TaskRequest) -> TaskState | types.EmptyResult:
        try:
            return await self.with_token(owner, lambda session: session.send_task(request))
        except SignInNeeded:
            needs = "another token of the user" if self.server.exchange else "a sign-in"
            raise NoTokenNow(f"The task is followed again after {needs} to {self.server.name}.") from None

    async def with_token(self, owner: str, use: Use[T]) -> T:
        """Returns the result of `use`, which gets a session with the owner's token. A refused token is refreshed once.
        Raises SignInNeeded, ToolUnavailable, and the exceptions of `use`.
        """
        if self.server.allowed is not None:  # an owner's own server gets its headers, and no token
            answered = await self._used(None, use)
            assert not isinstance(answered, Challenge)
            return answered
        token = await self.sign_ins.token(owner, self.server)
        if token is None:
            raise SignInNeeded
        result = await self._used(token, use)
        if isinstance(result, Challenge) and not result.insufficient:
            refreshed = await self.sign_ins.refreshed(owner, self.server, token.version)
            if refreshed is None:
                raise SignInNeeded(seen=token.version)
            token = refreshed
            result = await self._used(token, use)
        if isinstance(result, Challenge):
            more = [scope for scope in result.scopes if scope not in token.scopes]
            raise SignInNeeded((*token.scopes, *more) if result.insufficient else (), token.version)
        return result

    async def _used(self, token: Token | None, use: Use[T]) -> T | Challenge:
        """Returns the result of `use`, or the challenge of a server that refuses the token. Raises the exceptions of
        `use`. They bypass the task groups of the SDK, because a task group would wrap them.
        """
        bearer, failure, results = None if token is None else Bearer(token.access), None, list[T]()
        try:
            async with session_with(self.server, bearer) as session:
                try:
                    results.append(await use(session))
                except (MCPError, ToolError, TaskCreated, ValueError, RuntimeError) as error:
                    failure = error
        except (OSError, ValueError, MCPError, ExceptionGroup) as error:
            task = asyncio.current_task()
            # a task group of the SDK reports the other error instead of the cancellation
            if task is not None and task.cancelling():
                raise asyncio.CancelledError from None
            if failure is None and not results and (bearer is None or bearer.challenge is None):
                raise ToolUnavailable(f"The MCP server {self.server.name} cannot be reached now.") from error
        if results:
            return results[0]
        if bearer is not None and bearer.challenge is not None:
            return bearer.challenge
        if failure is None:
            raise ToolUnavailable(f"The MCP server {self.server.name} went away in the middle of the call.")
        raise failure
