"""Converts turns to AG-UI messages that equal the messages that a client builds from the events of the turns' runs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any
from uuid import UUID

from turnstream.api.codec import block_details, input_of, output_text, parsed, to_json
from turnstream.domain.asks import QUESTIONS, AskKind
from turnstream.domain.blocks import Block
from turnstream.domain.events import RequiredAction
from turnstream.domain.kinds import CALLS, DOCUMENT, IMAGE, TEXT, THINKING, USER_TEXT
from turnstream.domain.log import open_actions_of
from turnstream.domain.results import count_files, parts_of
from turnstream.domain.turns import Turn
from turnstream.extensions.ag_ui.schemas import AgUiMessageIn, AgUiUserMessageIn, blocks_in
from turnstream.kit.offload import Portions
from turnstream.libraries.dialects.apps import app_of, mcp_result
from turnstream.libraries.dialects.histories import (
    PastCall,
    PastItem,
    PastMessage,
    PastResult,
    PastText,
    is_recorded,
    spoken,
)
from turnstream.libraries.dialects.projection import CallResult, Close, Closed, Projection, ProviderResult

Json = dict[str, Any]

_OF_PAGES = frozenset({"system", "developer", "assistant"})  # roles that the messages of a page may begin with
_APPROVAL_SCHEMA: Json = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "reason": {"type": "string"},
        "editedArgs": {"type": "object"},
    },
    "required": ["approved"],
}


# --- ids -------------------------------------------------------------------------------------------------------------


def reply_id(turn: UUID, round: int) -> str:
    """Returns the id of the assistant message that has the text and the calls of a round."""
    return f"{turn}.r{round}"


def reply_round(before: Sequence[Block], round: int, type: str) -> int:
    """Returns the round whose message contains a text or a call of `round`; `before` are the blocks before it. A round
    that continues an interrupted text extends the message of that text.
    """
    first = next((place for place, block in enumerate(before) if block.round == round), len(before))
    opener = before[first].type if first < len(before) else type
    if first and opener == TEXT and before[first - 1].type == TEXT and before[first - 1].interrupted:
        return reply_round(before[:first], before[first - 1].round, TEXT)
    return round


def block_id(turn: UUID, index: int) -> str:
    """Returns the id of a message that has only one block."""
    return f"{turn}.{index}"


def call_id(turn: UUID, round: int, tool_use_id: str) -> str:
    """Returns the id of a call in its thread: models may repeat their own ids."""
    return f"{tool_use_id}.{turn}.{round}"


def call_in(id: str) -> tuple[str, str, str] | None:
    """Returns the `tool_use_id`, turn and round of a call. Returns None for an id in another form."""
    parts = id.rsplit(".", 2)
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 else None


@dataclass(frozen=True, slots=True)
class ClientIds:
    """Data of a thread that only the client has: the client's ids of user messages (by turn) and of tool results (by
    call), and the `first` messages, which the client wrote itself. `recorded` is the number of turns that the server
    recorded from these first messages.
    """

    users: Mapping[UUID, str] = field(default_factory=dict)
    results: Mapping[str, str] = field(default_factory=dict)
    first: Sequence[Json] = ()
    recorded: int = 0


def ids_of_client(path: Sequence[Turn], messages: Sequence[AgUiMessageIn]) -> ClientIds:
    """Returns the client's own data of the thread. User messages are matched with the turns of the path by id or by
    text, up to the first difference. After the difference, the client's ids are not used: the client keeps the order of
    known ids, so messages would appear in the wrong order.
    """
    known = {str(turn.id) for turn in path}
    own = [message.id.partition(".")[0] not in known for message in messages]
    first, recorded = _first(path, messages[: own.index(False) if False in own else len(own)])
    turns = [turn for turn in spoken(path[recorded:]) if turn.role == "user"]
    sent = [
        message
        for message, is_own in zip(messages[len(first) :], own[len(first) :], strict=True)
        if isinstance(message, AgUiUserMessageIn) and (is_own or "." not in message.id)
    ]
    users: dict[UUID, str] = {}
    for turn, message in zip(turns, sent, strict=False):
        if not message.id or (message.id != str(turn.id) and _said(message) != _words(turn.blocks)):
            break
        users[turn.id] = message.id
    results = {message.tool_call_id: message.id for message in messages if message.tool_call_id and message.id}
    return ClientIds(users, results, [each.model_dump(by_alias=True, exclude_unset=True) for each in first], recorded)


def _first(path: Sequence[Turn], own: Sequence[AgUiMessageIn]) -> tuple[Sequence[AgUiMessageIn], int]:
    """Returns the messages that the client had before the first message of the server, and the number of turns that
    were recorded from these messages. They keep the client's ids, because the client would show messages with other ids
    as new.
    """
    recorded = 2 * sum(1 for _ in takewhile(is_recorded, path[1::2]))
    said = sum(turn.role == "user" for turn in spoken(path[:recorded]))
    places = [place for place, message in enumerate(own) if message.role == "user"]
    first = own[: places[said]] if said < len(places) else own
    if recorded and said <= len(places) and any(message.role == "assistant" for message in first):
        return first, recorded
    return list(takewhile(lambda message: message.role in _OF_PAGES, own)), 0


def _words(blocks: Sequence[Block]) -> str:
    return "".join(block.text for block in blocks if block.type == TEXT)


def _said(message: AgUiUserMessageIn) -> str:
    return "".join(part.text or "" for part in message.parts)


# --- messages --------------------------------------------------------------------------------------------------------


async def thread_messages(path: Sequence[Turn], uploads: str, ids: ClientIds) -> list[Json]:
    """Returns the messages of a path. The URL of an upload is `uploads` followed by the upload's id."""
    messages, portions = list(ids.first), Portions()
    for turn in spoken(path[ids.recorded :]):
        await portions.pause()
        if turn.role == "user":
            content = _user_content(turn.blocks, uploads)
            messages.append({"id": ids.users.get(turn.id, str(turn.id)), "role": "user", "content": content})
        else:
            messages += await answer_messages(turn.id, turn.blocks, ids, portions)
    return messages


