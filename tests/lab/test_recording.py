"""The content of recordings, their redaction, and their file format."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnstream.llm.provider import ModelCall
from turnstream_lab.recording import Failure, RecordedChunk, Recording, decode, encode, redact, redact_reads

BEGAN = "2026-11-20T10:00:00+00:00"
CALL = ModelCall(UUID(int=7), 2, 1, "claude-sonnet-5-5")

READS = st.lists(st.builds(RecordedChunk, st.floats(0, 100), st.binary(max_size=20)), max_size=5)
FAILURES = st.none() | st.builds(Failure, st.just("ReadError"), st.text())


@given(request=st.binary(max_size=50), reads=READS, failure=FAILURES, call=st.sampled_from([None, CALL]))
def test_a_file_holds_every_byte_and_where_each_read_ended(
    request: bytes, reads: list[RecordedChunk], failure: Failure | None, call: ModelCall | None
) -> None:
    answered = {"status": 200, "headers": {"request-id": "req_1"}, "head_at": 0.25, "reads": tuple(reads)}
    recording = Recording(BEGAN, "host/v1", request, call, **answered, ending="whole", failure=failure)  # type: ignore[arg-type]
    assert decode(encode(recording)) == recording
    assert recording.body == b"".join(read.data for read in reads)


@pytest.mark.parametrize("call", [CALL, None])
def test_a_call_without_a_response_is_a_recording_too(call: ModelCall | None) -> None:
    recording = Recording(BEGAN, "host/v1", b"{}", call, ending="failed", failure=Failure("ConnectError", "refused"))
    assert decode(encode(recording)) == recording


@pytest.mark.parametrize("file", [b"", b"{}\n", b"not JSON\n{}\n{}\n", b"1\n2\n3\n"])
def test_a_file_that_is_no_recording_is_refused(file: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(file)


def test_half_a_recording_is_refused() -> None:
    file = encode(Recording(BEGAN, "host/v1", b"{}", CALL, status=200, reads=(RecordedChunk(0.1, b"data: 1\n\n"),)))
    with pytest.raises(ValueError, match="no recording"):
        decode(file.rpartition(b'{"at"')[0])


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        (b'{"key":"sk-secret"}', b'{"key":"*********"}'),
        (b'{"authorization_token": "abc\\"d", "name":"x"}', b'{"authorization_token": "******", "name":"x"}'),
        (b'{"API_KEY":"k"}', b'{"API_KEY":"*"}'),
        (
            b'{"headers": {"X-Key": "k1", "n": 1, "b":"k"}, "a":"b"}',
            b'{"headers": {"X-Key": "**", "n": 1, "b":"*"}, "a":"b"}',
        ),
        (b'{"headers": {"X-Key": "a}b{\\"c", "b":"k"}}', b'{"headers": {"X-Key": "*******", "b":"*"}}'),
        (b'{"text":"say \\"api_key\\": \\"k\\""}', b'{"text":"say \\"api_key\\": \\"k\\""}'),
    ],
)
def test_keys_become_stars_and_every_byte_keeps_its_place(body: bytes, kept: bytes) -> None:
    assert redact(body, [b"sk-secret"]) == kept


def test_a_short_key_stays_where_it_may_be_a_part_of_a_word() -> None:
    body = b'{"max_tokens": 9, "api_key": "k"}'
    assert redact(body, [b"k"]) == b'{"max_tokens": 9, "api_key": "*"}'


def test_a_key_that_lies_across_two_reads_becomes_stars() -> None:
    reads = (RecordedChunk(0.1, b"wrong key sk-s"), RecordedChunk(0.2, b"ecret, sorry"))
    assert redact_reads(reads, [b"sk-secret"]) == (
        RecordedChunk(0.1, b"wrong key ****"),
        RecordedChunk(0.2, b"*****, sorry"),
    )
