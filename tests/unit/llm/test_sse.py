from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnstream.libraries.providers.transport.wire import EventSplitter


def split(*chunks: bytes) -> list[bytes]:
    frames = EventSplitter()
    found = [data for chunk in chunks for data in frames.feed(chunk)]
    return [*found, *filter(None, [frames.end()])]


@pytest.mark.parametrize(
    "stream",
    [
        b'event: a\ndata: {"n":1}\n\ndata: {"n":2}\n\n',
        b'event: a\r\ndata: {"n":1}\r\n\r\ndata: {"n":2}\r\n\r\n',
        b'event: a\rdata: {"n":1}\r\rdata: {"n":2}\r\r',
        b': hello\n\nevent: a\ndata:{"n":1}\n\n: again\n\ndata:  {"n":2}  \n\n',
        b'id: 7\nevent: a\ndata: {"n":1}\nretry: 5\n\n\n\nretry: 5\ndata: {"n":2}\n\n',
        b'data: {"n":\ndata: 1}\n\nevent: a\ndata: {"n":\ndata: 2}\n\n',
        b'data: {"n":1}\n\ndata: {"n":2}\n',
        b'data: {"n":1}\n\ndata: {"n":2}',
        b'event: ping\ndata:\n\ndata: {"n":1}\n\nevent: ping\n\ndata: \n\ndata: {"n":2}\n\n',
        b'\xef\xbb\xbfdata: {"n":1}\n\ndata: {"n":2}\n\n',
        b'event: data: x\ndata: {"n":1}\n\ndatax: no\ndata: {"n":2}\n\n',
    ],
)
def test_events_are_found_however_they_are_framed_and_cut(stream: bytes) -> None:
    whole = [data.replace(b"\n", b"").replace(b" ", b"") for data in split(stream)]
    assert whole == [b'{"n":1}', b'{"n":2}']
    for size in range(1, len(stream)):
        assert split(*_cut(stream, size)) == split(stream)


@given(
    st.lists(st.sampled_from([b"data: x", b"data:", b": c", b"event: e", b"\n", b"\r", b"\r\n", b"\n\n", "é".encode()]))
)
def test_how_the_bytes_arrive_makes_no_difference(parts: list[bytes]) -> None:
    stream = b"".join(parts)
    assert split(*_cut(stream, 1)) == split(stream)
    assert split(*parts) == split(stream)


def test_an_event_is_complete_with_its_blank_line_for_all_line_ends() -> None:
    for newline in (b"\n", b"\r\n", b"\r"):
        assert EventSplitter().feed(b"data: x" + newline * 2) == [b"x"]


def test_a_line_of_a_megabyte_in_small_pieces_is_put_together_once() -> None:
    line = b"x" * 1_000_000
    assert split(b"data: ", *_cut(line, 100), b"\n\n") == [line]


def test_the_size_of_an_unfinished_event_is_known_however_its_lines_are_cut() -> None:
    frames = EventSplitter()
    sizes = [
        (frames.feed(chunk), frames.unfinished)[1] for chunk in (b"data: x\n", b"data", b": y\n", b"\n", b"id", b"\n\n")
    ]
    assert sizes == [8, 12, 16, 0, 2, 0]


def test_a_long_event_is_weighed_by_the_time_that_it_takes_to_decode() -> None:
    frames = EventSplitter()
    frames.feed(b"data: [" + b" " * 70_000)
    assert frames.unfinished == 70_007
    frames.feed(rb'{"a": 1},"\n"')
    assert frames.unfinished == 70_007 + 13 + 6 * 9 + 100


def _cut(stream: bytes, size: int) -> Iterator[bytes]:
    return (stream[place : place + size] for place in range(0, len(stream), size))
