import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace

import pytest

from tests.support.stream_client import Client, decode, encode
from tests.support.turns import begun, call, elicitation, sealed, text, turn_of, voided
from turnstream.api.events import frame
from turnstream.domain.blocks import PreliminaryOutput
from turnstream.domain.cursor import START, Cursor
from turnstream.domain.errors import NotFound, StorageUnavailable
from turnstream.domain.events import (
    CAUGHT_UP,
    ActionRequired,
    BlockDelta,
    BlockStart,
    BlockStop,
    Event,
    Notice,
    Reset,
    RoundStop,
    TurnEnd,
    TurnStart,
    preliminary_notice,
)
from turnstream.domain.log import LONGEST_DELTA, end_cursor, end_of
from turnstream.domain.turns import Turn
from turnstream.stream import reader as tail
from turnstream.stream.directory import Directory
from turnstream.stream.live import LiveView

COMPLETE = turn_of(text(0, 1, "ahoy"), rounds=[sealed(1, "end_turn")], status="complete")


async def _never() -> Turn:
    raise AssertionError("no rows were needed")


def _read(
    directory: Directory, view: LiveView, cursor: Cursor = START, load: Callable[[], Awaitable[Turn]] = _never
) -> AsyncGenerator[bytes, None]:
    return tail.follow(directory, view, load, cursor, encode)


def _events(frames: bytes) -> list[Event | Notice]:
    return [event for event, _ in decode(frames)]


async def _next(frames: AsyncGenerator[bytes, None]) -> asyncio.Task[bytes]:
    """Starts a task that waits for the next portion."""

    async def read() -> bytes:
        return await anext(frames)

    task = asyncio.create_task(read())
    for _ in range(5):
        await asyncio.sleep(0)
    return task


def _writing(content: str) -> LiveView:
    view = LiveView(turn_of(rounds=[begun()]))
    view.open_block(BlockStart(1, 0, 1, "text", None, None))
    view.append(content)
    return view


async def test_an_ended_turn_is_sent_to_its_end() -> None:
    portions = [portion async for portion in _read(Directory(), LiveView(COMPLETE))]
    client = Client()
    client.take(b"".join(portions))
    client.assert_holds(COMPLETE)


async def test_a_client_that_has_everything_is_sent_nothing() -> None:
    view = LiveView(COMPLETE)
    assert [portion async for portion in _read(Directory(), view, end_cursor(view))] == []


async def test_frames_begin_with_those_of_an_earlier_look() -> None:
    view = LiveView(COMPLETE)
    reader = tail.TurnReader(Directory(), view, _never, START, frame)
    first = reader.look()
    assert first
    assert b"".join([frames async for frames in reader.frames(first)]) == first
    assert reader.done


async def test_the_end_of_stored_events_is_marked_once_on_request() -> None:
    directory, view = Directory(), _writing("ah")
    with directory.host(view, "ada"):
        frames = tail.TurnReader(directory, view, _never, START, encode, caught_up=True).frames()
        heard = _events(await anext(frames))
        while heard[-1] != CAUGHT_UP:
            heard += _events(await anext(frames))
        assert BlockDelta(0, 0, "ah") in heard
        view.append("oy")
        assert _events(await anext(frames)) == [BlockDelta(0, 2, "oy")]
        await frames.aclose()


async def test_a_cursor_of_an_attempt_of_another_past_is_reset() -> None:
    events = _events(await anext(_read(Directory(), LiveView(COMPLETE), Cursor(2, 3, 0))))
    assert events[0] == Reset(1, 0)
    assert events[-1] == end_of(COMPLETE)


async def test_readers_at_one_place_share_the_bytes() -> None:
    directory, view = Directory(), _writing("ahoy")
    with directory.host(view, "ada"):
        first, second = _read(directory, view), _read(directory, view)
        async with aclosing(first), aclosing(second):
            assert await anext(first) is await anext(second)
            waiting = [await _next(first), await _next(second)]
            view.append(" there")
            one, two = [await task for task in waiting]
            assert one is two
            assert _events(one) == [BlockDelta(0, 4, " there")]


