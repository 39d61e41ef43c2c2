"""Encodes the events of a turn as chunks of the AI SDK's UI message stream, protocol v1."""

from collections.abc import Callable, Iterator, Sequence
from typing import assert_never

from turnstream.api.codec import parsed, to_json
from turnstream.domain.blocks import Block
from turnstream.domain.cursor import Cursor
from turnstream.domain.events import (
    ActionRequired,
    BlockDelta,
    Event,
    Mark,
    Notice,
    RequiredAction,
    RoundStart,
    RoundStop,
    TurnEnd,
    TurnStart,
)
from turnstream.domain.kinds import CALLS, TEXT, THINKING
from turnstream.domain.log import start_of_block
from turnstream.domain.turns import Turn
from turnstream.extensions.ai_sdk.parts import (
    Json,
    approval_id,
    approval_json,
    client_data_part,
    data_part,
    end_metadata,
    finish_reason,
    input_json,
    output_json,
    result_json,
    runs_here,
    sources_of,
    start_metadata,
)
from turnstream.libraries.dialects.projection import (
    Begin,
    CallResult,
    Close,
    Closed,
    Projection,
    ProviderResult,
    Retract,
    calls_of_client,
)

DONE = b"data: [DONE]\n\n"


class UiEncoder:
    """Encodes one turn for one reader. `now` returns the turn from its rows.

    A round is a step of the SDK. The SDK has no cursor, and can discard only a whole step: after a reset, the blocks of
    the step that remain valid are sent again.
    """

    def __init__(self, turn: Turn, now: Callable[[], Turn]) -> None:
        self._turn = turn
        self._now = now
        self._projection = Projection(turn)
        self._delta_head = b""
        self._step_is_open = False
        self._step_is_void = False
        self._step_is_of_client = False  # stays true after a reset voids the calls
        self._approvals: dict[str, str] = {}
        self._questions = set[str]()

    def __call__(self, event: Event | Notice, _cursor: Cursor | None) -> bytes:
        if isinstance(event, BlockDelta):  # most events are deltas, so they take a short path
            return b"%b%b}\n\n" % (self._delta_head, to_json(event.text)) if self._delta_head else b""
        return _frames(self._chunks(event)) + (DONE if isinstance(event, TurnEnd) else b"")

    def resumed(self, marks: Sequence[Mark]) -> bytes:
        """Returns the first chunk for a client that already has the turn's message up to these marks."""
        for mark in marks:
            self._projection.take(mark)
        self._step_is_of_client = bool(calls_of_client(self._projection.round))
        return _frames([{"type": "start", "messageId": self._turn.id}])

    def waiting(self) -> bytes:
        """Returns the end of the stream, for a turn that waits for a client or a person."""
        metadata = {"status": "waiting"}
        finish = {"type": "finish", "finishReason": "tool-calls", "messageMetadata": metadata}
        return _frames([*self._end_of_step(), finish]) + DONE

    def _chunks(self, event: Event | Notice) -> Iterator[Json]:
        match step := self._projection.take(event):
            case TurnStart(turn=turn):
                yield {"type": "start", "messageId": turn, "messageMetadata": start_metadata(self._turn)}
            case RoundStart():
                if not self._step_is_void:
                    yield from self._end_of_step()
                    yield {"type": "start-step"}
                self._step_is_open, self._step_is_void, self._step_is_of_client = True, False, False
            case Begin() as begin:
                yield from self._begin(begin)
            case Close() | CallResult() | ProviderResult():
                self._delta_head = b""
                yield from self._close(step)
            case ActionRequired(actions=actions):
                for action in actions:
                    call, approval = action.tool_use_id, approval_id(action.tool_use_id, action.digest)
                    # The event of an elicitation repeats all waits of the turn, so an approval may appear a second
                    # time.
                    if action.kind == "approval" and self._approvals.get(call) != approval:
                        self._approvals[call] = approval
                        yield {"type": "tool-approval-request", "approvalId": approval, "toolCallId": call}
                    elif action.kind in {"sign_in", "elicitation"} and action.digest not in self._questions:
                        self._questions.add(action.digest)
                        yield {"transient": True, "id": call, **_question(action)}
            case Retract(kept=kept):
                yield {"type": "reset-step"}
                self._step_is_void = not kept
                for each in kept:
                    yield from self._again(each)
                self._delta_head = b""
            case TurnEnd() as end:
                yield from self._end(end)
            case Notice(name="tool_output", data=data):
                shown = output_json(data["text"])
                chunk = {"type": "tool-output-available", "toolCallId": data["tool_use_id"], "output": shown}
                yield {**chunk, "providerExecuted": True, "preliminary": True}
            case Notice(name=name, data=data):
                yield {"type": f"data-{name.replace('_', '-')}", "data": data, "transient": True}
            case RoundStop() | None:
                pass
            case _:
                assert_never(step)

    def _end_of_step(self) -> Iterator[Json]:
        if self._step_is_open:
            self._step_is_open = False
            yield {"type": "finish-step"}

    def _begin(self, begin: Begin) -> Iterator[Json]:
        start = begin.start
        if start.type == TEXT:
            yield {"type": "text-start", "id": str(start.index)}
            self._delta_head = b'data: {"type":"text-delta","id":"%d","delta":' % start.index
        elif start.type == THINKING:
            yield {"type": "reasoning-start", "id": str(start.index)}
            self._delta_head = b'data: {"type":"reasoning-delta","id":"%d","delta":' % start.index
        elif start.type in CALLS:
            call, where = start.tool_use_id, runs_here(begin.runner)
            yield {"type": "tool-input-start", "toolCallId": call, "toolName": start.name, **where}
            self._delta_head = b'data: {"type":"tool-input-delta","toolCallId":%b,"inputTextDelta":' % to_json(call)

    def _close(self, closed: Closed) -> Iterator[Json]:
        match closed:
            case CallResult(block=block):
                yield from self._result(block)
            case ProviderResult(call=call, output=output):
                found = {"toolCallId": call.tool_use_id, "output": output, "providerExecuted": True}
                yield {"type": "tool-output-available", **found}
            case Close(block=block, runner=None):
                if block.type == TEXT:
                    yield {"type": "text-end", "id": str(block.index)}
                    yield from sources_of(block)
                elif block.type == THINKING:
                    yield {"type": "reasoning-end", "id": str(block.index)}
                else:
                    yield data_part(block)
            case Close(block=block, runner=runner):
                self._step_is_of_client |= runner == "client"
                name, input = block.name, input_json(block)
                whole = {"toolCallId": block.tool_use_id, "toolName": name, "input": input, **runs_here(runner)}
                if block.interrupted:
                    yield {"type": "tool-input-error", "errorText": "interrupted", **whole}
                else:
                    yield {"type": "tool-input-available", **whole}

    def _result(self, block: Block) -> Iterator[Json]:
        asks = self._now().asks
        approval = self._approvals.get(block.tool_use_id or "")
        if approval is not None and (decided := approval_json(block, asks)):
            yield {"type": "tool-approval-response", "approvalId": approval, **decided}
        output = result_json(block, asks)
        yield {"type": f"tool-{output.pop('state')}", "toolCallId": block.tool_use_id, **output}
        if block.client_data is not None:
            yield client_data_part(block)

    def _again(self, closed: Closed) -> Iterator[Json]:
        block = closed.block
        if isinstance(closed, Close):
            yield from self._begin(Begin(start_of_block(block), closed.runner))
            if block.type == TEXT:
                yield {"type": "text-delta", "id": str(block.index), "delta": block.text}
            elif block.type == THINKING:
                yield {"type": "reasoning-delta", "id": str(block.index), "delta": block.text}
        yield from self._close(closed)

    def _end(self, end: TurnEnd) -> Iterator[Json]:
        yield from self._end_of_step()
        if self._step_is_of_client:  # without an empty step, the SDK would send the results of the last step repeatedly
            yield from ({"type": "start-step"}, {"type": "finish-step"})
        if end.error is not None:
            yield {"type": "message-metadata", "messageMetadata": end_metadata(end, self._now())}
            yield {"type": "error", "errorText": end.error.message}
            return
        if end.status == "cancelled":
            yield {"type": "abort", "reason": "cancelled"}
        reason = finish_reason(end.stop_reason)
        yield {"type": "finish", "finishReason": reason, "messageMetadata": end_metadata(end, self._now())}


def _question(action: RequiredAction) -> Json:
    """Returns the data part for a sign-in or a question. An answer through the API must contain the digest."""
    if action.kind == "sign_in":
        return {"type": "data-sign-in", "data": parsed(action.input)}
    return {"type": "data-question", "data": {**parsed(action.input), "input_digest": action.digest}}


def _frames(chunks: Iterator[Json] | Sequence[Json]) -> bytes:
    return b"".join(b"data: %b\n\n" % to_json(chunk) for chunk in chunks)
