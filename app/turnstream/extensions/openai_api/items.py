"""Items that clients send (messages of the user, outputs of functions, decisions about approvals), and the items of a
whole conversation.
"""

from collections.abc import Iterator, Sequence

import msgspec

from turnstream.domain.asks import Ask
from turnstream.domain.blocks import Block
from turnstream.domain.kinds import DOCUMENT, IMAGE, TEXT
from turnstream.domain.log import marks_of
from turnstream.domain.turns import Turn
from turnstream.extensions.openai_api.events import ResponseEvents, text_part
from turnstream.extensions.openai_api.objects import (
    Json,
    annotations_of,
    approval_id,
    custom_tools,
    function_of,
    item_id,
    parts_of,
)
from turnstream.kit.offload import Portions
from turnstream.libraries.copies.cutting import LEFT_OUT
from turnstream.libraries.dialects.histories import NO_MESSAGE, is_recorded


def user_item(turn: Turn) -> Json:
    """Returns a user turn as a message."""
    content = [part for block in turn.blocks if (part := _part(block)) is not None]
    return {"type": "message", "id": item_id("msg", turn), "role": "user", "status": "completed", "content": content}


def input_items_of(user_turn: Turn, turn: Turn, part: int) -> list[Json]:
    """Returns the input of a part of a turn: the message, or the answers to the calls that waited before the part."""
    return list(_answers(turn, part)) if part else [user_item(user_turn)]


async def items_of_path(path: Sequence[Turn]) -> list[Json]:
    """Returns the items of a conversation, which consists of consecutive turns. It pauses between portions, so that the
    event loop can run other tasks.
    """
    items: list[Json] = []
    portions = Portions()
    for turn in path:
        await portions.pause()
        if turn.role == "user":
            if not is_placeholder(turn):
                items.append(user_item(turn))
            continue
        if _was_elsewhere(turn):
            items += _recorded_items(turn)
            continue
        for part in range(parts_of(turn)):
            events = ResponseEvents(turn, part)
            for mark in marks_of(turn):
                for _ in events.take(mark):
                    await portions.pause()
            items += [*_answers(turn, part), *events.response()["output"]]
    return items


def is_placeholder(turn: Turn) -> bool:
    """Returns whether a user turn is a placeholder before an answer, which nobody has sent."""
    return [block.text for block in turn.blocks] in ([], [NO_MESSAGE["text"]])


def _was_elsewhere(turn: Turn) -> bool:
    """Returns whether the answer comes from a recorded history, or is a copy of such an answer. The calls in such an
    answer belong to the client.
    """
    is_copy = turn.forked_from is not None and not any(round.usage for round in turn.rounds)
    return is_recorded(turn) or is_copy


def _recorded_items(turn: Turn) -> Iterator[Json]:
    for block in turn.blocks:
        place = block.index, block.attempt
        match block.type:
            case "text":
                part = text_part(block.text, annotations_of(block))
                message = {"role": "assistant", "status": "completed", "content": [part]}
                yield {"type": "message", "id": item_id("msg", turn, *place), **message}
            case "thinking" if block.text:
                summary = [{"type": "summary_text", "text": block.text}]
                yield {"type": "reasoning", "id": item_id("rs", turn, *place), "summary": summary}
            case "tool_use":
                call = {"call_id": block.tool_use_id, **function_of(block), "status": "completed"}
                yield {"type": "function_call", "id": item_id("fc", turn, *place), **call}
            case "tool_result" if block.text != LEFT_OUT:
                output = {"call_id": block.tool_use_id, "output": block.text, "status": "completed"}
                yield {"type": "function_call_output", "id": item_id("fco", turn, *place), **output}
            case _:
                pass


def _answers(turn: Turn, part: int) -> Iterator[Json]:
    rounds = sorted({ask.round for ask in turn.asks if ask.is_marked})
    if not part:
        return
    for number, ask in enumerate(turn.asks):
        if ask.is_marked and ask.answer is not None and ask.round == rounds[part - 1]:
            yield _answer(turn, ask, number)


def _answer(turn: Turn, ask: Ask, number: int) -> Json:
    assert ask.answer is not None
    if ask.kind == "client":
        output = {"call_id": ask.tool_use_id, "output": ask.answer.text, "status": "completed"}
        kind = "custom_tool_call_output" if ask.name in custom_tools(turn) else "function_call_output"
        return {"type": kind, "id": item_id("fco", turn, number), **output}
    call = next(b for b in turn.blocks if b.is_call and b.key == ask.key)
    decision = {"approval_request_id": approval_id(turn, call), "approve": ask.answer.kind == "approve"}
    reason = ask.answer.text or None
    return {"type": "mcp_approval_response", "id": item_id("mcpa", turn, number), **decision, "reason": reason}


def _part(block: Block) -> Json | None:
    """Returns a block of a user's message as a part of an item. A file is named by the path of its upload."""
    members = msgspec.json.decode(block.data or "{}")
    upload = members.get("source", {}).get("id")
    if block.type == TEXT:
        return {"type": "input_text", "text": block.text}
    if block.type == IMAGE:
        return {"type": "input_image", "image_url": f"/api/uploads/{upload}", "file_id": upload, "detail": "auto"}
    if block.type == DOCUMENT:
        source = {"file_id": upload} if upload else {"file_data": block.text}
        return {"type": "input_file", "filename": members.get("title"), **source}
    return None
