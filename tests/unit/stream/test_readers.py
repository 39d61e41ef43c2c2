"""Each reader assembles exactly the turn in the rows, for all writers, readers, schedules and restored dumps."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import tries
from tests.support.stream_client import Client, encode
from tests.support.turns import turn_of
from tests.unit.stream.writer import Writer
from turnstream.domain import log
from turnstream.domain.cursor import START, Cursor
from turnstream.domain.events import BlockDelta, Mark, Reset, TurnStart
from turnstream.domain.log import Log, end_cursor, next_event, resume
from turnstream.domain.turns import Turn
from turnstream.stream import live
from turnstream.stream import reader as tail
from turnstream.stream.delivery import Deliveries, Delivery
from turnstream.stream.directory import Directory
from turnstream.stream.live import LiveView

READERS = 4
MOST_LOADS_OF_A_READ = 8

Act = tuple[str, int, str]
TEXTS = st.text(st.sampled_from("ab \n\u00e9\u4e2d\U0001f6a2\U00010348\x01\u2028"), max_size=12)
ACTS = st.lists(
    st.tuples(
        st.sampled_from([*["write"] * 10, *["read"] * 8, "mirror", "mirror", "leave", "return", "dump", "restore"]),
        st.integers(0, 999),
        TEXTS,
    ),
    min_size=20,
    max_size=100,
)


class Reader:
    """A client that reads at random times, disconnects, and resumes from any of its cursors."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._client = Client()
        self.history = [self._client.copy()]
        self._frames: AsyncGenerator[bytes, None] | None = None
        self._next: asyncio.Task[bytes] | None = None
        self._loads = 0

    def come(self, replica: int, how_long_ago: int) -> None:
        if self._frames is None:
            self._client = self.history[-1 - how_long_ago % len(self.history)].copy()
            directory = self._writer.directories[replica % len(self._writer.directories)]
            cursor = Cursor.parse(str(self._client.cursor))
            self._frames = tail.follow(directory, directory.view(self._writer.rows), self._load, cursor, encode)

    async def leave(self) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)
            self._next = None
        if self._frames is not None:
            await self._frames.aclose()
            self._frames = None

    async def read(self) -> bool:
        """Reads one portion, if there is one. Returns False if the stream has ended."""
        if self._frames is None:
            return True
        self._loads = 0
        if self._next is None:
            self._next = asyncio.create_task(_next(self._frames))
        for _ in range(6):
            await asyncio.sleep(0)
        if not self._next.done():
            return True
        finished, self._next = self._next, None
        try:
            self._client.take(finished.result())
        except StopAsyncIteration:
            self._frames = None
            return False
        self.history.append(self._client.copy())
        return True

    async def read_to_the_end(self, replica: int, how_long_ago: int) -> Client:
        self.come(replica, how_long_ago)
        while await self.read():
            self._writer.mirror()
        return self._client

    async def _load(self) -> Turn:
        self._loads += 1
        assert self._loads < MOST_LOADS_OF_A_READ, "the reader turns in circles"
        await asyncio.sleep(0)
        return self._writer.rows


