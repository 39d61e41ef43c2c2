import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from tests.support.stream_client import Client, decode, encode
from tests.support.turns import begun, sealed, text, turn_of
from turnstream.domain.cursor import START, Cursor
from turnstream.domain.events import BlockDelta, BlockStart, Event, Notice
from turnstream.domain.turns import Turn
from turnstream.stream import delivery, reader
from turnstream.stream.delivery import Deliveries, Delivery
from turnstream.stream.directory import Directory
from turnstream.stream.live import LiveView
from turnstream.stream.reader import Encode, TurnReader

COMPLETE = turn_of(text(0, 1, "ahoy"), rounds=[sealed(1, "end_turn")], status="complete")


async def _never() -> Turn:
    raise AssertionError("no rows were needed")


@dataclass
class Sink:
    is_writable: bool = True
    written: list[bytes] = field(default_factory=list)
    fails: bool = False

    def write(self, data: bytes) -> None:
        assert self.is_writable
        if self.fails:
            raise LookupError
        self.written.append(data)

    def take(self) -> list[list[Event | Notice]]:
        """Returns the events of each write since the last call of `take`."""
        written, self.written = self.written, []
        return [[event for event, _ in decode(data)] for data in written]


Reading = tuple[Sink, Delivery, asyncio.Task[None]]


@dataclass
class Stage:
    """Holds the views that a test writes, and the `Deliveries` that send their events to all readers."""

    directory: Directory = field(default_factory=Directory)
    deliveries: Deliveries = field(default_factory=Deliveries)

    @asynccontextmanager
    async def reading(
        self,
        view: LiveView,
        sink: Sink | None = None,
        load: Callable[[], Awaitable[Turn]] = _never,
        encode: Encode = encode,
    ) -> AsyncIterator[Reading]:
        """Starts a reader, which has received everything so far."""
        sink = sink or Sink()
        delivering = Delivery(self.deliveries, TurnReader(self.directory, view, load, START, encode, shares=True), sink)
        task = asyncio.create_task(delivering.run())
        await _passes()
        yield sink, delivering, task
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _passes(count: int = 8) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def _writing(content: str) -> LiveView:
    view = LiveView(turn_of(rounds=[begun()]))
    view.open_block(BlockStart(1, 0, 1, "text", None, None))
    view.append(content)
    return view


async def test_an_ended_turn_is_delivered_to_its_end() -> None:
    async with Stage().reading(LiveView(COMPLETE)) as (sink, _, task):
        await task
    client = Client()
    client.take(b"".join(sink.written))
    client.assert_holds(COMPLETE)


async def test_text_appended_in_one_iteration_is_written_at_once_and_no_other() -> None:
    stage, view = Stage(), _writing("ahoy")
    with stage.directory.host(view, "ada"):
        async with stage.reading(view) as (sink, _, _), stage.reading(view) as (other, _, _):
            assert sink.take()
            other.take()
            view.append(" th")
            view.append("ere")
            await _passes()
            assert sink.written[0] is other.written[0], "readers at one place share the bytes"
            assert sink.take() == other.take() == [[BlockDelta(0, 4, " there")]]
            view.wakeup.notify()
            await _passes()
            assert sink.take() == []


async def test_a_sink_that_is_not_writable_gets_the_same_text_later_in_fewer_deltas() -> None:
    stage, view = Stage(), _writing("a")
    with stage.directory.host(view, "ada"):
        async with stage.reading(view) as (sink, delivering, _):
            sink.take()
            sink.is_writable = False
            for piece in ("h", "o", "y"):
                view.append(piece)
                await _passes()
            assert sink.written == []
            sink.is_writable = True
            delivering.wake()
            await _passes()
            assert sink.take() == [[BlockDelta(0, 1, "hoy")]]


async def test_a_long_turn_is_written_one_portion_in_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "PORTION", 100)
    turn = turn_of(*(text(n, 1, "a" * 100) for n in range(5)), rounds=[sealed()], status="complete")
    sink, counts = Sink(), [0]
    delivering = Delivery(Deliveries(), TurnReader(Directory(), LiveView(turn), _never, START, encode), sink)
    task = asyncio.create_task(delivering.run())
    while not task.done():
        await asyncio.sleep(0)
        counts.append(len(sink.written))
    assert counts[-1] > 5
    assert max(after - before for before, after in pairwise(counts)) == 1


