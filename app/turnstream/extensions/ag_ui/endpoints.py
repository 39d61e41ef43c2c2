"""Handlers for AG-UI clients such as `HttpAgent` and CopilotKit, which see chats as threads and turns as runs."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.actions import decisions_of
from turnstream.api.caller import CALLER
from turnstream.api.codec import output_text, to_json
from turnstream.api.http.reading import idempotency_key_of, read_body
from turnstream.api.schemas.tools import ActionsIn
from turnstream.api.services import Services, identity_of, path_for, services_and_owner
from turnstream.api.views import json_response
from turnstream.domain.asks import QUESTIONS, Ask, AskAnswer
from turnstream.domain.errors import RequestRefused
from turnstream.domain.identity import Identity
from turnstream.domain.turns import Turn
from turnstream.extensions.ag_ui.app_requests import proxied_run
from turnstream.extensions.ag_ui.encoder import Run, encode, run_finished, run_started
from turnstream.extensions.ag_ui.messages import (
    ClientIds,
    call_in,
    ids_of_client,
    interrupts_of,
    past_items,
    pending_calls_of,
    thread_messages,
)
from turnstream.extensions.ag_ui.schemas import (
    AgUiMessageIn,
    AgUiResumeIn,
    AgUiStopped,
    AgUiUserMessageIn,
    RunInput,
    blocks_in,
)
from turnstream.extensions.ag_ui.stream import response, run_stream
from turnstream.libraries.dialects.chats import (
    PageOptions,
    chat_of,
    is_news,
    new_chat,
    new_turn,
    newest_answer,
    newest_path,
    newest_turn,
    page_tool,
    post_by_chat,
    replace_answer,
    stop_all,
    storable_in_messages,
    with_page,
)
from turnstream.libraries.dialects.histories import (
    NO_MESSAGE,
    go_on_from_results,
    key_of,
    last_answer,
    post_behind_items,
    posted_with,
    seed_of,
    turn_of,
)
from turnstream.libraries.dialects.results import store_results
from turnstream.libraries.dialects.schemas import UiOptions
from turnstream.storage.chats.actions import Decision
from turnstream.storage.chats.exchanges import IdempotencyKey, Parent, Target


async def run_agent(request: Request) -> Response:
    """Posts a message, or answers interrupts and page calls. Responds with the events of the run."""
    services, owner = services_and_owner(request)
    sent, body = await read_body(request, RunInput)
    key = idempotency_key_of(request, body)
    identity, uploads = identity_of(request), path_for(request, "/api/uploads/")
    chat = await chat_of(services, identity, sent.thread_id)
    services.streams.take(request)
    run = Run(sent.thread_id, sent.run_id, sent.state, sent.protocol)
    if sent.proxied is not None:
        return response(services, proxied_run(services, identity, chat, run, sent.proxied, key))
    last = sent.messages[-1] if sent.messages else None
    answered: set[str] = set()
    if sent.resume or (last is not None and last.role == "tool"):
        found = await _answer(services, identity, chat, sent)
        continues = found is not None
        turn, answered = found or (await _go_on(services, owner, chat, sent, key), answered)
    elif last is not None and last.role == "user":
        identity.require("send")
        turn, continues = await _post(services, owner, chat, sent, last, key)
    else:
        raise RequestRefused(
            "`messages` must end with a user message or the result of a tool, unless `resume` answers interrupts.",
            field="messages",
        )
    return run_stream(services, owner, turn, run, sent.messages, uploads, continues=continues, answered=answered)


async def connect_agent(request: Request) -> Response:
    """Sends all messages of the thread, and then the remaining events of its open answer."""
    services, owner = services_and_owner(request)
    sent, _ = await read_body(request, RunInput)
    chat = await chat_of(services, identity_of(request), sent.thread_id)
    services.streams.take(request)
    uploads = path_for(request, "/api/uploads/")
    run = Run(sent.thread_id, sent.run_id, sent.state, sent.protocol)
    turn = await newest_turn(services, owner, chat)
    if turn is not None and is_news(turn):
        return run_stream(services, owner, turn, run, sent.messages, uploads, continues=True)
    path = await services.storage.turns.path(owner, chat, turn.id) if turn else []
    return response(services, _at_rest(run, path, sent.messages, uploads))


async def get_thread(request: Request) -> Response:
    """Returns the messages on the path to the newest turn, and the interrupts and calls that this turn waits for."""
    services, owner = services_and_owner(request)
    id: str = request.path_params["id"]
    chat = await chat_of(services, identity_of(request), id)
    path = await newest_path(services, owner, chat)
    waits = path[-1] if path and path[-1].status == "waiting" else None
    thread = {
        "threadId": id,
        "chat": chat,
        "messages": await thread_messages(path, path_for(request, "/api/uploads/"), ClientIds()),
        "interrupts": interrupts_of(waits) if waits else [],
        "pendingToolCallIds": pending_calls_of(waits) if waits else [],
    }
    return Response(to_json(thread), media_type="application/json")


async def stop_thread(request: Request) -> Response:
    """Cancels all open turns of the thread. A client's `abortRun()` is not enough: it only closes the client's
    connection.
    """
    services, owner = services_and_owner(request)
    chat = await chat_of(services, identity_of(request), request.path_params["id"])
    return json_response(AgUiStopped(stopped=await stop_all(services, owner, chat)))


async def _at_rest(
    run: Run, path: Sequence[Turn], messages: Sequence[AgUiMessageIn], uploads: str
) -> AsyncGenerator[bytes, None]:
    """Yields the run of a thread without a running turn. If the thread is unknown, the client keeps its messages."""
    events = list(run_started(run, {}))
    if path:
        found = await thread_messages(path, uploads, ids_of_client(path, messages))
        events.append({"type": "MESSAGES_SNAPSHOT", "messages": found})
    yield encode([*events, run_finished(run, {"type": "success"})])


# --- a new message ---------------------------------------------------------------------------------------------------


async def _post(
    services: Services, owner: str, chat: UUID, sent: RunInput, message: AgUiUserMessageIn, key: IdempotencyKey | None
) -> tuple[Turn, bool]:
    """Returns the turn that answers the message, and whether this turn existed before. If a client repeats a message,
    the run attaches to the open answer, or requests another answer if the earlier answer has ended.
    """
    before, known = await last_answer(services, owner, chat, _turns_named(sent.messages[:-1]))
    place: Parent = before.id if before else "newest"
    content = [part.sent() for part in message.content] if isinstance(message.content, list) else message.content
    of_message = key_of("ag-ui", chat, message.id, str(place), content) if message.id else None
    user_turn = await turn_of(services, owner, chat, message.id, "user")
    user_turn = user_turn or await posted_with(services, owner, key or of_message)
    options = await _options(services, owner, chat, sent, before)
    answer = await newest_answer(services, owner, user_turn)
    if answer is not None:
        if not answer.ended:
            return answer, True
        CALLER.get().require("chat")
        return (await replace_answer(services, owner, answer, options, options.on_busy, key)).assistant_turn, False
    new = new_turn(options, blocks_in(message))
    target, key = Target(owner, chat, place, new.on_busy), key or of_message
    after = past_items(sent.messages[known:-1])
    exchange = await post_behind_items(services, new, target, key, after, "messages") if before else None
    exchange = exchange or await post_by_chat(
        services,
        new,
        target,
        key,
        lambda: seed_of(services, CALLER.get(), past_items(sent.messages[:-1]), "messages"),
    )
    return exchange.assistant_turn, False


async def _options(services: Services, owner: str, chat: UUID, sent: RunInput, before: Turn | None) -> UiOptions:
    page = PageOptions(
        [page_tool(tool.name, tool.description, tool.parameters) for tool in sent.tools],
        "\n\n".join(output_text(each.content) for each in sent.messages if each.role in {"system", "developer"}),
        [f"{each.description}:\n{each.value}" for each in sent.context],
    )
    return await with_page(services, owner, chat, sent.options, page, before)


async def _go_on(services: Services, owner: str, chat: UUID, sent: RunInput, key: IdempotencyKey | None) -> Turn:
    """Creates a turn that continues the last answer of the thread with tool results for which no turn waits. Raises
    RequestRefused.
    """
    last = sent.messages[-1]
    before, known = await last_answer(services, owner, chat, _turns_named(sent.messages))
    items = list(past_items(sent.messages[known:]))
    new = new_turn(await _options(services, owner, chat, sent, before), [NO_MESSAGE])
    key = key or key_of("ag-ui", chat, last.tool_call_id, output_text(last.content))
    exchange = await go_on_from_results(services, new, new_chat(owner, chat), before, items, key, "messages")
    if exchange is None:
        raise RequestRefused("`messages` must end with a result for each call of the last answer.", field="messages")
    return exchange.assistant_turn


def _turns_named(messages: Sequence[AgUiMessageIn]) -> list[str]:
    """Returns for each message the turn id at the start of the message's id, or an empty text for a user message."""
    return ["" if message.role == "user" else message.id.partition(".")[0] for message in messages]


