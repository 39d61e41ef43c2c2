"""Encodes the events of a turn as events of an AG-UI run."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from turnstream.api.codec import parsed, to_json
from turnstream.domain.asks import QUESTIONS
from turnstream.domain.blocks import Block
from turnstream.domain.cursor import Cursor
from turnstream.domain.events import (
    ActionRequired,
    BlockDelta,
    BlockStart,
    Event,
    Notice,
    RoundStart,
    RoundStop,
    TurnEnd,
    TurnStart,
)
from turnstream.domain.kinds import CALLS, TEXT, THINKING, USER_TEXT
from turnstream.domain.output import output_of
from turnstream.domain.turns import Turn
from turnstream.extensions.ag_ui.messages import (
    ClientIds,
    Json,
    activity_of,
    answer_messages,
    app_activity,
    block_id,
    call_id,
    interrupts_of,
    pending_calls_of,
    reply_id,
    reply_round,
    result_message,
    text_metadata,
)
from turnstream.kit.offload import Portions
from turnstream.libraries.dialects.projection import (
    Begin,
    CallResult,
    Close,
    Closed,
    Projection,
    ProviderResult,
    Retract,
)

PROTOCOL = "1.0"
_USAGE = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "cache_read_input_tokens": "cachedInputTokens",
    "cache_creation_input_tokens": "cacheWriteInputTokens",
}


@dataclass(frozen=True, slots=True)
class Run:
    """The thread id and the run id that the client chose. `state` is the client's state, which is returned unchanged.
    `protocol` is the protocol version of the client; clients older than 1.0 do not send a version.
    """

    thread: str
    id: str
    state: Any = None
    protocol: str | None = PROTOCOL


class RunEncoder:
    """Encodes one turn for one run. `now` returns the turn from its rows. `answered` are the ids of interrupts that
    were just answered: the view may still show them as open.

    AG-UI has no cursor, and only a snapshot of all messages can replace content that was already sent. So while
    `collects` is true, the encoder sends no events but stores the turn's content. `snapshot` then sends the earlier
    messages followed by the stored content. The encoder collects at the start of a continued run and after a reset.
    """

    def __init__(
        self, turn: Turn, run: Run, now: Callable[[], Turn], *, collects: bool, answered: Collection[str] = ()
    ) -> None:
        self.collects = collects
        self.finished = False
        self._turn = turn
        self._run = run
        self._now = now
        self._answered = answered
        self._projection = Projection()
        self._reply_rounds: dict[int, int] = {}
        self._collected: list[str] = []  # the text of the open block so far
        self._delta_head = b""
        self._round = 0
        self._step_is_open = False
        self._later: list[Event | Notice] = []

    def __call__(self, event: Event | Notice, _cursor: Cursor | None) -> bytes:
        if self.collects:
            self._collect(event)
            return b""
        if self.finished:  # a question ends the run, but a notice from the question's job may follow
            return b""
        if isinstance(event, BlockDelta):  # most events are deltas, so they take a short path
            return b"%b%b}\n\n" % (self._delta_head, to_json(event.text)) if self._delta_head else b""
        return encode(self._events(event))

    def started(self) -> bytes:
        turn = self._turn
        about = {"chat": turn.chat_id, "turn": turn.id, "model": turn.request.model if turn.request else None}
        events = list(run_started(self._run, {"turnstream": about}))
        if isinstance(self._run.state, dict):
            events.append({"type": "STATE_SNAPSHOT", "snapshot": {**self._run.state, "turnstream": about}})
        return encode(events)

    async def snapshot(self, before: Sequence[Json], ids: ClientIds) -> bytes:
        """Returns a snapshot of all messages: the earlier messages, and the turn's content so far. From then on, events
        are sent at once.
        """
        self.collects = False
        blocks, begin = [closed.block for closed in self._projection.closed], self._projection.open
        if begin is not None and begin.start.type in {TEXT, THINKING} | CALLS:
            start, text = begin.start, "".join(self._collected)
            where = start.index, start.round, start.attempt
            blocks.append(Block(*where, start.type, text, tool_use_id=start.tool_use_id, name=start.name))
        messages = [*before, *await answer_messages(self._turn.id, blocks, ids, Portions())]
        frames = encode([{"type": "MESSAGES_SNAPSHOT", "messages": messages}])
        later, self._later = self._later, []
        if self._round and not any(isinstance(event, TurnEnd) for event in later):
            frames += encode(self._begin_step())
        if begin is not None:
            frames += encode(self._begin(begin.start))
        return frames + b"".join(encode(self._events(event)) for event in later if not self.finished)

    def waiting(self, turn: Turn) -> bytes:
        """Returns the end of the run, for a turn that waits for a client or a person."""
        if interrupts := interrupts_of(turn):
            return encode(self._finish_run({"type": "interrupt", "interrupts": interrupts}))
        return encode(self._finish_run({"type": "success", "pendingToolCallIds": pending_calls_of(turn)}))

    def _collect(self, event: Event | Notice) -> None:
        if isinstance(event, BlockDelta):
            self._collected.append(event.text)
        elif isinstance(event, TurnEnd | ActionRequired | Notice):
            self._later.append(event)
        else:
            self._collected.clear()
            match self._projection.take(event):
                case RoundStart(round=round):
                    self._round = round
                case Retract():
                    self._reply_rounds.clear()
                case _:
                    pass

    def _events(self, event: Event | Notice) -> Iterator[Json]:
        match step := self._projection.take(event):
            case RoundStart(round=round):
                yield from self._end_step()
                self._round = round
                yield from self._begin_step()
            case Begin(start=start):
                yield from self._begin(start)
            case Close(block=block):
                yield from self._end_block(block, text_metadata(block) if block.type == TEXT else None)
                yield from self._result(step) if block.type in CALLS else self._whole(block)
            case CallResult() | ProviderResult():
                yield from self._result(step)
            case ActionRequired(actions=actions):  # `waiting` reports approvals and calls of client tools
                if any(action.kind in QUESTIONS for action in actions):
                    interrupts = interrupts_of(self._now(), actions)
                    if not {each["id"] for each in interrupts} & set(self._answered):
                        yield from self._finish_run({"type": "interrupt", "interrupts": interrupts})
            case Retract(open=open):
                if open is not None:
                    yield from self._end_block(open)
                yield from self._end_step()
                self._reply_rounds.clear()
                self.collects = True
            case TurnEnd():
                yield from self._end(step)
            case Notice(name=name):
                yield {"type": "CUSTOM", "name": f"turnstream.{name}", "value": self._noticed(step)}
            case TurnStart() | RoundStop() | None:
                pass
            case _:
                assert_never(step)

    def _noticed(self, notice: Notice) -> Json:
        value = dict(notice.data)
        if "tool_use_id" in value:
            value["toolCallId"] = call_id(self._turn.id, self._round, value["tool_use_id"])
        return value

    # --- steps and blocks --------------------------------------------------------------------------------------------

    def _begin_step(self) -> Iterator[Json]:
        self._step_is_open = True
        yield {"type": "STEP_STARTED", "stepName": f"round {self._round}"}

    def _end_step(self) -> Iterator[Json]:
        if self._step_is_open:
            self._step_is_open = False
            yield {"type": "STEP_FINISHED", "stepName": f"round {self._round}"}

    def _begin(self, start: BlockStart) -> Iterator[Json]:
        self._open = start
        reply, own = self._reply_id(start), block_id(self._turn.id, start.index)
        if start.type == TEXT:
            yield {"type": "TEXT_MESSAGE_START", "messageId": reply, "role": "assistant"}
            self._delta_head = b'data: {"type":"TEXT_MESSAGE_CONTENT","messageId":"%b","delta":' % reply.encode()
        elif start.type == THINKING:
            yield {"type": "REASONING_START", "messageId": own}
            yield {"type": "REASONING_MESSAGE_START", "messageId": own, "role": "reasoning"}
            self._delta_head = b'data: {"type":"REASONING_MESSAGE_CONTENT","messageId":"%b","delta":' % own.encode()
        elif start.type in CALLS:
            call = call_id(self._turn.id, start.round, start.tool_use_id or "")
            yield {
                "type": "TOOL_CALL_START",
                "toolCallId": call,
                "toolCallName": start.name,
                "parentMessageId": reply,
            }
            self._delta_head = b'data: {"type":"TOOL_CALL_ARGS","toolCallId":%b,"delta":' % to_json(call)

    def _end_block(self, block: Block | BlockStart, metadata: Json | None = None) -> Iterator[Json]:
        self._delta_head = b""
        own = block_id(self._turn.id, block.index)
        if block.type == TEXT:
            more = {"metadata": metadata} if metadata else {}
            yield {"type": "TEXT_MESSAGE_END", "messageId": self._reply_id(block), **more}
        elif block.type == THINKING:
            yield {"type": "REASONING_MESSAGE_END", "messageId": own}
            yield {"type": "REASONING_END", "messageId": own}
        elif block.type in CALLS:
            yield {"type": "TOOL_CALL_END", "toolCallId": call_id(self._turn.id, block.round, block.tool_use_id or "")}

    def _reply_id(self, block: Block | BlockStart) -> str:
        rounds = self._reply_rounds
        if block.round not in rounds:
            before = [closed.block for closed in self._projection.closed]
            rounds[block.round] = reply_round(before, block.round, block.type)
        return reply_id(self._turn.id, rounds[block.round])

    def _result(self, closed: Closed) -> Iterator[Json]:
        if (result := result_message(self._turn.id, closed)) is not None:
            del result["role"]
            yield {"type": "TOOL_CALL_RESULT", "messageId": result.pop("id"), "role": "tool", **result}
        known = (each.block for each in self._projection.closed)
        if (activity := app_activity(self._turn.id, closed.block, known)) is not None:
            yield {"type": "ACTIVITY_SNAPSHOT", **activity, "replace": True}

    def _whole(self, block: Block) -> Iterator[Json]:
        """Yields the events of a closed block that was not streamed and is no call."""
        own = block_id(self._turn.id, block.index)
        if block.type == USER_TEXT:
            yield {"type": "TEXT_MESSAGE_START", "messageId": own, "role": "user"}
            yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": own, "delta": block.text}
            yield {"type": "TEXT_MESSAGE_END", "messageId": own}
        elif block.type not in {TEXT, THINKING}:
            yield {"type": "ACTIVITY_SNAPSHOT", "messageId": own, **activity_of(block)}

    # --- the end of the run ------------------------------------------------------------------------------------------

    def _end(self, end: TurnEnd) -> Iterator[Json]:
        turn = self._now()
        about: Json = {"turnstream": {"turn": self._turn.id, "status": end.status, "stop_reason": end.stop_reason}}
        usage = {"usage": [self._usage(end)], "metadata": about}
        if end.error is not None:
            yield from self._end_open()
            about["turnstream"].update(end.error.wait)
            yield {"type": "RUN_ERROR", "message": end.error.message, "code": end.error.type, **usage}
            return
        output = output_of(turn)
        result = {} if output is None else {"result": parsed(output)}
        outcome = {"type": "cancelled" if end.status == "cancelled" else "success"}
        yield from self._finish_run(outcome, **result, **usage)

    def _usage(self, end: TurnEnd) -> Json:
        model = {"model": self._turn.request.model} if self._turn.request else {}
        counts = {name: end.usage[key] for key, name in _USAGE.items() if isinstance(end.usage.get(key), int)}
        return {**model, **counts}

    def _finish_run(self, outcome: Json, **more: Any) -> Iterator[Json]:
        yield from self._end_open()
        yield run_finished(self._run, outcome, **more)

    def _end_open(self) -> Iterator[Json]:
        self.finished = True
        if self._projection.open is not None:
            yield from self._end_block(self._projection.open.start)
        yield from self._end_step()


def run_started(run: Run, metadata: Json) -> Iterator[Json]:
    started = {"type": "RUN_STARTED", "threadId": run.thread, "runId": run.id, "protocolVersion": PROTOCOL}
    yield {**started, "metadata": metadata}


def run_finished(run: Run, outcome: Json, **more: Any) -> Json:
    finished = {"type": "RUN_FINISHED", "threadId": run.thread, "runId": run.id, **more}
    if run.protocol is None and outcome["type"] != "interrupt":
        return finished  # clients older than 1.0 refuse `cancelled`, and unknown members of `success`
    return {**finished, "outcome": outcome}


def encode(events: Iterator[Json] | Sequence[Json]) -> bytes:
    return b"".join(b"data: %b\n\n" % to_json(event) for event in events)