async def test_a_pass_is_bounded_and_the_rest_comes_in_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_MOST_AT_ONCE", 1)
    stage, view = Stage(), _writing("a")
    with stage.directory.host(view, "ada"):
        async with stage.reading(view) as (first, _, _), stage.reading(view) as (second, _, _):
            first.take()
            second.take()
            view.append("b")
            await asyncio.sleep(0)
            assert (len(first.written), len(second.written)) == (1, 0)
            await asyncio.sleep(0)
            assert len(second.written) == 1


@asynccontextmanager
async def _crowd(stage: Stage, view: LiveView, count: int, **options: Any) -> AsyncIterator[list[Reading]]:
    """Starts several readers of the view. Each reader has already received the view's content."""
    async with AsyncExitStack() as stack:
        stack.enter_context(stage.directory.host(view, "ada"))
        readings = [await stack.enter_async_context(stage.reading(view, **options)) for _ in range(count)]
        for sink, _, _ in readings:
            sink.take()
        yield readings
    assert not view.wakeup.has_waiters
    assert not stage.deliveries.crowds


async def test_many_readers_get_each_frame_from_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, look = [0], TurnReader.look

    def counted(self: TurnReader) -> bytes:
        looks[0] += 1
        return look(self)

    stage, view = Stage(), _writing("a")
    async with _crowd(stage, view, 50) as readings:
        monkeypatch.setattr(TurnReader, "look", counted)
        for _ in range(3):
            view.append("b")
            await _passes()
        assert looks[0] <= 6, "one look for the crowd, one for the reader that waits alone"
        assert {len(sink.written) for sink, _, _ in readings} == {3}


async def test_a_sink_of_many_that_is_not_writable_leaves_the_crowd_and_comes_back() -> None:
    stage, view = Stage(), _writing("a")
    async with _crowd(stage, view, 4) as readings:
        sink, delivering, _ = readings[-1]
        sink.is_writable = False
        for piece in ("h", "o", "y"):
            view.append(piece)
            await _passes()
        assert sink.written == []
        sink.is_writable = True
        delivering.wake()
        await _passes()
        assert "".join(event.text for [event] in sink.take() if isinstance(event, BlockDelta)) == "hoy"
        view.append("!")
        await _passes()
        assert sink.take() == [[BlockDelta(0, 4, "!")]]
        assert delivering.crowd is not None
        delivering.wake()  # The sink may become writable again before the crowd notices that it was not writable.
        await _passes()
        assert sink.take() == []


async def test_a_crowd_is_written_to_in_bounded_passes_and_nobody_joins_it_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage, view = Stage(), _writing("a")
    async with _crowd(stage, view, 6) as readings:
        monkeypatch.setattr(delivery, "_MOST_AT_ONCE", 2)
        counts = []
        view.append("b")
        readings[4][2].cancel()
        async with AsyncExitStack() as stack:
            joining = asyncio.create_task(stack.enter_async_context(stage.reading(view)))
            for number in range(8):
                await asyncio.sleep(0)
                counts.append(sum(len(sink.written) for sink, _, _ in readings))
                if number == 1:
                    view.append("c")
            assert max(after - before for before, after in pairwise([0, *counts])) <= 2
            late, _, _ = await joining
            await _passes(20)
            view.append("d")
            await _passes(20)
            for sink, _, task in readings:
                texts = [event.text for [event] in sink.take() if isinstance(event, BlockDelta)]
                assert "".join(texts) == ("" if task.cancelled() else "bcd")
            assert late.take()[-1] == [BlockDelta(0, 3, "d")]


