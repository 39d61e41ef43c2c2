"""Encodes the log of a turn as the events of a response, whose sequence numbers depend only on the log.

A response starts when its turn starts, or when the turn continues after it has waited for its client. A response ends
with the turn, or when the turn next waits for its client: for outputs of functions, or for approvals. A sequence number
consists of a band and a position. The position counts events, but a delta is counted by its characters, because the
lengths of deltas depend on the reader: a delta has the number of its last character. The band follows from the attempt
that wrote the content, and each interrupted block raises the band by one. So numbers increase along a log, and are
equal on all replicas, before and after a crash. By the band, numbers of voided content are recognised, and numbers of
an attempt that this database does not have.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, assert_never

from turnstream.api.codec import to_json
from turnstream.domain.blocks import Block
from turnstream.domain.cursor import Cursor
from turnstream.domain.events import (
    ActionRequired,
    BlockDelta,
    Event,
    Notice,
    RoundStart,
    RoundStop,
    TurnEnd,
    TurnStart,
)
from turnstream.domain.kinds import TEXT, THINKING, TOOL_RESULT
from turnstream.domain.output import output_of
from turnstream.domain.turns import LEAST_STEP, Turn
from turnstream.extensions.openai_api.objects import (
    PROVIDER,
    SERVER,
    Json,
    ResponseState,
    annotations_of,
    approval_id,
    custom_input,
    custom_tools,
    function_of,
    is_server_call,
    item_id,
    names_of,
    response_json,
    role_tools,
    state_of,
)
from turnstream.libraries.dialects.projection import (
    Begin,
    CallResult,
    Close,
    Closed,
    Projection,
    ProviderResult,
    Retract,
)

BAND = 2**26  # numbers in a band; JavaScript's exact integers, up to 2**53, are enough for 2**27 bands
_DELTAS = {
    "message": ("response.output_text.delta", b'"content_index":0,"logprobs":[],'),
    "reasoning": ("response.reasoning_summary_text.delta", b'"summary_index":0,'),
    "function_call": ("response.function_call_arguments.delta", b""),
    "mcp_call": ("response.mcp_call_arguments.delta", b""),
}


@dataclass(slots=True)
class _Item:
    """An item of the output. The item started at the position `begun`, with the block number `block` of the attempt
    `attempt`; `start` is the position of its first character.
    """

    json: Json
    block: int
    attempt: int
    output_index: int
    begun: int
    start: int = 0
    done: bool = False
    prefix: bytes = field(default=b"", repr=False)

    @property
    def place(self) -> Json:
        return {"item_id": self.json["id"], "output_index": self.output_index}


class ResponseEvents:
    """Encodes one response for one reader: the events after the number `after`. `rows` returns the current turn.
    `previous` is the id of the previous response. A response that is not `stored` is deleted after its end.
    """

    def __init__(
        self,
        turn: Turn,
        part: int = 0,
        after: int = -1,
        previous: str | None = None,
        rows: Callable[[], Turn] | None = None,
        *,
        stored: bool = True,
    ) -> None:
        self._turn = rows or (lambda: turn)
        self._part = part
        self._lost = after > 1 and not _has_had(turn, after)
        self._after = 1 if self._lost else after
        self._object = partial(response_json, part=part, previous=previous, stored=stored)
        self._projection = Projection(turn)
        self._position = 2  # the position of the next event; a response starts with two events
        self._last = -1  # the number of the last event
        self._band = 0  # the band of attempt 1
        self._given = 0  # the number of output indexes in use
        self._items: list[_Item] = []
        self._open: _Item | None = None
        # Items that a reset has voided, until the next mark shows whether they continue.
        self._taken_back: list[_Item] = []
        self._starts: dict[int, int] = {}
        self._running: dict[tuple[int, str], _Item] = {}
        self._usages: list[Any] = []
        self._roles, self._customs = role_tools(turn), custom_tools(turn)
        self._is_structured = turn.request is not None and turn.request.output is not None
        self._end: ResponseState | None = None

    @property
    def ended(self) -> bool:
        return self._end is not None

    def __call__(self, event: Event | Notice, cursor: Cursor | None) -> bytes:
        if isinstance(event, BlockDelta):  # the hot path: runs for each piece of text
            return self._delta(event)
        return b"" if cursor is None else _frames(self.take(event))

    def begin(self) -> bytes:
        events = []
        if self._after < 0:
            events.append(self._of_response("response.created", 0, ResponseState()))
        if self._after < 1:
            events.append(self._of_response("response.in_progress", 1, ResponseState()))
        return _frames(events)

    def waiting(self) -> bytes:
        """Returns the end of a response whose turn waits for its client."""
        return _frames(self._finish(ResponseState("completed")))

    def response(self, written: Block | None = None) -> Json:
        """Returns the current response. `written` is the open block, with its text so far."""
        turn = self._turn()
        if self._is_here and turn.waits_for_person:
            self.waiting()
        queued = turn.status == "queued" and turn.attempt == 0
        state = self._end or ResponseState("queued" if queued else "in_progress", self._output(written))
        return self._object(turn, state=state)

    def take(self, event: Event | Notice) -> Iterator[Json]:
        """Yields the events of a mark or a reset. A block may arrive without deltas, because its end has the whole
        text.
        """
        waits = self._projection.waits
        step = self._projection.take(event)
        if self._taken_back and isinstance(step, Begin) and self._goes_on(step):
            return
        yield from self._end_taken_back()
        if isinstance(step, CallResult) and self._projection.waits > waits:
            yield from self._pass_wait(step.block, waits)
        if isinstance(step, Retract):
            self._take_back(step)
        if not self._is_here:
            return
        match step:
            case Begin():
                yield from self._begin_block(step)
            case Close() | CallResult() | ProviderResult():
                yield from self._close_block(step)
            case ActionRequired():
                self._reach(step.attempt)
                yield from self._ask(step)
            case RoundStop():
                self._reach(step.attempt)
                self._usages.append(step.usage)
            case TurnEnd():
                self._reach(step.attempt)
                yield from self._finish(state_of(step, self._is_structured))
            case TurnStart() | RoundStart() | Retract() | Notice() | None:
                pass
            case _:
                assert_never(step)

    @property
    def _is_here(self) -> bool:
        return self._projection.waits == self._part and self._end is None

    # --- numbers -----------------------------------------------------------------------------------------------------

    def _number(self, position: int) -> int:
        return self._band * BAND + position

    def _reach(self, attempt: int) -> None:
        self._band = max(self._band, attempt - 1)

    def _event(self, type: str, **members: Any) -> Iterator[Json]:
        """Yields the next event, unless the reader already has it."""
        number, self._position = self._number(self._position), self._position + 1
        if number > self._after:
            yield from self._caught_up(number)
            self._last = number
            yield {"type": type, "sequence_number": number, **members}

    def _caught_up(self, number: int) -> Iterator[Json]:
        """Yields the current response before the reader's first event, if content that the reader has was voided."""
        known, self._after = self._after, -1
        is_taken_back = number // BAND > known // BAND and number % BAND <= known % BAND and known >= 0
        if is_taken_back or self._lost:
            self._lost = False
            state = ResponseState(output=self._output())
            yield self._of_response("response.in_progress", number - 1, state)

    def _of_response(self, type: str, number: int, state: ResponseState) -> Json:
        response = self._object(self._turn(), state=state)
        return {"type": type, "sequence_number": number, "response": response}

    def _delta(self, delta: BlockDelta) -> bytes:
        item = self._open
        if item is None or not item.prefix:
            return b""
        first, text, before = self._number(item.start + delta.offset), delta.text, b""
        last = first + len(text) - 1
        if self._after >= 0:
            text = text[max(0, self._after - first + 1) :]
            if not text:
                return b""
            before = _frames(self._caught_up(first))
        elif first <= self._last:  # the block was retracted, and continues
            text = text[self._last - first + 1 :]
            if not text:
                return b""
        self._last = last
        return before + item.prefix % (self._last, to_json(text))

    # --- items -------------------------------------------------------------------------------------------------------

    def _add(self, block: int, attempt: int, json: Json) -> Iterator[Json]:
        item = _Item(json, block, attempt, self._given, self._position)
        self._given += 1
        yield from self._event("response.output_item.added", output_index=item.output_index, item=dict(json))
        self._items.append(item)
        self._open = item

    def _done(self, item: _Item, **members: Any) -> Iterator[Json]:
        item.json |= members
        item.done = True
        yield from self._event("response.output_item.done", output_index=item.output_index, item=dict(item.json))

    def _output(self, written: Block | None = None) -> list[Json]:
        items = [dict(item.json) for item in self._items]
        if written is not None and self._open is not None and self._open.block == written.index:
            match self._open.json["type"]:
                case "message":
                    items[-1]["content"] = [text_part(written.text)]
                case "reasoning":
                    items[-1]["summary"] = [{"type": "summary_text", "text": written.text}]
                case "custom_tool_call":
                    pass  # the input is known only at the end of the block's JSON
                case _:
                    items[-1]["arguments"] = written.text
        return items

    def _begin_block(self, begin: Begin) -> Iterator[Json]:
        start = begin.start
        if start.type == TOOL_RESULT:
            return  # the result may end a part, and may have another attempt than the part
        self._reach(start.attempt)
        self._starts[start.index] = self._position
        json = self._new_item(begin)
        if json is not None:
            yield from self._begin_item(json, start.index, start.attempt)

    def _begin_item(self, json: Json, block: int, attempt: int) -> Iterator[Json]:
        yield from self._add(block, attempt, json)
        item = self._items[-1]
        if json["type"] == "message":
            yield from self._event("response.content_part.added", **item.place, content_index=0, part=text_part(""))
        elif json["type"] == "reasoning":
            part = {"type": "summary_text", "text": ""}
            yield from self._event("response.reasoning_summary_part.added", **item.place, summary_index=0, part=part)
        item.start = self._position
        if json["type"] == "custom_tool_call":
            return
        type, more = _DELTAS[json["type"]]
        place = to_json(item.place)[1:-1].replace(b"%", b"%%")
        item.prefix = b'event: %b\ndata: {"type":"%b",%b,%b"sequence_number":%%d,"delta":%%b}\n\n' % (
            type.encode(),
            type.encode(),
            place,
            more,
        )

    def _new_item(self, begin: Begin) -> Json | None:
        """Returns the item that starts with this block, as far as it is known, or None if the block starts no item."""
        turn, start = self._turn(), begin.start
        place = start.index, start.attempt
        if start.type == TEXT and not self._is_structured:
            return self._new_message(*place)
        if start.type == THINKING:
            return {"type": "reasoning", "id": item_id("rs", turn, *place), "summary": []}
        if begin.runner == "client":
            call = {"status": "in_progress", "call_id": start.tool_use_id, **names_of(start.name)}
            if start.name in self._customs:
                return {"type": "custom_tool_call", "id": item_id("ctc", turn, *place), **call, "input": ""}
            return {"type": "function_call", "id": item_id("fc", turn, *place), **call, "arguments": ""}
        if is_server_call(begin.runner, start.name, self._roles):
            return self._server_call(SERVER if begin.runner == "server" else PROVIDER, start.name, "", *place)
        return None

    def _new_message(self, *place: int) -> Json:
        message = {"type": "message", "id": item_id("msg", self._turn(), *place), "role": "assistant"}
        return {**message, "status": "in_progress", "content": []}

    def _server_call(self, label: str, name: str | None, arguments: str, *place: int) -> Json:
        json = {"type": "mcp_call", "id": item_id("mcp", self._turn(), *place), "server_label": label, "name": name}
        return {**json, "arguments": arguments, "output": None, "error": None, "status": "in_progress"}

    def _close_block(self, closed: Closed) -> Iterator[Json]:
        item, self._open, block = self._open, None, closed.block
        if block.interrupted:  # readers may have received more text, so the following events get other numbers
            self._band += 1
        match closed:
            case CallResult():
                yield from self._result(closed)
            case ProviderResult(call=call, output=output):
                key = block.round, call.tool_use_id or ""
                yield from self._answer(key, to_json(output).decode(), is_error=False)
            case Close() if item is not None:
                self._position = item.start + len(block.text)
                yield from self._end_item(item, block)
            case Close():
                pass

    def _end_item(self, item: _Item, block: Block) -> Iterator[Json]:
        status = "incomplete" if block.interrupted else "completed"
        match item.json["type"]:
            case "message":
                place = {**item.place, "content_index": 0}
                part = text_part(block.text, annotations_of(block))
                yield from self._event("response.output_text.done", **place, text=block.text, logprobs=[])
                yield from self._event("response.content_part.done", **place, part=part)
                yield from self._done(item, status=status, content=[part])
            case "reasoning":
                place, part = {**item.place, "summary_index": 0}, {"type": "summary_text", "text": block.text}
                yield from self._event("response.reasoning_summary_text.done", **place, text=block.text)
                yield from self._event("response.reasoning_summary_part.done", **place, part=part)
                yield from self._done(item, summary=[part] if block.text else [])
            case "function_call":
                call = function_of(block)
                yield from self._event("response.function_call_arguments.done", **item.place, **call)
                yield from self._done(item, status=status, **call)
            case "custom_tool_call":
                given = custom_input(block.text)
                yield from self._event("response.custom_tool_call_input.delta", **item.place, delta=given)
                yield from self._event("response.custom_tool_call_input.done", **item.place, input=given)
                yield from self._done(item, status=status, input=given)
            case _:
                item.json |= function_of(block)
                arguments = item.json["arguments"]
                yield from self._event("response.mcp_call_arguments.done", **item.place, arguments=arguments)
                yield from self._event("response.mcp_call.in_progress", **item.place)
                if block.interrupted:
                    yield from self._done(item, status=status)
                    return
                self._running[block.key] = item

    def _result(self, closed: CallResult) -> Iterator[Json]:
        result, call = closed.block, closed.call
        key = result.key
        self._reach(result.attempt)
        self._starts[result.index] = self._position
        if not is_server_call(closed.runner, result.name, self._roles):
            return
        if key not in self._running and call is not None:  # the call came before a wait
            arguments = function_of(call)["arguments"]
            json = self._server_call(SERVER, call.name, arguments, result.index, result.attempt)
            if self._projection.asked.get(key) == "approval":
                json["approval_request_id"] = approval_id(self._turn(), call)
            yield from self._add(result.index, result.attempt, json)
            self._running[key], self._open = self._items[-1], None
        yield from self._answer(key, result.text, is_error=result.is_error)

    def _answer(self, key: tuple[int, str], text: str, *, is_error: bool) -> Iterator[Json]:
        item = self._running.pop(key, None)
        if item is not None:
            yield from self._event(f"response.mcp_call.{'failed' if is_error else 'completed'}", **item.place)
            error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]}
            result = {"status": "failed", "error": error} if is_error else {"status": "completed", "output": text}
            yield from self._done(item, **result)

    def _ask(self, event: ActionRequired) -> Iterator[Json]:
        """Adds an item for each approval. A call of a client's function already has an item."""
        for action in event.actions:
            call = self._projection.calls.get((event.round, action.tool_use_id))
            if action.kind == "approval" and call is not None:
                id = approval_id(self._turn(), call)
                json = {"type": "mcp_approval_request", "id": id, "server_label": SERVER, **function_of(call)}
                yield from self._add(call.index, call.attempt, json)
                yield from self._done(self._items[-1])
                self._open = None

    # --- ends --------------------------------------------------------------------------------------------------------

    def _pass_wait(self, result: Block, waits: int) -> Iterator[Json]:
        """Yields the end of the part that waited, and starts the next part, which the client's first answer begins."""
        if self._part == waits and self._end is None:
            yield from self._finish(ResponseState("completed"))
        self._band = 0
        self._reach(result.attempt)

    def _finish(self, state: ResponseState) -> Iterator[Json]:
        self._open = None
        for item in self._items:
            if not item.done:
                yield from self._done(item, status="incomplete")
        if self._is_structured and state.status == "completed" and (output := output_of(self._turn())) is not None:
            yield from self._whole_message(output)
        if state.status == "incomplete" and self._items and "status" in self._items[-1].json:
            # The end of the item was sent before the stop reason was known.
            self._items[-1].json["status"] = "incomplete"
        self._end = ResponseState(state.status, self._output(), tuple(self._usages), state.reason, state.error)
        type = state.status if state.status in {"completed", "failed"} else "incomplete"
        response = self._object(self._turn(), state=self._end)
        yield from self._event(f"response.{type}", response=response)

    def _whole_message(self, text: str) -> Iterator[Json]:
        """Yields the message with the output of a structured turn, which is valid only at the end of the turn."""
        turn = self._turn()
        place = len(turn.blocks), turn.attempt
        yield from self._begin_item(self._new_message(*place), *place)
        item, self._open = self._items[-1], None
        yield from self._event("response.output_text.delta", **item.place, content_index=0, delta=text, logprobs=[])
        yield from self._end_item(item, Block(place[0], 0, place[1], TEXT, text))

    def _take_back(self, reset: Retract) -> None:
        """Removes from the response the items of all blocks that a reset voids."""
        self._position, self._open = self._starts.get(reset.index, self._position), None
        self._starts = {block: start for block, start in self._starts.items() if block < reset.index}
        self._taken_back = [item for item in self._items if item.block >= reset.index]
        self._items = [item for item in self._items if item.block < reset.index]
        self._running = {key: item for key, item in self._running.items() if item.block < reset.index}

    def _goes_on(self, begin: Begin) -> bool:
        """Returns whether the voided block continues, because its rows had less text than the readers. Such a block
        keeps its item, and the part that readers have is not sent again.
        """
        item, start = self._taken_back[0], begin.start
        if item.done or (item.block, item.attempt) != (start.index, start.attempt):
            return False
        self._taken_back.clear()
        self._items.append(item)
        self._open, self._position = item, item.start
        self._starts[item.block] = item.begun
        return True

    def _end_taken_back(self) -> Iterator[Json]:
        """Yields the end of each voided item, as incomplete; the response no longer contains the item. No output index
        is reused, because the SDK refuses a repeated index. Later items have higher numbers, because a later attempt
        writes them.
        """
        if self._after < 0:
            for item in self._taken_back:
                place = {"output_index": item.output_index, "item": {**item.json, "status": "incomplete"}}
                yield {"type": "response.output_item.done", "sequence_number": self._last, **place}
        self._taken_back.clear()


def text_part(text: str, annotations: Sequence[Json] = ()) -> Json:
    return {"type": "output_text", "text": text, "annotations": list(annotations), "logprobs": []}


def _has_had(turn: Turn, number: int) -> bool:
    """Returns whether the band of `number` was begun by an attempt of this turn, or by an interrupted block in it."""
    attempt = number // BAND + 1
    return any(turn.has_had(attempt - cuts) for cuts in range(LEAST_STEP))


def _frames(events: Iterator[Json] | Sequence[Json]) -> bytes:
    return b"".join(b"event: %b\ndata: %b\n\n" % (event["type"].encode(), to_json(event)) for event in events)
