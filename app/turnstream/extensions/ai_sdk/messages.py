"""Converts turns to UI messages of the AI SDK that equal the messages that the SDK builds from their streams."""

from collections.abc import Iterator, Sequence
from typing import assert_never

from turnstream.api.codec import block_details, output_text
from turnstream.domain.blocks import Block, PreliminaryOutput
from turnstream.domain.events import ActionRequired, Mark, Notice, RoundStart, RoundStop, TurnEnd, TurnStart
from turnstream.domain.kinds import DOCUMENT, IMAGE, TEXT, THINKING, TOOL_USE
from turnstream.domain.log import marks_of
from turnstream.domain.turns import Turn
from turnstream.extensions.ai_sdk.parts import (
    Json,
    approval_id,
    approval_json,
    client_data_part,
    data_part,
    end_metadata,
    input_json,
    output_json,
    result_json,
    runs_here,
    sources_of,
    start_metadata,
)
from turnstream.extensions.ai_sdk.schemas import UiMessageIn, UiMessageOut, blocks_in
from turnstream.kit.offload import Portions
from turnstream.libraries.dialects.histories import PastCall, PastItem, PastMessage, PastResult, PastText
from turnstream.libraries.dialects.projection import (
    Begin,
    CallResult,
    Close,
    Projection,
    ProviderResult,
    Retract,
    calls_of_client,
)

ENDED_CALLS = frozenset({"output-available", "output-error"})


async def ui_message(turn: Turn, uploads: str, portions: Portions) -> UiMessageOut:
    """Returns the message of a turn, with its complete blocks. The URL of an upload is `uploads` followed by the
    upload's id.
    """
    if turn.role == "user":
        return UiMessageOut(
            id=str(turn.id), role="user", metadata={}, parts=[_user_part(block, uploads) for block in turn.blocks]
        )
    message = _Message(turn)
    for mark in marks_of(turn):
        message.take(mark)
        await portions.pause()
    for output in turn.preliminary:
        message.show_preliminary(output)
    return UiMessageOut(id=str(turn.id), role="assistant", metadata=message.metadata, parts=message.parts)


def past_items(messages: Sequence[UiMessageIn]) -> Iterator[PastItem]:
    """Converts a client's messages to items of a history: texts, files, calls with results. Raises RequestRefused."""
    for message in messages:
        if message.role == "user" and (blocks := blocks_in(message.parts)):
            yield PastMessage(blocks)
        for part in message.parts if message.role == "assistant" else ():
            type = str(part.get("type"))
            if type == "text":
                yield PastText(str(part.get("text") or ""))
            elif part.get("state") in ENDED_CALLS and part.get("toolCallId"):
                failed, id = part["state"] == "output-error", str(part["toolCallId"])
                name = str(part.get("toolName") or type.removeprefix("tool-"))
                yield PastCall(id, name, output_text(part.get("input") or {}))
                output = str(part.get("errorText", "")) if failed else _output_in(part)
                yield PastResult(id, output, is_error=failed)


def _output_in(part: Json) -> str:
    """Returns the result that the model received. For a result with an app, this is the text, without the data for
    clients.
    """
    output = part.get("output")
    if not part.get("toolMetadata") or not isinstance(output, dict) or not isinstance(output.get("content"), list):
        return output_text(output)
    return "\n".join(str(each["text"]) for each in output["content"] if isinstance(each, dict) and "text" in each)


def _user_part(block: Block, uploads: str) -> Json:
    if block.type == TEXT:
        return {"type": "text", "text": block.text}
    data = block_details(block).get("data", {})
    source = data.get("source", {})
    if block.type in {IMAGE, DOCUMENT} and "id" in source:
        name = {"filename": data["title"]} if "title" in data else {}
        return {"type": "file", "mediaType": source["media_type"], **name, "url": f"{uploads}{source['id']}"}
    return data_part(block)


class _Message:
    def __init__(self, turn: Turn) -> None:
        self.parts: list[Json] = []
        self.metadata: Json = start_metadata(turn) | ({"status": "waiting"} if turn.waits_for_person else {})
        self._turn = turn
        self._projection = Projection(turn)
        self._calls: dict[str, Json] = {}

    def take(self, mark: Mark) -> None:
        match step := self._projection.take(mark):
            case RoundStart():
                self.parts.append({"type": "step-start"})
            case Close(block=block, runner=None):
                if block.type == TEXT:
                    self.parts += [{"type": "text", "text": block.text, "state": "done"}, *sources_of(block)]
                elif block.type == THINKING:
                    thought = {"type": "reasoning", "id": str(block.index), "text": block.text, "state": "done"}
                    self.parts.append(thought)
                else:
                    self.parts.append(data_part(block))
            case Close(block=block, runner=runner):
                part = {"type": f"tool-{block.name}", "toolCallId": block.tool_use_id or "", "input": input_json(block)}
                interrupted = {"state": "output-error", "errorText": "interrupted"}
                state = interrupted if block.interrupted else {"state": "input-available"}
                self.parts.append({**part, **runs_here(runner), **state})
                self._calls[block.tool_use_id or ""] = self.parts[-1]
            case ProviderResult(call=call, output=output):
                self._calls[call.tool_use_id or ""] |= {"state": "output-available", "output": output}
            case CallResult(block=block):
                self._calls[block.tool_use_id or ""] |= result_json(block, self._turn.asks)
                if block.client_data is not None:
                    self.parts.append(client_data_part(block))
            case ActionRequired() as required:
                self._request_actions(required)
            case TurnEnd() as end:
                self.metadata |= end_metadata(end, self._turn)
                if calls_of_client(self._projection.round):
                    self.parts.append({"type": "step-start"})
            case Begin() | TurnStart() | RoundStop() | Retract() | Notice() | None:
                pass
            case _:
                assert_never(step)

    def show_preliminary(self, output: PreliminaryOutput) -> None:
        if part := self._calls.get(output.tool_use_id):
            part |= {"state": "output-available", "output": output_json(output.text), "preliminary": True}

    def _request_actions(self, event: ActionRequired) -> None:
        for action in event.actions:
            if action.kind == "approval":
                part = self._calls[action.tool_use_id]
                call = Block(0, event.round, 0, TOOL_USE, tool_use_id=action.tool_use_id)
                decided = approval_json(call, self._turn.asks)
                part["approval"] = {"id": approval_id(action.tool_use_id, action.digest), **decided}
                part["state"] = "approval-responded" if decided else "approval-requested"