@pytest.mark.parametrize("reason", ["look", "write"])
async def test_a_failure_in_a_crowd_is_that_of_each_stream_that_has_it(reason: str) -> None:
    def fail(event: Event | Notice, cursor: Cursor | None) -> bytes:
        if reason == "look" and isinstance(event, BlockDelta) and event.offset:
            raise LookupError
        return encode(event, cursor)

    stage, view = Stage(), _writing("a")
    async with _crowd(stage, view, 4, encode=fail) as readings:
        if reason == "write":
            readings[2][0].fails = True
        view.append("b")
        await _passes()
        failed = [task.done() and isinstance(task.exception(), LookupError) for _, _, task in readings]
        assert failed == ([True] * 4 if reason == "look" else [False, False, True, False])


@pytest.mark.parametrize("end", ["its end", "its writer"])
async def test_a_crowd_whose_view_loses_its_writer_continues_with_the_rows(end: str) -> None:
    async def load() -> Turn:
        return COMPLETE

    stage, view, hosting = Stage(), _writing("ah"), ExitStack()
    hosting.enter_context(stage.directory.host(view, "ada"))
    async with AsyncExitStack() as stack:
        readings = [await stack.enter_async_context(stage.reading(view, load=load)) for _ in range(4)]
        if end == "its end":
            view.adopt(COMPLETE, None)
            await _passes(20)
        hosting.close()
        for sink, _, task in readings:
            await task
            client = Client()
            client.take(b"".join(sink.written))
            client.assert_holds(COMPLETE)
    assert not stage.deliveries.crowds


async def test_a_reader_that_fails_is_the_failure_of_its_own_stream_alone() -> None:
    def fail(event: Event | Notice, cursor: Cursor | None) -> bytes:
        if isinstance(event, BlockDelta) and event.offset:
            raise LookupError
        return encode(event, cursor)

    stage, view, other = Stage(), _writing("a"), _writing("a")
    with stage.directory.host(view, "ada"):
        async with stage.reading(view, encode=fail) as (_, _, failing), stage.reading(other) as (sink, _, task):
            sink.take()
            view.append("b")
            other.append("b")
            await _passes()
            assert isinstance(failing.exception(), LookupError)
            assert not task.done()
            assert sink.take() == [[BlockDelta(0, 1, "b")]]


async def test_a_reader_of_a_view_without_a_writer_continues_with_the_rows() -> None:
    async def load() -> Turn:
        return COMPLETE

    stage, view, hosting = Stage(), _writing("ah"), ExitStack()
    hosting.enter_context(stage.directory.host(view, "ada"))
    async with stage.reading(view, load=load) as (sink, _, task):
        assert not task.done()
        hosting.close()
        await task
    client = Client()
    client.take(b"".join(sink.written))
    client.assert_holds(COMPLETE)


@pytest.mark.parametrize("moment", ["before it runs", "while it waits", "while it loads the rows"])
async def test_a_delivery_that_is_stopped_ends_at_once_and_is_forgotten(moment: str) -> None:
    loads = asyncio.Event()

    async def load() -> Turn:
        loads.set()
        await asyncio.Event().wait()
        raise AssertionError("the load was cancelled")

    stage, view, hosting = Stage(), _writing("a"), ExitStack()
    hosting.enter_context(stage.directory.host(view, "ada"))
    if moment == "before it runs":
        reader = TurnReader(stage.directory, view, load, START, encode)
        delivering = Delivery(stage.deliveries, reader, sink := Sink())
        delivering.stop()
        await delivering.run()
        assert sink.written == []
        hosting.close()
    else:
        async with stage.reading(view, load=load) as (_, delivering, task):
            if moment == "while it loads the rows":
                hosting.close()
                await loads.wait()
            delivering.stop()
            await task  # without an error
            assert not view.wakeup.has_waiters
        hosting.close()


async def test_a_reader_that_leaves_is_forgotten_also_when_it_is_woken_already() -> None:
    stage, view = Stage(), _writing("a")
    with stage.directory.host(view, "ada"):
        async with stage.reading(view) as (sink, _, task):
            assert view.wakeup.has_waiters
            view.append("b")
            task.cancel()
            sink.take()
            await _passes()
            assert sink.take() == []
            assert not view.wakeup.has_waiters
