"""Descriptions of the first difference between two requests."""

import json
from typing import Any

import pytest

from turnstream_lab.differences import difference, request_difference


def request_of(*texts: str, **members: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": [{"type": "text", "text": text}]} for text in texts]
    return {"model": "m", **members, "messages": messages}


@pytest.mark.parametrize(
    ("then", "now", "words"),
    [
        (
            request_of("Hello", "The tide is high"),
            request_of("Hello", "The tide is low"),
            'message 2, block 1, text: from character 12 on it was "e tide is high", now "e tide is low"',
        ),
        (request_of("a"), request_of("ab"), 'message 1, block 1, text: from character 1 on it was "a", now "ab"'),
        (request_of("a", system="x"), request_of("a"), 'system was "x", now it is not there'),
        (request_of("a"), request_of("a", tools=[{"name": "t"}]), 'tools was not there, now it is [{"name":"t"}]'),
        (request_of("a", tools=[1]), request_of("a", tools=[True]), "tool 1 was 1, now it is true"),
        (request_of("a", stop=["x", "y"]), request_of("a", stop=["x"]), 'stop 2 was "y", now it is not there'),
        (request_of("a", n=1), request_of("a", n="1" * 99), f'n was 1, now it is "{"1" * 59}…'),
        ({"a": [1]}, {"a": 1}, "a was [1], now it is 1"),
    ],
)
def test_the_first_difference_is_named_as_a_person_counts(then: Any, now: Any, words: str) -> None:
    assert request_difference(json.dumps(then).encode(), json.dumps(now).encode()) == words


def test_the_same_bytes_do_not_differ() -> None:
    assert request_difference(b"{}", b"{}") is None


@pytest.mark.parametrize(("now", "byte"), [(b'{"a": 1}', 5), (b'{"a":1} ', 7)])
def test_the_same_json_in_other_bytes_is_located_by_byte(now: bytes, byte: int) -> None:
    words = f"byte {byte}: it is the same, but written in another way"
    assert request_difference(b'{"a":1}', now) == words


def test_a_difference_in_data_that_is_not_json_is_located_by_byte() -> None:
    assert request_difference(b"abc", b"abd") == "byte 2: it was b'c', now b'd'"


def test_two_values_may_differ_in_the_whole() -> None:
    assert difference(1, 2) == "it was 1, now it is 2"