# --- calls that wait for a person ------------------------------------------------------------------------------------


async def _answer(services: Services, identity: Identity, chat: UUID, sent: RunInput) -> tuple[Turn, set[str]] | None:
    """Stores the answers to waiting calls. Returns the turn of these calls, and the ids of the answered interrupts.
    Returns None if the last message is the result of a call from outside of this thread.
    """
    owner = identity.owner
    results = {message.tool_call_id: message for message in sent.messages if message.role == "tool"}
    named = [entry.interrupt_id.rpartition(":")[0] for entry in sent.resume] or [sent.messages[-1].tool_call_id or ""]
    call = call_in(named[0])
    turn = await turn_of(services, owner, chat, call[1], "assistant") if call else None
    if turn is None and not sent.resume:
        return None
    if turn is None:
        raise RequestRefused("`resume` must answer calls of an answer in this thread.", field="resume")
    waiting = {
        f"{ask.call_id}.{turn.id}.{ask.round}": ask for ask in turn.asks if ask.answer is None and ask.kind == "client"
    }
    decisions = [_result(ask, results[call]) for call, ask in waiting.items() if call in results]
    entries = [entry for entry in sent.resume if _is_open(turn, entry)]
    actions = ActionsIn.model_validate({"actions": [_action(turn, entry) for entry in entries]}) if entries else None
    if decisions:
        identity.require("chat")
    if actions is not None:
        identity.require("approve")
    if actions is not None:
        decisions += await decisions_of(actions.actions, turn, owner, services, "resume")
    if decisions and not turn.ended:
        turn = await store_results(services, identity, turn, decisions)
    return turn, {entry.interrupt_id for entry in entries}