async def test_a_slow_reader_gets_the_same_text_in_fewer_deltas() -> None:
    directory, view = Directory(), _writing("a")
    with directory.host(view, "ada"):
        async with aclosing(_read(directory, view)) as frames:
            await anext(frames)
            for piece in ("ho", "y", " there"):
                view.append(piece)
            assert _events(await anext(frames)) == [BlockDelta(0, 1, "hoy there")]


async def test_a_portion_is_never_much_larger_than_agreed() -> None:
    view = LiveView(turn_of(*(text(n, 1, "a" * 1000) for n in range(500)), rounds=[sealed()], status="complete"))
    long = LiveView(turn_of(text(0, 1, "a" * 10 * LONGEST_DELTA), rounds=[sealed()], status="complete"))
    for turn, most in ((view, tail.PORTION + 2000), (long, tail.PORTION + LONGEST_DELTA + 2000)):
        portions = tail.follow(Directory(), turn, _never, START, frame)
        sizes = [len(portion) async for portion in portions]
        assert max(sizes) < most
        assert len(sizes) > 5


async def test_a_voided_round_is_announced_to_clients_that_have_it() -> None:
    directory, view = Directory(), _writing("draft")
    with directory.host(view, "ada"):
        async with aclosing(_read(directory, view)) as frames:
            await anext(frames)
            gone = replace(begun(), stop_reason="voided")
            view.void_round(gone, replace(view.turn, attempt=2))
            view.begin_round(begun(1, attempt=2))
            reset, start = _events(await anext(frames))
            assert reset == Reset(2, 0)
            assert getattr(start, "round", None) == 1


async def test_notices_are_not_sent_to_readers_that_come_later() -> None:
    directory, view = Directory(), _writing("ahoy")
    view.notify(Notice("status", {"n": 1}))
    with directory.host(view, "ada"):
        async with aclosing(_read(directory, view, Cursor(1, 2, 0))) as frames:
            assert [type(event) for event in _events(await anext(frames))] == [BlockStart, BlockDelta]
            waiting = await _next(frames)
            view.notify(Notice("retry", {"n": 2}))
            assert list(decode(await waiting)) == [(Notice("retry", {"n": 2}), None)]
            waiting = await _next(frames)
            view.append("!")
            view.notify(Notice("status", {"n": 3}))
            assert [type(event) for event in _events(await waiting)] == [BlockDelta, Notice]


@pytest.mark.parametrize("shares", [True, False])
async def test_a_notice_comes_where_it_was_written_however_late_the_reader_is(shares: bool) -> None:
    view = LiveView(turn_of(rounds=[]))
    readers = [tail.TurnReader(Directory(), view, _never, START, encode, shares=shares) for _ in range(2)]
    view.notify(Notice("status", {"stage": "processing"}))
    view.begin_round(begun())
    view.notify(Notice("status", {"stage": "streaming"}))
    view.open_block(BlockStart(1, 0, 1, "text", None, None))
    view.append("ahoy")
    view.notify(Notice("status", {"n": 1}))
    view.append(" there")
    view.close_blocks([text(0, 1, "ahoy there")])
    view.notify(Notice("status", {"stage": "executing"}))
    view.end(replace(view.turn, status="complete", stop_reason="end_turn"))
    view.notify(Notice("status", {"n": 2}))
    expected = ["TurnStart", "processing", "RoundStart", "streaming", "BlockStart", "BlockDelta", 1, "BlockStop"]
    later = tail.TurnReader(Directory(), view, _never, START, encode, shares=shares)
    for reader in readers:
        seen = [
            next(iter(event.data.values())) if isinstance(event, Notice) else type(event).__name__
            for event in _events(reader.look())
        ]
        assert seen == [*expected, "executing", "TurnEnd"]
        assert reader.look() == b""
        assert reader.done
    assert not any(isinstance(event, Notice) for event in _events(later.look()))


async def test_notices_do_not_make_a_portion_longer_than_agreed() -> None:
    view = LiveView(turn_of(rounds=[begun()]))
    reader = tail.TurnReader(Directory(), view, _never, START, encode)
    for index in range(20):
        view.close_blocks([text(index, 1, "a" * 50_000)])
        view.notify(Notice("status", {"n": index}))
    sizes = []
    while frames := reader.look():
        sizes.append(len(frames))
    assert max(sizes) < 2 * tail.PORTION + 50_000
    assert len(sizes) > 5


