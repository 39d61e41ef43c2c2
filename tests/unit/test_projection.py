"""The projection of a log closes the same blocks for every reader, even if the log was cut or retracted meanwhile."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import tries
from tests.support.turns import ask, call, elicitation, result, sealed, text, turn_of
from tests.unit.stream.test_readers import TEXTS
from tests.unit.stream.writer import Writer
from turnstream.domain.blocks import Block
from turnstream.domain.cursor import START, Cursor
from turnstream.domain.events import (
    ActionRequired,
    BlockDelta,
    BlockStart,
    BlockStop,
    Event,
    Notice,
    RequiredAction,
    Reset,
    RoundStart,
)
from turnstream.domain.log import marks_of, next_event, start_of_block
from turnstream.domain.turns import ToolSpec, Turn, TurnRequest
from turnstream.libraries.dialects.projection import (
    Begin,
    CallResult,
    Close,
    Closed,
    Projection,
    ProviderResult,
    Retract,
    Step,
)
from turnstream.stream.directory import Directory
from turnstream.stream.live import LiveView
from turnstream.stream.reader import TurnReader

REQUEST = TurnRequest("model", tools=(ToolSpec("look", "", "{}", client=True),))
SEARCH = Block(0, 1, 1, "server_tool_use", "{}", tool_use_id="s", name="web_search")
FOUND = Block(1, 2, 1, "web_search_tool_result", data='{"tool_use_id": "s", "content": [7]}')


def projected(events: Iterable[Event], turn: Turn | None = None) -> Projection:
    projection = Projection(turn)
    for event in events:
        projection.take(event)
    return projection


def steps_of(*events: Event) -> list[Step | None]:
    projection = Projection(turn_of())
    return [projection.take(event) for event in events]


def marks(*blocks: Block) -> list[Event]:
    return [mark for block in blocks for mark in (start_of_block(block), BlockStop(block.attempt, block))]


def state(projection: Projection) -> tuple[Sequence[Closed], int]:
    return projection.closed, projection.waits


class Follower:
    """A reader that starts at any place in the log. Its projection is built from the marks before this place."""

    def __init__(self, writer: Writer, replica: int, place: int) -> None:
        self._writer = writer
        directory = writer.directories[replica % 2]
        view = directory.view(writer.rows)
        cursor = Cursor(view.attempt, place % (len(view.marks) + 1)) if place else START
        self.projection = projected(view.marks[: cursor.place], view.turn)
        self._reader = TurnReader(directory, view, self._load, cursor, self._take)

    def _take(self, event: Event | Notice, _cursor: Cursor | None) -> bytes:
        self.projection.take(event)
        return b"x"

    async def _load(self) -> Turn:
        return self._writer.rows

    async def read(self) -> None:
        for _ in range(20):
            if not self._reader.look():
                if self._reader.done or self._reader.fed:
                    return
                await self._reader.renew()


@settings(max_examples=tries(50))
@given(st.lists(st.tuples(st.integers(0, 999), TEXTS, st.integers(0, 9)), min_size=20, max_size=80))
async def test_every_reader_closes_the_same_blocks(acts: list[tuple[int, str, int]]) -> None:
    writer = Writer([Directory(), Directory()], replace(turn_of(status="queued", attempt=0), request=REQUEST))
    followers = [Follower(writer, 0, 0)]
    for number, words, chance in acts:
        writer.write(number, words)
        writer.mirror()
        if chance < 5:
            for follower in followers:
                await follower.read()
        if chance == 9:
            followers.append(Follower(writer, number, number))
    writer.finish()
    writer.mirror()
    whole = projected(marks_of(writer.rows), writer.rows)
    assert [closed.block for closed in whole.closed] == list(writer.rows.blocks)
    for follower in followers:
        await follower.read()
        assert state(follower.projection) == state(whole)


@given(st.integers(0, 30), st.integers(1, 5))
def test_any_cut_and_any_split_into_deltas_give_the_same_blocks(place: int, length: int) -> None:
    blocks = text(0), call(1), call(2, id="b"), result(3, id="b"), result(4), text(5, 2)
    turn = turn_of(*blocks, rounds=[sealed(), sealed(2, "end_turn")], asks=[ask(answer="result")], status="complete")
    view = LiveView(turn)
    marks = view.marks
    projection = projected(marks[:place])
    events: list[Event] = []
    cursor = Cursor(turn.attempt, min(place, len(marks)))
    while step := next_event(view, cursor):
        event, cursor = step
        if isinstance(event, BlockDelta):
            cuts = range(0, len(event.text), length)
            events += [BlockDelta(event.index, event.offset + cut, event.text[cut : cut + length]) for cut in cuts]
        else:
            events.append(event)
    for event in events:
        projection.take(event)
    assert state(projection) == state(projected(marks_of(turn)))
    assert projection.waits == 1


def test_a_result_knows_its_call_in_whatever_order_results_come() -> None:
    first, second, late, early = call(0), call(1, id="b"), result(3), result(2, id="b")
    steps = steps_of(*marks(first, second, early, late))
    assert [step for step in steps if isinstance(step, CallResult)] == [
        CallResult(early, second, "server"),
        CallResult(late, first, "server"),
    ]


def test_a_result_of_the_provider_may_come_rounds_behind_its_call() -> None:
    assert steps_of(*marks(SEARCH, FOUND))[-1] == ProviderResult(FOUND, SEARCH, [7])
    assert steps_of(*marks(FOUND))[-1] == Close(FOUND)


def test_a_call_is_run_by_the_client_the_server_or_the_provider() -> None:
    projection = Projection(replace(turn_of(), request=REQUEST))
    begun = [
        projection.take(start_of_block(block)) for block in (call(), replace(call(), name="other"), SEARCH, text())
    ]
    assert [step.runner for step in begun if isinstance(step, Begin)] == ["client", "server", "provider", None]


def test_a_failed_attempt_is_retracted_with_its_calls() -> None:
    begin = BlockStart(1, 2, 1, "text", None, None)
    blocks = marks(text(), replace(SEARCH, index=1))
    projection = projected([RoundStart(1, 1, 1, ()), *blocks, begin, BlockDelta(2, 0, "a")])
    step = projection.take(Reset(2, 1))
    assert step == Retract(2, 1, begin, [Close(text())])
    assert projection.open is None
    assert [closed.block for closed in projection.closed] == [text()]
    assert projection.take(BlockStop(2, FOUND)) == Close(FOUND), "its call is void"


def test_a_block_that_was_open_when_it_was_retracted_may_begin_again() -> None:
    begin = BlockStart(1, 0, 1, "text", None, None)
    first, _, again, _, other = steps_of(begin, Reset(2, 0), begin, Reset(3, 0), replace(begin, attempt=3))
    assert [step.again for step in (first, again, other) if isinstance(step, Begin)] == [False, True, False]


def test_a_wait_is_over_with_the_first_result_of_its_calls_and_comes_back_when_that_is_retracted() -> None:
    action = RequiredAction("a", "look", "approval", "{}", "", None)
    projection = projected([*marks(call()), ActionRequired(1, 1, (action,))])
    assert projection.waits == 0
    projection.take(BlockStop(1, result()))
    assert projection.waits == 1
    projection.take(Reset(2, 1))
    assert projection.waits == 0
    projection.take(BlockStop(2, result(attempt=2)))
    assert projection.waits == 1


def test_a_tool_that_asks_a_person_while_it_runs_is_no_wait() -> None:
    question = elicitation()
    action = RequiredAction("a", "look", "elicitation", question.question or "", question.digest, None)
    projection = projected([*marks(call()), ActionRequired(1, 1, (action,)), *marks(result())])
    assert projection.waits == 0