def _user_content(blocks: Sequence[Block], uploads: str) -> str | list[Json]:
    if all(block.type == TEXT for block in blocks):
        return _words(blocks)
    return [part for block in blocks if (part := _user_part(block, uploads))]


def _user_part(block: Block, uploads: str) -> Json | None:
    if block.type == TEXT:
        return {"type": "text", "text": block.text}
    return _file_part(block.type, block_details(block).get("data", {}).get("source", {}), uploads)


def _file_part(type: str, source: Mapping[str, Any], uploads: str) -> Json | None:
    if type not in {IMAGE, DOCUMENT} or "id" not in source:
        return None
    found = {"type": "url", "value": f"{uploads}{source['id']}", "mimeType": source["media_type"]}
    return {"type": type, "source": found}


async def answer_messages(turn: UUID, blocks: Sequence[Block], ids: ClientIds, portions: Portions) -> list[Json]:
    """Returns the messages of an assistant turn: one message for the text and the calls of each round, and one for each
    other block. A result follows the message of its call, after earlier results. A turn may have thousands of blocks.
    """
    groups: list[list[Json]] = []  # each group is a message, followed by the results of its calls
    replies: dict[int, list[Json]] = {}
    called: dict[str, list[Json]] = {}
    rounds: dict[int, int] = {}

    def add(message: Json) -> list[Json]:
        groups.append([message])
        return groups[-1]

    def reply(place: int, block: Block) -> list[Json]:
        if block.round not in rounds:
            rounds[block.round] = reply_round(blocks[:place], block.round, block.type)
        round = rounds[block.round]
        if round not in replies:
            replies[round] = add({"id": reply_id(turn, round), "role": "assistant"})
        return replies[round]

    projection = Projection()
    for place, block in enumerate(blocks):
        await portions.pause()
        closed = projection.close(block)
        if block.type == TEXT:
            message, *_ = reply(place, block)
            message.setdefault("content", []).append(block.text)
            if noted := text_metadata(block):
                message.setdefault("metadata", {}).update(noted)
        elif block.type in CALLS:
            function = {"name": block.name, "arguments": block.text}
            id = call_id(turn, block.round, block.tool_use_id or "")
            called[id] = reply(place, block)
            message, *_ = called[id]
            message.setdefault("toolCalls", []).append({"id": id, "type": "function", "function": function})
        elif isinstance(closed, Close):
            add(_single_message(turn, block))
        if (result := result_message(turn, closed)) is not None:
            result["id"] = ids.results.get(result["toolCallId"], result["id"])
            if result["toolCallId"] in called:
                called[result["toolCallId"]].append(result)
            else:
                add(result)
        if (activity := app_activity(turn, block, blocks)) is not None:
            id = activity.pop("messageId")
            add({"id": id, "role": "activity", **activity})
    for message, *_ in replies.values():
        if "content" in message:
            message["content"] = "".join(message["content"])
    return [message for group in groups for message in group]


def _single_message(turn: UUID, block: Block) -> Json:
    if block.type == THINKING:
        return {"id": block_id(turn, block.index), "role": "reasoning", "content": block.text}
    if block.type == USER_TEXT:
        return {"id": block_id(turn, block.index), "role": "user", "content": block.text}
    return {"id": block_id(turn, block.index), "role": "activity", **activity_of(block)}