async def test_no_notice_comes_after_the_end() -> None:
    directory, view = Directory(), _writing("ahoy")
    with directory.host(view, "ada"):
        async with aclosing(_read(directory, view)) as frames:
            await anext(frames)
            view.notify(Notice("status", {"n": 1}))
            view.close_blocks([text(0, 1, "ahoy")])
            view.end(replace(view.turn, status="complete", stop_reason="end_turn"))
            assert isinstance(_events(await anext(frames))[-1], TurnEnd)
            with pytest.raises(StopAsyncIteration):
                await anext(frames)


async def test_a_reader_follows_a_turn_from_the_queue_to_its_end() -> None:
    directory = Directory()
    queued = turn_of(status="queued", attempt=0)
    client = Client()
    async with aclosing(_read(directory, directory.view(queued))) as frames:
        client.take(await anext(frames))
        waiting = await _next(frames)
        view = LiveView(turn_of())
        with directory.host(view, "ada"):
            await _next(frames)
            view.begin_round(begun())
            client.take(await waiting)
            view.close_blocks([text(0, 1, "ahoy")])
            view.seal_round(sealed(1, "end_turn"), view.turn)
            view.end(replace(view.turn, status="complete", stop_reason="end_turn"))
        async for portion in frames:
            client.take(portion)
    client.assert_holds(view.turn)


async def test_a_reader_of_a_turn_without_a_replica_continues_with_the_rows() -> None:
    directory, view = Directory(), _writing("ahoy")
    rows = [view.turn]

    async def load() -> Turn:
        return rows[-1]

    async with aclosing(_read(directory, view, load=load)) as frames:
        with directory.host(view, "ada"):
            await anext(frames)
            waiting = await _next(frames)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done(), "the rows know less than the reader, who waits for them"
        (mirror,) = directory.mirrored()
        ended = turn_of(
            text(0, 1, "ahoy there"), rounds=[sealed(1, "end_turn", attempt=1)], status="complete", attempt=2
        )
        mirror.adopt(ended, None)
        events = _events(await waiting)
        assert events[0] == BlockDelta(0, 4, " there")
        assert next(type(event) for event in events[1:]) is BlockStop
        assert isinstance(events[-1], TurnEnd)
        with pytest.raises(StopAsyncIteration):
            await anext(frames)


async def test_a_reader_does_not_move_to_a_view_that_is_behind_its_cursor() -> None:
    """The worker lost its claim after the turn was read and before the turn was hosted."""
    directory = Directory()
    rows = turn_of(rounds=[begun(1, attempt=2)], attempt=2)

    async def load() -> Turn:
        return rows

    mirror = directory.view(rows)
    mirror.adopt(rows, None)
    async with aclosing(_read(directory, mirror, load=load)) as frames:
        await anext(frames)
        waiting = await _next(frames)
        with directory.host(LiveView(turn_of(attempt=1)), "ada"):
            for _ in range(5):
                await asyncio.sleep(0)
            (anew,) = directory.mirrored()
            assert anew.attempt == 2
            anew.adopt(replace(rows, blocks=(text(0, 1, "ahoy", attempt=2),)), None)
            assert [type(event) for event in _events(await waiting)] == [BlockStart, BlockDelta, BlockStop]


async def test_no_client_is_reset_before_the_journal_was_read() -> None:
    """The claim has moved to another replica, which keeps the open text. The client has already received this text."""
    directory = Directory()
    mirror = directory.view(turn_of(rounds=[begun()], attempt=2))
    async with aclosing(_read(directory, mirror, Cursor(1, 3, 4))) as frames:
        waiting = await _next(frames)
        assert not waiting.done()
        mirror.adopt(mirror.turn, text(0, 1, "ahoy there", interrupted=True))
        assert _events(await waiting) == [BlockDelta(0, 4, " there")]


async def test_a_reset_is_sent_though_nothing_has_happened_since() -> None:
    """The turn waits for a person, perhaps for hours, so no later event would carry the reset."""
    directory = Directory()
    mirror = directory.view(
        turn_of(text(attempt=2), rounds=[voided(), sealed(1, attempt=2)], attempt=2, status="waiting")
    )
    async with aclosing(_read(directory, mirror, Cursor(1, 3, 4))) as frames:
        waiting = await _next(frames)
        assert not waiting.done()
        mirror.adopt(mirror.turn, None)
        assert _events(await asyncio.wait_for(waiting, 5))[0] == Reset(2, 0)