class DeliveredReader(Reader):
    """A reader to which the delivery writes, instead of a generator that the reader consumes."""

    def __init__(self, writer: Writer) -> None:
        super().__init__(writer)
        self.is_writable = False
        self._portions: list[bytes] = []
        self._running: asyncio.Task[None] | None = None

    def write(self, data: bytes) -> None:
        assert self.is_writable
        self._portions.append(data)

    def come(self, replica: int, how_long_ago: int) -> None:
        if self._running is None:
            self._client = self.history[-1 - how_long_ago % len(self.history)].copy()
            directory = self._writer.directories[replica % len(self._writer.directories)]
            view, cursor = directory.view(self._writer.rows), Cursor.parse(str(self._client.cursor))
            reader = tail.TurnReader(directory, view, self._load, cursor, encode, shares=True)
            self._delivery = Delivery(Deliveries(), reader, self)
            self._running = asyncio.create_task(self._delivery.run())

    async def leave(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            self._running = None

    async def read(self) -> bool:
        if self._running is None:
            return True
        self._loads, self.is_writable = 0, True
        self._delivery.wake()
        for _ in range(6):
            await asyncio.sleep(0)
        self.is_writable = False
        portions, self._portions = self._portions, []
        for portion in portions:
            self._client.take(portion)
            self.history.append(self._client.copy())
        if not self._running.done():
            return True
        finished, self._running = self._running, None
        finished.result()
        return False


async def _next(frames: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(frames)


def _readers(writer: Writer) -> list[Reader]:
    return [DeliveredReader(writer) if number % 2 else Reader(writer) for number in range(READERS)]


async def _play(acts: Sequence[Act]) -> None:
    writer = Writer([Directory(), Directory()], turn_of(status="queued", attempt=0))
    readers = _readers(writer)
    handed_out = {START}
    for act in acts:
        await _act(act, writer, readers)
        handed_out |= {reader.history[-1].cursor for reader in readers}
        _assert_rows_answer_as_the_view_does(writer, handed_out)
    writer.finish()
    for number, reader in enumerate(readers):
        (await reader.read_to_the_end(number, 0)).assert_holds(writer.rows)
        for age in range(len(reader.history)):
            (await reader.read_to_the_end(number, age)).assert_holds(writer.rows)


async def _act(act: Act, writer: Writer, readers: Sequence[Reader]) -> None:
    name, number, text = act
    reader = readers[number % READERS]
    match name:
        case "write":
            writer.write(number, text)
        case "mirror":
            writer.mirror()
        case "dump":
            writer.dump()
        case "restore":
            for each in readers:
                await each.leave()
            writer.restore(replicas_live=number % 2 == 0)
        case "leave":
            await reader.leave()
        case "return":
            await reader.leave()
            reader.come(number // READERS, number // (2 * READERS))
        case _:
            reader.come(number // READERS, 0)
            await reader.read()


def _assert_rows_answer_as_the_view_does(writer: Writer, cursors: set[Cursor]) -> None:
    """Asserts that a view that is built from the rows has the events of the live view, as far as the rows go. If the
    turn has ended, the view from rows has all events.
    """
    if writer.view is None:
        return
    rows = LiveView(writer.rows)
    assert rows.marks[1:] == writer.view.marks[1 : len(rows.marks)]
    for cursor in cursors:
        there, reset_there = resume(rows, cursor)
        here, reset_here = resume(writer.view, cursor)
        if (there, reset_there) != (here, reset_here):
            assert reset_there is not None
            assert cursor._replace(attempt=0) > end_cursor(rows)._replace(attempt=0), "what a row holds is known"
            assert not rows.ended
            continue
        events, live = _letters(rows, there), _letters(writer.view, here)
        assert events == (live if rows.ended else live[: len(events)])


def _letters(log: Log, cursor: Cursor) -> list[tuple[Any, ...] | Mark]:
    """Returns the events after the cursor. A delta is split into letters, so that the result does not depend on the
    deltas.
    """
    events: list[tuple[Any, ...] | Mark] = []
    while step := next_event(log, cursor):
        event, cursor = step
        match event:
            case BlockDelta(index, offset, text):
                events += [(index, offset + n, letter) for n, letter in enumerate(text)]
            case TurnStart():
                events.append(("turn_start",))
            case _:
                assert not isinstance(event, Reset)
                events.append(event)
    return events


@settings(max_examples=tries(100))
@given(ACTS)
def test_every_reader_assembles_the_content_of_the_rows(acts: list[Act]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "LONGEST_DELTA", 5)
        patch.setattr(live, "LONGEST_DELTA", 5)
        patch.setattr(tail, "PORTION", 600)
        asyncio.run(_play(acts))


async def test_a_turn_that_asks_and_waits_and_continues_elsewhere_is_the_same_for_every_reader() -> None:
    writer = Writer([Directory(), Directory()], turn_of(status="queued", attempt=0))
    readers = _readers(writer)
    handed_out = {START}
    deeds: list[Callable[[], None]] = [
        partial(writer.claim, 0),
        partial(writer.say, "before anything"),
        writer.begin,
        writer.call,
        writer.call,
        writer.call,
        partial(writer.seal, "tool_use"),
        partial(writer.ask, 0b11),
        partial(writer.answer, "ran", False),
        writer.wait,
        writer.respond,
        partial(writer.claim, 1),
        partial(writer.answer, "answered while it ran", False),
        writer.crash,
        writer.respond,
        partial(writer.claim, 0),
        partial(writer.answer, "answered while it waited", True),
        partial(writer.say, "and be quick"),
        writer.begin,
        partial(writer.open, 0),
        partial(writer.append, "There."),
        writer.close,
    ]
    for deed in deeds:
        deed()
        writer.mirror()
        for number, reader in enumerate(readers):
            reader.come(number, 0)
            await reader.read()
        handed_out |= {reader.history[-1].cursor for reader in readers}
        _assert_rows_answer_as_the_view_does(writer, handed_out)
    writer.finish()
    assert [block.text for block in writer.rows.blocks] == [
        "before anything",
        "{}",
        "{}",
        "{}",
        "ran",
        "answered while it ran",
        "answered while it waited",
        "and be quick",
        "There.",
    ]
    assert len(writer.rows.lineage) == 5
    for number, reader in enumerate(readers):
        await reader.leave()
        for age in range(len(reader.history)):
            client = await reader.read_to_the_end(number, age)
            client.assert_holds(writer.rows)
            assert client.resets == []
