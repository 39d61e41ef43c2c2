"""Counted chunks: a stream that skips its first chunks continues the client's chunks, or ends with an error."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import tries
from tests.support.turns import turn_of
from tests.unit.stream.test_readers import TEXTS
from tests.unit.stream.writer import Writer
from turnstream.domain.blocks import Block
from turnstream.domain.cursor import START, Cursor
from turnstream.domain.events import BlockDelta, BlockStart, BlockStop, Event, Notice, Reset, RoundStart, TurnStart
from turnstream.domain.turns import Turn, TurnRequest
from turnstream.extensions.ai_sdk.chunks import UiEncoder
from turnstream.extensions.ai_sdk.counted import UNIT, CountedEncoder
from turnstream.stream.directory import Directory
from turnstream.stream.reader import TurnReader


class Client:
    """A connection that skips its first `skip` chunks. `whole` also has the skipped chunks."""

    def __init__(self, writer: Writer, replica: int, skip: int = 0) -> None:
        self._writer, self._skip = writer, skip
        directory = writer.directories[replica]
        view = directory.view(writer.rows)
        self._everything, self.counted = (
            CountedEncoder(UiEncoder(view.turn, lambda: writer.rows), each, 0, lambda: self._reader.view.turn)
            for each in (0, skip)
        )
        self.whole: list[bytes] = []
        self.chunks: list[bytes] = []
        self._reader = TurnReader(directory, view, self._load, START, self._take)

    def _take(self, event: Event | Notice, cursor: Cursor | None) -> bytes:
        if not self.counted.is_lost:
            self.whole += self._everything(event, cursor).split(b"\n\n")[:-1]
            self.chunks += self.counted(event, cursor).split(b"\n\n")[:-1]
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
@given(st.lists(st.tuples(st.integers(0, 999), TEXTS, st.integers(0, 9)), min_size=20, max_size=80), st.integers(0, 60))
async def test_the_chunks_that_are_left_out_are_those_that_the_client_has(
    acts: list[tuple[int, str, int]], had: int
) -> None:
    writer = Writer([Directory(), Directory()], replace(turn_of(status="queued", attempt=0), request=TurnRequest("m")))
    first = Client(writer, 0)
    later: list[tuple[list[bytes], Client]] = []
    for number, words, chance in acts:
        writer.write(number, words)
        writer.mirror()
        if chance < 5:
            for client in (first, *(client for _, client in later)):
                await client.read()
        if chance > 7:
            has = first.chunks[:had]
            later.append((has, Client(writer, number % 2, len(has))))
    writer.finish()
    writer.mirror()
    for has, client in later:
        await client.read()
        if not client.counted.is_lost:
            assert client.whole[: len(has)] == has
            assert client.chunks == client.whole[len(has) :]


def counted(turn: Turn, skip: int = 0) -> CountedEncoder:
    return CountedEncoder(UiEncoder(turn, lambda: turn), skip, 0, lambda: turn)


def parts(encoder: CountedEncoder, *events: Event) -> list[bytes]:
    return [chunk for event in events for chunk in encoder(event, None).split(b"\n\n")[:-1]]


def test_text_is_cut_at_the_same_places_however_it_comes() -> None:
    words = "x" * (3 * UNIT + 5)
    turn, block = turn_of(), Block(0, 1, 1, "text", words)
    start: list[Event] = [TurnStart(0, turn.id, turn.chat_id, "m", 1, "running"), RoundStart(1, 1, 1, ())]
    start.append(BlockStart(1, 0, 1, "text", None, None))
    at_once = [BlockDelta(0, 0, words)]
    singly = [BlockDelta(0, place, letter) for place, letter in enumerate(words)]
    told = [parts(counted(turn), *start, *deltas, BlockStop(1, block)) for deltas in (at_once, singly)]
    assert told[0] == told[1]
    assert len(told[0]) == 2 + 1 + 4 + 1


def test_a_client_that_has_more_than_an_earlier_attempt_wrote_must_begin_again() -> None:
    turn = replace(turn_of(), lineage=(0, 1, 2))
    start: list[Event] = [TurnStart(0, turn.id, turn.chat_id, "m", 2, "running"), RoundStart(1, 1, 1, ())]
    for skip, is_lost in ((2, False), (3, True)):
        encoder = counted(turn, skip)
        parts(encoder, *start, BlockStart(2, 0, 1, "text", None, None))
        assert encoder.is_lost is is_lost
    encoder = counted(turn, 3)
    parts(encoder, *start, Reset(2, 0))
    assert encoder.is_lost
