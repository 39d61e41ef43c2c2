"""Handlers of actions: a person answers waiting calls with results of client tools, or decides about approvals."""

from collections.abc import Iterator, Sequence

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.attachments import Contents, result_parts, user_blocks
from turnstream.api.caller import check_turn
from turnstream.api.codec import output_text, parsed, to_json
from turnstream.api.http.reading import id_of, idempotency_key_of, read_body
from turnstream.api.schemas.responses import GrantOut, GrantsOut, Revoked
from turnstream.api.schemas.tools import ActionIn, ActionsIn, AnswerIn, ApproveIn, DenyIn, ResultIn
from turnstream.api.services import Services, identity_of, services_and_owner
from turnstream.api.views import json_response, shown_turn
from turnstream.domain.asks import AskAnswer
from turnstream.domain.blocks import Block
from turnstream.domain.deferred import NamedCalls
from turnstream.domain.errors import RequestRefused
from turnstream.domain.identity import Identity
from turnstream.domain.results import joined_texts, layout_of
from turnstream.domain.turns import Turn
from turnstream.storage.chats.actions import Decision
from turnstream.storage.chats.exchanges import IdempotencyKey
from turnstream.storage.database import OWNER
from turnstream.storage.rows import from_json
from turnstream.tools.grants import meets
from turnstream.tools.schemas import InputSchema


async def act(request: Request) -> Response:
    services, owner = services_and_owner(request)
    chat, turn = id_of(request, "chat"), id_of(request, "turn")
    sent, body = await read_body(request, ActionsIn)
    for action in sent.actions:
        identity_of(request).require("chat" if isinstance(action, ResultIn) else "approve")
    key = idempotency_key_of(request, body)
    before = await services.storage.turns.get(owner, chat, turn)
    try:
        decisions = await decisions_of(sent.actions, before, owner, services)
    except RequestRefused:
        # A repeated request may fail checks that the first request passed, for example if an upload was deleted since
        # then.
        if not await services.storage.exchanges.knows(owner, key):
            raise
        decisions = []
    answered = await store_answers(services, identity_of(request), before, decisions, key)
    return await shown_turn(answered, services).response(202)


async def list_grants(request: Request) -> Response:
    services, owner = services_and_owner(request)
    chat = await services.storage.chats.get(owner, id_of(request, "chat"))
    grants = [
        GrantOut(
            id=grant.id,
            tool=grant.tool,
            when=from_json(grant.when),
            created_at=grant.created_at,
            turn=grant.turn,
            tool_use_id=grant.tool_use_id,
        )
        for grant in await services.storage.grants.of_chat(chat.id)
    ]
    return json_response(GrantsOut(grants=grants))


async def revoke_grant(request: Request) -> Response:
    services, owner = services_and_owner(request)
    chat, grant = id_of(request, "chat"), id_of(request, "grant")
    # The audit trail records the credential that revokes the grant.
    await services.storage.grants.revoke(owner, chat, grant, identity_of(request).actor)
    return json_response(Revoked(revoked=grant))


async def store_answers(
    services: Services,
    identity: Identity,
    turn: Turn,
    decisions: Sequence[Decision],
    key: IdempotencyKey | None = None,
    message: Sequence[Block] = (),
) -> Turn:
    """Stores a person's decisions about calls of the turn, with a `message` to the turn, and lets the turn continue.
    Returns the new state of the turn.
    """
    owner = OWNER.get()  # the turn's owner: the caller may be an approver, who is another owner
    answered = await services.storage.actions.answer(owner, turn.chat_id, turn.id, decisions, key, identity, message)
    if not answered.ended:
        await services.live.refresh(turn.id)
        services.live.notify_owner(owner)
    return answered


async def decisions_of(
    actions: Sequence[ActionIn], turn: Turn, owner: str, services: Services, list_field: str = "actions"
) -> list[Decision]:
    """Converts the actions in `list_field` into decisions about calls of the turn. Raises RequestRefused."""
    seen: set[str] = set()
    for place, action in enumerate(actions):
        if action.tool_use_id in seen:
            raise RequestRefused(
                f"`{list_field}.{place}.tool_use_id` must name another call: {action.tool_use_id} is answered twice.",
                field=f"{list_field}.{place}.tool_use_id",
            )
        seen.add(action.tool_use_id)
    contents = Contents(services.http.max_turn_bytes)
    decisions = [
        await _decision(each, turn, owner, services, f"{list_field}.{place}", contents)
        for place, each in enumerate(actions)
    ]
    return [*decisions, *_following(decisions, turn)]


