"""Answers requests that apps of MCP servers send through their client, in a run without a message
(`__proxiedMCPRequest`).
"""

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final
from uuid import UUID

from turnstream.api.services import Services
from turnstream.domain.errors import Forbidden, NotFound, RequestRefused
from turnstream.domain.identity import Identity
from turnstream.domain.kinds import TOOL_RESULT
from turnstream.extensions.ag_ui.encoder import Run, encode, run_finished, run_started
from turnstream.extensions.ag_ui.messages import call_in
from turnstream.extensions.ag_ui.schemas import AgUiProxiedIn
from turnstream.libraries.dialects.apps import WantedCall, app_host, mcp_result
from turnstream.libraries.dialects.chats import wait_for_end
from turnstream.storage.chats.exchanges import IdempotencyKey

_LONGEST: Final = 2000  # maximum characters of a name or an address


async def proxied_run(
    services: Services, identity: Identity, chat: UUID, run: Run, sent: AgUiProxiedIn, key: IdempotencyKey | None
) -> AsyncGenerator[bytes, None]:
    """Yields the run that answers an app's request. The result of the run is the MCP server's answer, or an object with
    an `error`.
    """
    yield encode(list(run_started(run, {})))
    try:
        result = await _answer(services, identity, chat, sent, key)
    except RequestRefused as error:
        result = {"error": error.detail}
    yield encode([run_finished(run, {"type": "success"}, result=result)])


async def _answer(
    services: Services, identity: Identity, chat: UUID, sent: AgUiProxiedIn, key: IdempotencyKey | None
) -> Mapping[str, Any]:
    """Returns the MCP server's answer to an app's request. Raises RequestRefused."""
    if identity.is_bound:
        raise Forbidden("A token for a single chat or turn reaches no MCP server.")
    host, named = app_host(services), call_in(sent.server_hash)
    if host is None or named is None:
        raise NotFound("`serverHash` must be that of an activity `mcp-apps` of this thread.")
    call, turn, _ = named
    if sent.method == "ping":
        return {}
    if sent.method == "resources/read":
        return await host.app_page(identity.owner, sent.server_id, _text(sent.params, "uri"))
    if sent.method != "tools/call":
        raise RequestRefused("`method` must be `tools/call`, `resources/read` or `ping`.", field="method")
    identity.require("chat", "send")
    arguments = sent.params.get("arguments") or {}
    if not isinstance(arguments, dict):
        raise RequestRefused("`arguments` must be a JSON object.", field="arguments")
    wanted = WantedCall(chat, UUID(turn), call, _text(sent.params, "name"), arguments)
    made = (await host.call_from_app(services, identity.owner, wanted, key)).assistant_turn
    await wait_for_end(services, identity.owner, made, None)  # a person may have to decide about the call first
    ended = await services.storage.turns.get(identity.owner, made.chat_id, made.id)
    result = next((block for block in ended.blocks if block.type == TOOL_RESULT), None)
    return {"error": "The call has ended without a result."} if result is None else mcp_result(result)


def _text(params: Mapping[str, Any], name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST:
        raise RequestRefused(f"`{name}` must be a text of 1 to {_LONGEST:,} characters.", field=name)
    return value
