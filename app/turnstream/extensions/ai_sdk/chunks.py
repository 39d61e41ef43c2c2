"""The events of a turn as chunks of the AI SDK's UI message stream, protocol v1."""

from collections.abc import Callable, Iterator, Sequence
from typing import assert_never

from turnstream.api.codec import client_tools, result_of_provider, to_json
from turnstream.domain.blocks import Block
from turnstream.domain.cursor import Cursor
from turnstream.domain.events import (
    ActionRequired,
    BlockDelta,
    BlockStart,
    BlockStop,
    Event,
    Notice,
    Reset,
    RoundStart,
    RoundStop,
    TurnEnd,
    TurnStart,
)
from turnstream.domain.kinds import CALLS, SERVER_CALLS, TEXT, THINKING, TOOL_RESULT
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

DONE = b"data: [DONE]\n\n"


class UiEncoder:
    """Encodes one turn for one reader. `now` returns the turn as its rows hold it now.

    A round is a step of the SDK. The SDK has no cursor, and discards blocks only with their whole step: after a reset,
    the blocks of the step that remain are sent again.
    """

    def __init__(self, turn: Turn, now: Callable[[], Turn]) -> None:
        self._turn = turn
        self._now = now
        self._clients = client_tools(turn)
        self._open: BlockStart | None = None
        self._step: list[Block] = []
        self._step_is_open = False
        self._step_is_void = False
        self._waits_for_client = False
        self._provider_calls: set[str] = set()
        self._approvals: dict[str, str] = {}

    def __call__(self, event: Event | Notice, _cursor: Cursor | None) -> bytes:
        if isinstance(event, BlockDelta):  # the token path
            return self._delta(event)
        return _frames(self._chunks(event)) + (DONE if isinstance(event, TurnEnd) else b"")

    def resumed(self) -> bytes:
        """The first chunk for a client that has the turn's message so far."""
        last = self._turn.rounds[-1].number if self._turn.rounds else 0
        self._waits_for_client = any(ask.kind == "client" and ask.round == last for ask in self._now().asks)
        return _frames([{"type": "start", "messageId": self._turn.id}])

    def waiting(self) -> bytes:
        """The end of the stream of a turn that waits for a client or a person."""
        metadata = {"status": "waiting"}
        finish = {"type": "finish", "finishReason": "tool-calls", "messageMetadata": metadata}
        return _frames([*self._end_of_step(), finish]) + DONE

    def _delta(self, delta: BlockDelta) -> bytes:
        text = to_json(delta.text)
        match self._open:
            case BlockStart(type="text"):
                return b'data: {"type":"text-delta","id":"%d","delta":%b}\n\n' % (delta.index, text)
            case BlockStart(type="thinking"):
                return b'data: {"type":"reasoning-delta","id":"%d","delta":%b}\n\n' % (delta.index, text)
            case BlockStart(type=type, tool_use_id=call) if type in CALLS:
                return b'data: {"type":"tool-input-delta","toolCallId":%b,"inputTextDelta":%b}\n\n' % (
                    to_json(call),
                    text,
                )
        return b""  # other kinds are sent when they are complete

    def _chunks(self, event: Event | Notice) -> Iterator[Json]:
        match event:
            case TurnStart():
                yield {"type": "start", "messageId": event.turn, "messageMetadata": start_metadata(self._turn)}
            case RoundStart():
                if not self._step_is_void:
                    yield from self._end_of_step()
                    yield {"type": "start-step"}
                self._step, self._step_is_open, self._step_is_void = [], True, False
                self._waits_for_client = False
            case BlockStart():
                self._open = event
                yield from self._begin(event)
            case BlockStop(block=block):
                self._open = None
                self._step.append(block)
                yield from self._finish(block)
            case ActionRequired(actions=actions):
                for action in actions:
                    call, approval = action.tool_use_id, approval_id(action.tool_use_id, action.digest)
                    # An elicitation comes with all that waits, so an approval may come again.
                    if action.kind == "approval" and self._approvals.get(call) != approval:
                        self._approvals[call] = approval
                        yield {"type": "tool-approval-request", "approvalId": approval, "toolCallId": call}
            case Reset():
                yield from self._reset(event.index)
            case TurnEnd():
                yield from self._end(event)
            case Notice(name="tool_output", data=data):
                output = output_json(data["text"])
                chunk = {"type": "tool-output-available", "toolCallId": data["tool_use_id"], "output": output}
                yield {**chunk, "providerExecuted": True, "preliminary": True}
            case Notice():
                yield {"type": f"data-{event.name.replace('_', '-')}", "data": event.data, "transient": True}
            case RoundStop() | BlockDelta():
                pass
            case _:
                assert_never(event)

    def _end_of_step(self) -> Iterator[Json]:
        if self._step_is_open:
            self._step_is_open = False
            yield {"type": "finish-step"}

    def _begin(self, start: BlockStart) -> Iterator[Json]:
        if start.type == TEXT:
            yield {"type": "text-start", "id": str(start.index)}
        elif start.type == THINKING:
            yield {"type": "reasoning-start", "id": str(start.index)}
        elif start.type in CALLS:
            where = runs_here(start.type, start.name, self._clients)
            yield {"type": "tool-input-start", "toolCallId": start.tool_use_id, "toolName": start.name, **where}

    def _finish(self, block: Block) -> Iterator[Json]:
        if block.type == TEXT:
            yield {"type": "text-end", "id": str(block.index)}
            yield from sources_of(block)
        elif block.type == THINKING:
            yield {"type": "reasoning-end", "id": str(block.index)}
        elif block.type in CALLS:
            yield self._call(block)
        elif block.type == TOOL_RESULT:
            yield from self._result(block)
        elif found := result_of_provider(block, self._provider_calls):
            call, output = found
            yield {"type": "tool-output-available", "toolCallId": call, "output": output, "providerExecuted": True}
        else:
            yield data_part(block)

    def _call(self, block: Block) -> Json:
        where = runs_here(block.type, block.name, self._clients)
        self._waits_for_client = self._waits_for_client or not where
        if block.type in SERVER_CALLS:
            self._provider_calls.add(block.tool_use_id or "")
        call = {"toolCallId": block.tool_use_id, "toolName": block.name, "input": input_json(block), **where}
        if block.interrupted:
            return {"type": "tool-input-error", "errorText": "interrupted", **call}
        return {"type": "tool-input-available", **call}

    def _result(self, block: Block) -> Iterator[Json]:
        asks = self._now().asks
        approval = self._approvals.get(block.tool_use_id or "")
        if approval is not None and (decided := approval_json(block, asks)):
            yield {"type": "tool-approval-response", "approvalId": approval, **decided}
        result = result_json(block, asks)
        yield {"type": f"tool-{result.pop('state')}", "toolCallId": block.tool_use_id, **result}
        if block.client_data is not None:
            yield client_data_part(block)

    def _reset(self, index: int) -> Iterator[Json]:
        yield {"type": "reset-step"}
        kept = [block for block in self._step if block.index < index]
        self._open, self._step, self._step_is_void = None, kept, not kept
        for block in kept:
            yield from self._begin(start_of_block(block))
            if block.type == TEXT:
                yield {"type": "text-delta", "id": str(block.index), "delta": block.text}
            elif block.type == THINKING:
                yield {"type": "reasoning-delta", "id": str(block.index), "delta": block.text}
            yield from self._finish(block)

    def _end(self, end: TurnEnd) -> Iterator[Json]:
        yield from self._end_of_step()
        if self._waits_for_client:  # else the SDK would send the results of the last step again and again
            yield from ({"type": "start-step"}, {"type": "finish-step"})
        if end.error is not None:
            yield {"type": "message-metadata", "messageMetadata": end_metadata(end, self._now())}
            yield {"type": "error", "errorText": end.error.message}
            return
        if end.status == "cancelled":
            yield {"type": "abort", "reason": "cancelled"}
        reason = finish_reason(end.stop_reason)
        yield {"type": "finish", "finishReason": reason, "messageMetadata": end_metadata(end, self._now())}


def _frames(chunks: Iterator[Json] | Sequence[Json]) -> bytes:
    return b"".join(b"data: %b\n\n" % to_json(chunk) for chunk in chunks)