def _following(decisions: Sequence[Decision], turn: Turn) -> Iterator[Decision]:
    """Yields approvals of other waiting calls that a new remembered approval covers, so that nobody decides twice."""
    inputs = {block.key: block.text for block in NamedCalls(turn.request).turn(turn).blocks if block.is_call}
    tools = {ask.tool_use_id: (ask.name, ask.tool_digest) for ask in turn.asks if ask.tool_digest is not None}
    decided = {decision.tool_use_id for decision in decisions}
    for decision in (decision for decision in decisions if decision.remember):
        for ask in turn.asks:
            if ask.answer is not None or ask.tool_use_id in decided or ask.tool_use_id not in tools:
                continue
            same = tools[ask.tool_use_id] == tools.get(decision.tool_use_id)
            if same and (decision.when is None or meets(from_json(decision.when), inputs[ask.key])):
                decided.add(ask.tool_use_id)
                yield Decision(ask.tool_use_id, ask.digest, AskAnswer("approve"), decision.field, follows=True)


async def _decision(
    action: ActionIn, turn: Turn, owner: str, services: Services, field: str, contents: Contents
) -> Decision:
    match action:
        case ResultIn(blocks=blocks):
            text, layout = output_text(action.output), None
            if blocks is not None:
                parts = result_parts(await user_blocks(blocks, owner, services, f"{field}.blocks", contents))
                text, layout = joined_texts(parts), layout_of(parts)
            data = None if action.data is None else to_json(action.data).decode()
            answer = AskAnswer("result", text, action.is_error, layout=layout, client_data=data)
            return Decision(action.tool_use_id, None, answer, field)
        case ApproveIn():
            answer = AskAnswer("approve", input=_edited(action, turn, field))
            when, remember = _condition(action, answer.input, turn, field), action.remember is not None
            return Decision(action.tool_use_id, action.input_digest, answer, field, remember, when)
        case DenyIn():
            return Decision(action.tool_use_id, action.input_digest, AskAnswer("deny", action.reason), field)
        case AnswerIn():
            return _elicited(action, turn, field)


def _elicited(action: AnswerIn, turn: Turn, field: str) -> Decision:
    """Checks the answer to a question against the question's schema, whose defaults replace an omitted `content`."""
    asked = [ask for ask in turn.asks if (ask.call_id, ask.digest) == (action.tool_use_id, action.input_digest)]
    question = parsed(asked[-1].question) if asked and asked[-1].question is not None else {}
    content = action.content
    if action.action == "accept" and "schema" in question:
        if content is None:
            fields = question["schema"].get("properties", {}).items()
            known = {name: each["default"] for name, each in fields if isinstance(each, dict) and "default" in each}
            content = known or None
        schema = InputSchema(to_json(question["schema"]).decode())
        if complaint := schema.complaint(content or {}):
            raise RequestRefused(complaint, field=f"{field}.content")
    answer = AskAnswer("result", to_json({"action": action.action, "content": content}).decode())
    id = asked[-1].tool_use_id if asked else action.tool_use_id
    return Decision(id, action.input_digest, answer, field, elicited=True)


def _condition(action: ApproveIn, edited: str | None, turn: Turn, field: str) -> str | None:
    """Returns the condition of a grant as JSON text. Raises RequestRefused if the approved call does not meet it."""
    if action.remember is None or action.remember.when is None:
        return None
    when = {name: condition.model_dump(exclude_unset=True) for name, condition in action.remember.when.items()}
    calls = [block for block in NamedCalls(turn.request).turn(turn).blocks if block.is_call]
    texts = [call.text for call in calls if call.tool_use_id == action.tool_use_id]
    if texts and not meets(when, edited or texts[-1]):
        raise RequestRefused(
            f"`{field}.remember.when` must hold for the call that is approved: each member that it names must be in the"
            " input, and meet its condition.",
            field=f"{field}.remember.when",
        )
    return to_json(when).decode()


def _edited(action: ApproveIn, turn: Turn, field: str) -> str | None:
    """Returns the edited input of a call as JSON text, validated like the model's input; None if it was not edited."""
    names = {ask.name for ask in turn.asks if ask.tool_use_id == action.tool_use_id}
    specs = turn.request.tools if turn.request else ()
    spec = next((spec for spec in specs if spec.name in names), None)
    if action.input is None or spec is None:
        return None
    check_turn(turn)
    if complaint := InputSchema(spec.input_schema).complaint(action.input):
        raise RequestRefused(complaint, field=f"{field}.input")
    return to_json(action.input).decode()