async def test_the_stream_of_a_deleted_turn_closes_its_block_and_ends() -> None:
    directory, view = Directory(), _writing("ahoy")

    async def load() -> Turn:
        raise NotFound("there is no such turn")

    async with aclosing(_read(directory, view, load=load)) as frames:
        with directory.host(view, "ada"):
            await anext(frames)
            waiting = await _next(frames)
        stop, end = _events(await waiting)
        assert isinstance(stop, BlockStop)
        assert (stop.block.text, stop.block.interrupted) == ("ahoy", True)
        assert isinstance(end, TurnEnd)
        assert (end.status, end.stop_reason) == ("cancelled", "deleted")
        with pytest.raises(StopAsyncIteration):
            await anext(frames)


async def test_a_turn_that_has_ended_does_not_vanish() -> None:
    view = LiveView(COMPLETE)
    view.vanish()
    assert view.turn == COMPLETE


async def test_a_stream_of_a_mirrored_turn_ends_when_it_is_deleted() -> None:
    directory = Directory()
    mirror = directory.view(turn_of())
    async with aclosing(_read(directory, mirror)) as frames:
        await anext(frames)
        waiting = await _next(frames)
        mirror.vanish()
        assert [type(event) for event in _events(await waiting)] == [TurnEnd]
        with pytest.raises(StopAsyncIteration):
            await anext(frames)


async def test_a_reader_waits_for_postgres(monkeypatch: pytest.MonkeyPatch) -> None:
    directory, view = Directory(), LiveView(turn_of())
    tries = 0

    async def load() -> Turn:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise StorageUnavailable("Postgres cannot be reached")
        return COMPLETE

    portions = [portion async for portion in _read(directory, view, load=load)]
    assert tries == 3
    client = Client()
    client.take(b"".join(portions))
    client.assert_holds(COMPLETE)


async def test_an_invented_cursor_of_an_ended_turn_is_reset() -> None:
    portions = b"".join([portion async for portion in _read(Directory(), LiveView(COMPLETE), Cursor(1, 3, 99))])
    events = _events(portions)
    assert events[0] == Reset(1, 0)
    assert isinstance(events[-1], TurnEnd)
    assert not any(isinstance(event, TurnStart) for event in events)


async def test_a_reader_that_comes_after_an_elicitation_gets_it_behind_the_missed_events() -> None:
    view = LiveView(turn_of(call(0), rounds=[sealed()], asks=[elicitation()]))
    reader = tail.TurnReader(Directory(), view, _never, START, encode)
    before, question = _events(reader.look()), _events(reader.look())
    assert isinstance(before[-1], RoundStop)
    assert [type(event) for event in question] == [ActionRequired]
    assert reader.look() == b""


async def test_a_reader_that_comes_during_a_tool_run_gets_its_output_once_behind_the_events() -> None:
    output = PreliminaryOutput(1, "a", "look", "so far", {"rows": 1})
    turn = replace(turn_of(call(), rounds=[sealed(1)]), preliminary=(output,))
    directory, view = Directory(), LiveView(turn)
    with directory.host(view, "ada"):
        async with aclosing(_read(directory, view)) as frames:
            assert isinstance(_events(await anext(frames))[0], TurnStart)
            shown = {"tool_use_id": "a", "name": "look", "text": "so far", "data": {"rows": 1}}
            assert _events(await anext(frames)) == [Notice("tool_output", shown)]
            waiting = await _next(frames)
            view.notify(preliminary_notice(replace(output, text="more", data=None)))
            news = {"tool_use_id": "a", "name": "look", "text": "more"}
            assert _events(await waiting) == [Notice("tool_output", news)]


async def test_a_reader_without_joined_deltas_counts_at_the_view_that_it_reads_and_only_while_it_reads() -> None:
    directory, mirror, here = Directory(), LiveView(turn_of(rounds=[begun()])), _writing("a")
    reader = tail.TurnReader(directory, mirror, _never, START, encode)
    with reader.unjoined():
        assert (mirror.unjoined, here.unjoined) == (1, 0)
        with directory.host(here, "ada"):
            await reader.renew()
            assert (mirror.unjoined, here.unjoined) == (0, 1)
    assert here.unjoined == 0