def _is_open(turn: Turn, entry: AgUiResumeIn) -> bool:
    """Whether the turn still waits for this answer: a late answer from another page has no effect."""
    return any(interrupt["id"] == entry.interrupt_id for interrupt in interrupts_of(turn))


def _result(ask: Ask, message: AgUiMessageIn) -> Decision:
    text = storable_in_messages(message.error or output_text(message.content))
    return Decision(ask.tool_use_id, None, AskAnswer("result", text, is_error=message.error is not None), "messages")


def _action(turn: Turn, entry: AgUiResumeIn) -> dict[str, Any]:
    """Converts the answer to an interrupt into an action of turnstream's own API."""
    call, _, digest = entry.interrupt_id.rpartition(":")
    found = call_in(call)
    assert found is not None
    payload = entry.payload if isinstance(entry.payload, dict) else {"approved": entry.payload is True}
    about = {"tool_use_id": found[0], "input_digest": digest}
    if any(ask.kind in QUESTIONS and ask.digest == digest for ask in turn.asks):
        if entry.status == "cancelled":
            return {"type": "answer", **about, "action": "cancel"}
        return {"type": "answer", **about, "action": "accept", "content": payload}
    if entry.status == "cancelled" or payload.get("approved") is not True:
        return {"type": "deny", **about, "reason": str(payload.get("reason") or "")}
    edited = {} if payload.get("editedArgs") is None else {"input": payload["editedArgs"]}
    remember = {} if payload.get("remember") is None else {"remember": payload["remember"]}
    return {"type": "approve", **about, **edited, **remember}
