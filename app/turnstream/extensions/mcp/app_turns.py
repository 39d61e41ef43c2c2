"""Tool calls that an app makes. Each call is a turn without a model call, in a chat of the app, and this chat belongs
to the turn whose result has the app. So the tool's policies, limits and approvals apply, but the model of the
conversation does not read the call.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from secrets import token_hex
from typing import TYPE_CHECKING, Final
from uuid import UUID

from turnstream.api.caller import check_turn, of_caller
from turnstream.api.exchange import made_before, notify
from turnstream.api.services import Services
from turnstream.domain.blocks import Block
from turnstream.domain.charges import root_of
from turnstream.domain.chats import Chat
from turnstream.domain.errors import Conflict, NotFound, RequestRefused
from turnstream.domain.kinds import TEXT, TOOL_USE
from turnstream.domain.rounds import Round
from turnstream.domain.turns import OPEN, Status, ToolSpec, Turn, TurnRequest
from turnstream.extensions.mcp.sign_ins import OWN
from turnstream.extensions.mcp.tool import tool_name
from turnstream.kit.ids import new_id
from turnstream.libraries.dialects.apps import WantedCall, app_of
from turnstream.storage.chats.chats import CREATE_CHAT, LOCK_CHAT, chat_from
from turnstream.storage.chats.exchanges import Draft, Exchange, IdempotencyKey, KeyTaken
from turnstream.storage.database import Statement, Transaction
from turnstream.storage.rows import columns_of, columns_of_rounds, to_json
from turnstream.storage.runs.record import ADD_BLOCKS, INSERT_ROUNDS
from turnstream.tools.toolset import Toolset

if TYPE_CHECKING:
    from turnstream.extensions.mcp.connection import McpConnection

# Finds the connection to a server for an owner.
FindConnection = Callable[[str, str], "Awaitable[McpConnection | None]"]

MOST_CALLS: Final = 100  # calls that the apps of one turn may make
MOST_OPEN: Final = 10
_MOST_TITLE: Final = 80
_LABEL: Final = "app_call"  # the label with the id of the call whose result has the app
_FIRST: Final = 1  # the round and the attempt of the call

# A person may set the same label on any turn, so the query requires that the chat belongs to the turn.
LIST_APP_CALLS = Statement(
    f"""
    SELECT chats.id AS chat, turns.id AS turn, turns.status, blocks.name, blocks.tool_use_id,
        request->'labels'->>'{_LABEL}' AS app
    FROM chats JOIN turns ON turns.chat_id = chats.id
    JOIN blocks ON blocks.turn_id = turns.id AND blocks.round = {_FIRST} AND blocks.type = '{TOOL_USE}'
    WHERE chats.owner = :owner AND of_turn = :turn AND request->'labels'->>'{_LABEL}' IS NOT NULL
    ORDER BY turns.created_at, turns.id
    """
)
PUT_APP_CHAT = Statement("UPDATE chats SET of_turn = :turn WHERE id = :chat RETURNING id")
# The turn has the rows of a turn that continues after its first round, but no model call made that round.
BEGIN_APP_TURN = Statement(
    f"""
    WITH fenced AS (
        UPDATE turns SET attempt = {_FIRST}, started_at = created_at WHERE id = :turn RETURNING id
    )
    {INSERT_ROUNDS} RETURNING turn_id
    """
)


@dataclass(frozen=True, slots=True)
class AppCall:
    """A call that an app has made. `app` is the id of the call whose result has the app."""

    chat: UUID
    turn: UUID
    tool_use_id: str
    name: str
    status: Status
    app: str


async def app_calls(services: Services, owner: str, turn: UUID) -> Sequence[AppCall]:
    """Returns the calls that the apps of a turn have made, the oldest first."""
    rows = await services.storage.of_owner.rows(LIST_APP_CALLS, owner=owner, turn=turn)
    return [AppCall(**row) for row in rows]


async def call_from_app(
    services: Services, find: FindConnection, owner: str, wanted: WantedCall, key: IdempotencyKey | None
) -> Exchange:
    """Posts the turn that runs the call `wanted`. Raises NotFound, RequestRefused, Conflict after too many calls, and
    TooMany.
    """
    parent = await services.storage.turns.get(owner, wanted.chat, wanted.turn)
    check_turn(parent)
    found = ((block, app_of(block)) for block in parent.blocks if block.tool_use_id == wanted.app)
    result, app = next(((block, app) for block, app in found if app is not None), (None, None))
    if result is None or app is None or parent.request is None:
        raise NotFound(f"The call {wanted.app[:100]} of the turn {wanted.turn} has no result with an app.")
    toolset, name = services.resolver.toolset, result.name or "a tool"
    spec, sent = await _tool_of(toolset, find, owner, app.server, wanted)
    request = _request_of(services, parent, spec, wanted)
    words = Block(0, 0, 0, TEXT, f"The app of {name} calls {wanted.name}.")
    call = Block(0, _FIRST, _FIRST, TOOL_USE, sent, tool_use_id=f"app_{token_hex(12)}", name=spec.name)
    most_queued = services.plans.of(owner).queued_turns
    try:
        async with services.storage.exchanges.locked(owner, parent.chat_id, key) as (connection, _):
            rows = await connection.rows(LIST_APP_CALLS, owner=owner, turn=parent.id)
            before = [AppCall(**row) for row in rows]
            _check_number(parent, before, spec, toolset.policy(spec.name, [spec]).calls_per_turn)
            known = next((each.chat for each in before if each.app == wanted.app), None)
            chat = await _chat_of_app(connection, owner, parent, f"App of {name}"[:_MOST_TITLE], known)
            draft = Draft(chat, None, connection, key, None, (), most_queued)
            exchange = await draft.create([words], request, None)
            turn = exchange.assistant_turn.id
            await connection.row(ADD_BLOCKS, owner=owner, turn=turn, **columns_of([call]))
            await connection.row(BEGIN_APP_TURN, turn=turn, **columns_of_rounds([turn], [_round()]))
    except (KeyTaken, RequestRefused) as error:
        return await made_before(services, owner, key, error)
    notify(services, owner, exchange)
    return exchange


async def _tool_of(
    toolset: Toolset, find: FindConnection, owner: str, server: str, wanted: WantedCall
) -> tuple[ToolSpec, str]:
    """Returns the spec of the tool that is called, and its input as JSON text. Tools in an owner's list are called
    through one shared tool, whose spec is returned. Raises NotFound.
    """
    connection = await find(owner, server)
    missing = NotFound(f"The server {server[:100]!r} offers its apps no tool {wanted.name[:100]!r}.")
    if connection is None:
        raise missing
    declared = connection.server
    if not declared.owner_tools:
        called = (each for each in connection.tools.values() if each.name == wanted.name and each.for_apps)
        if (found := next(called, None)) is None:
            raise missing
        return found.spec, to_json(wanted.arguments)
    shared = toolset.find(tool_name(declared.name_prefix, "call_from_app"), None)
    if shared is None:
        raise missing
    names = {"server": server.removeprefix(OWN)} if declared.allowed is not None else {}
    return shared.spec, to_json({**names, "name": wanted.name, "input": wanted.arguments})


def _request_of(services: Services, parent: Turn, spec: ToolSpec, wanted: WantedCall) -> TurnRequest:
    """Returns the request of the new turn, which ends after its single call. The budgets of the turn that has the app
    also limit the new turn.
    """
    assert parent.request is not None
    models, model = services.resolver.models, parent.request.model
    try:  # no replica claims a turn whose model the server does not have
        models.check(model)
    except RequestRefused:
        model = models.check(services.resolver.defaults.model).id
    limits = replace(parent.request.limits, continue_after_tools=False, budget_seconds=None)
    request = replace(
        parent.request,
        model=model,
        system=None,
        params={},
        tools=(spec,),
        limits=limits,
        provider_tools=(),
        output=None,
        record=False,
        labels={_LABEL: wanted.app},
        trace=None,
        root_turn=root_of(parent) or parent.id,
    )
    return of_caller(request)


def _check_number(parent: Turn, before: Sequence[AppCall], spec: ToolSpec, limit: int | None) -> None:
    """Raises Conflict if the apps of the turn have reached a limit of calls."""
    made = sum(each.name == spec.name for each in before)
    made += sum(block.is_call and block.name == spec.name for block in parent.blocks)
    if limit is not None and made >= limit:
        raise Conflict(f"{spec.name} has reached its limit of {limit} calls in one turn, calls of apps included.")
    if len(before) >= MOST_CALLS:
        raise Conflict(f"The apps of the turn have reached the limit of {MOST_CALLS} calls.")
    if sum(each.status in OPEN for each in before) >= MOST_OPEN:
        raise Conflict(f"{MOST_OPEN} calls of the apps of this turn are open: wait until one ends.")


async def _chat_of_app(connection: Transaction, owner: str, parent: Turn, title: str, known: UUID | None) -> Chat:
    if known is not None:
        row = await connection.row(LOCK_CHAT, chat=known, owner=owner)
    else:
        values = {"title": title, "system_prompt": None, "settings": "{}"}
        row = await connection.row(CREATE_CHAT, chat=new_id(), owner=owner, **values)
    assert row is not None
    chat = chat_from(row)
    if known is None:
        await connection.row(PUT_APP_CHAT, chat=chat.id, turn=parent.id)
    return chat


def _round() -> Round:
    now = datetime.now(UTC)
    return Round(
        _FIRST,
        _FIRST,
        messages=1,
        stop_reason="tool_use",
        sealed_by=_FIRST,
        started_at=now,
        first_delta_at=now,
        sealed_at=now,
    )