def result_message(turn: UUID, closed: Closed) -> Json | None:
    """Returns the message for a call's result. An interrupted call also gets this message, because no real result will
    follow. Returns None for other blocks.
    """
    block = closed.block
    content: Any = block.text
    noted: Json = {}
    id, call = block_id(turn, block.index), call_id(turn, block.round, block.tool_use_id or "")
    match closed:
        case ProviderResult(call=Block(round=round, tool_use_id=of), output=output):
            call, content = call_id(turn, round, of or ""), to_json(output).decode()
        case CallResult():
            if count_files(block):
                content = [_result_part(part) for part in parts_of(block)]
            noted = {"is_error": True} if block.is_error else {}
            if block.client_data is not None:
                noted["data"] = parsed(block.client_data)
        case Close(runner=str()) if block.interrupted:
            id, content, noted = f"{id}.result", "interrupted", {"is_error": True}  # this id has the index of the call
        case Close():
            return None
    metadata = {"metadata": noted} if noted else {}
    return {"id": id, "role": "tool", "toolCallId": call, "content": content, **metadata}


def app_activity(turn: UUID, block: Block, blocks: Iterable[Block]) -> Json | None:
    """Returns the activity for a result with an app, in the form of the AG-UI middleware for MCP Apps. Requests from
    the app contain `serverHash`, which identifies the result. `blocks` include the call.
    """
    if (app := app_of(block)) is None:
        return None
    call = next((each for each in blocks if each.type in CALLS and each.key == block.key), None)
    content = {
        "result": mcp_result(block),
        "resourceUri": app.uri,
        "serverHash": call_id(turn, block.round, block.tool_use_id or ""),
        "serverId": app.server,
        "toolInput": {} if call is None else input_of(call.text),
    }
    return {"messageId": f"{block_id(turn, block.index)}.app", "activityType": "mcp-apps", "content": content}


def _result_part(part: Mapping[str, Any]) -> Json:
    file = _file_part(part["type"], part.get("source", {}), "/api/uploads/")
    return {"type": "text", "text": part.get("text", part["type"])} if file is None else file


def text_metadata(block: Block) -> Json:
    """Returns the citations of a text. The key has the index of the text's block, because one message may have several
    texts.
    """
    citations = block_details(block).get("citations")
    return {f"citations.{block.index}": citations} if citations else {}


def activity_of(block: Block) -> Json:
    """Returns the activity for a block that has no message in AG-UI. Its members are named as in the API."""
    return {"activityType": block.type, "content": {"text": block.text, **block_details(block)}}


# --- what a turn waits for -------------------------------------------------------------------------------------------


def interrupt_id(turn: UUID, round: int, action: RequiredAction) -> str:
    return f"{call_id(turn, round, action.tool_use_id)}:{action.digest}"


def interrupts_of(turn: Turn, actions: Sequence[RequiredAction] | None = None) -> list[Json]:
    """Returns the approvals and questions that the turn waits for."""
    return [_interrupt(turn, round, each) for round, each in _waiting(turn, {"approval", *QUESTIONS}, actions)]


def pending_calls_of(turn: Turn) -> list[str]:
    """Returns the ids of the calls that the page must run."""
    return [call_id(turn.id, round, each.tool_use_id) for round, each in _waiting(turn, {"client"}, None)]


def _waiting(
    turn: Turn, kinds: set[AskKind], actions: Sequence[RequiredAction] | None
) -> Iterator[tuple[int, RequiredAction]]:
    rounds = {block.tool_use_id: block.round for block in turn.blocks if block.is_call}
    for action in open_actions_of(turn) if actions is None else actions:
        if action.kind in kinds:
            yield rounds[action.tool_use_id], action


def _interrupt(turn: Turn, round: int, action: RequiredAction) -> Json:
    found: Json = {
        "id": interrupt_id(turn.id, round, action),
        "reason": "tool_call",
        "message": f"May {action.name} be run?",
        "toolCallId": call_id(turn.id, round, action.tool_use_id),
        "responseSchema": _APPROVAL_SCHEMA,
        "metadata": {"name": action.name, "can_remember": action.can_remember},
    }
    if action.kind in QUESTIONS:
        question = parsed(action.input)
        shown = {name: question[name] for name in ("url", "server", "scopes") if name in question}
        found |= {"reason": "input_required", "message": question["message"]}
        found["metadata"] = {"name": action.name, **shown}
        found["responseSchema"] = question.get("schema", {"type": "object"})
    if action.expires_at is not None:
        found["expiresAt"] = action.expires_at.isoformat()
    return found


def past_items(messages: Sequence[AgUiMessageIn]) -> Iterator[PastItem]:
    """Converts a client's messages to items of a history. Raises RequestRefused."""
    for message in messages:
        if isinstance(message, AgUiUserMessageIn):
            if blocks := blocks_in(message):
                yield PastMessage(blocks)
        elif message.role == "assistant":
            if message.content:
                yield PastText(output_text(message.content))
            for call in message.tool_calls or ():
                yield PastCall(call.id, call.function.name, call.function.arguments or "{}")
        elif message.role == "tool" and message.tool_call_id:
            output = message.error or output_text(message.content)
            yield PastResult(message.tool_call_id, output, is_error=message.error is not None)
