"""The reader of the recovery benchmark detects every fault in a text."""

import io
import time
from collections.abc import Sequence

import msgspec
import pytest

from tests.bench.reader import TIME_WRAP, Reader, check_whole
from tests.bench.scenarios import FaultError

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def base36(value: int, length: int) -> str:
    return "".join(DIGITS[value // 36**place % 36] for place in reversed(range(length)))


def token(place: int, sent: float = 0.0, chat: str = "007") -> str:
    return f"|{chat}{base36(place, 4)}{base36(int(sent * 1e6) % TIME_WRAP, 7)}"


def event(name: str, id: str, **data: object) -> bytes:
    return f"event: {name}\nid: {id}\ndata: {msgspec.json.encode(data).decode()}\n\n".encode()


def deltas(tokens: Sequence[str], attempt: int = 1) -> list[bytes]:
    """Returns one event for each token."""
    starts = [sum(map(len, tokens[:number])) for number in range(len(tokens))]
    return [
        event("block_delta", f"{attempt}-3-{start + len(text)}", index=0, offset=start, text=text)
        for start, text in zip(starts, tokens, strict=True)
    ]


def reader_of(*events: bytes) -> Reader:
    reader = Reader(0, "/stream")
    reader.take(io.BytesIO(b"retry: 1000\n\n" + b"".join(events)))
    return reader


def test_a_reader_that_has_everything_passes() -> None:
    tokens = [token(place) for place in range(3)]
    check_whole(reader_of(*deltas(tokens)), ["".join(tokens)], "007", 3)


def test_after_a_reset_the_text_holds_only_later_deltas() -> None:
    tokens = [token(place) for place in range(3)]
    reader = reader_of(*deltas(tokens[:2]), event("reset", "2-2-0", index=0), *deltas(tokens, attempt=2))
    check_whole(reader, ["".join(tokens)], "007", 3)


@pytest.mark.parametrize(
    "said",
    [
        [token(0), token(2)],
        [token(0), token(1), token(1)],
        [token(1), token(0), token(2)],
        [token(0), token(1), token(2, chat="008")],
        [token(0), token(1), token(2) + "x"],
    ],
    ids=["lost", "repeated", "out of order", "foreign", "more"],
)
def test_text_is_wrong_even_when_the_rows_have_the_same(said: list[str]) -> None:
    with pytest.raises(FaultError):
        check_whole(reader_of(*deltas(said)), ["".join(said)], "007", 3)


def test_text_that_differs_from_the_rows_is_wrong() -> None:
    tokens = [token(place) for place in range(3)]
    with pytest.raises(FaultError, match="differ"):
        check_whole(reader_of(*deltas(tokens)), ["".join(tokens[:2])], "007", 3)


@pytest.mark.parametrize("order", [(0, 2), (0, 1, 1), (0, 0)], ids=["gap", "twice", "the same id"])
def test_a_delta_that_does_not_follow_is_noticed_at_once(order: Sequence[int]) -> None:
    events = deltas([token(place) for place in range(3)])
    with pytest.raises(FaultError):
        reader_of(*(events[place] for place in order))


def test_a_turn_that_fails_is_noticed_at_once() -> None:
    with pytest.raises(FaultError, match="turn_error"):
        reader_of(event("turn_error", "1-3-0", error={"type": "overloaded"}))


def test_only_deltas_sent_after_the_kill_count_as_new() -> None:
    now = time.monotonic()
    reader = Reader(0, "/stream")
    reader.watch_for_new(now - 1)
    old, new = deltas([token(0, now - 2), token(1, now)])
    reader.take(io.BytesIO(old))
    assert reader.new_at is None
    reader.take(io.BytesIO(new))
    assert reader.new_at is not None
