"""A thread writes the output, so a write never blocks its caller and never raises an error."""

import fcntl
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import pytest

from turnstream.kit.background_output import EXIT_PATIENCE, MOST_WAITING, BackgroundOutput

LINE = b"x" * 1023 + b"\n"


class Drops:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            try:
                os.close(end)
            except OSError:  # the test has already closed this end
                continue


def read_to_end(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        return file.read()


def test_lines_are_written_in_their_order(tmp_path: Path) -> None:
    drops = Drops()
    with (tmp_path / "log").open("wb") as file:
        output = BackgroundOutput(file.fileno(), drops)
    text = io.TextIOWrapper(cast("IO[bytes]", output), "utf-8", "backslashreplace", line_buffering=True)
    for number in range(100):
        print("line", number, file=text)
    print("half of a character: \ud800", file=text)
    assert output.drain(10)
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines == [*(f"line {number}" for number in range(100)), "half of a character: \\ud800"]
    assert drops.count == 0


def test_lines_for_a_full_device_are_dropped_and_counted() -> None:
    drops = Drops()
    with Path("/dev/full").open("wb", buffering=0) as file:
        output = BackgroundOutput(file.fileno(), drops)
    for _ in range(5):
        assert output.write(LINE) == len(LINE)
    assert output.drain(10)
    assert drops.count == 5


def test_lines_for_a_pipe_without_a_reader_at_its_end_are_dropped_and_counted() -> None:
    drops = Drops()
    with pipe() as (reader, writer):
        output = BackgroundOutput(writer, drops)
        os.close(reader)
        output.write(LINE)
        assert output.drain(10)
    assert drops.count == 1


@pytest.mark.parametrize("blocking", [True, False])
def test_a_pipe_that_nobody_reads_holds_nobody_and_gets_the_lines_when_it_is_read(blocking: bool) -> None:
    drops = Drops()
    with pipe() as (reader, writer):
        if not blocking:
            fcntl.fcntl(writer, fcntl.F_SETFL, fcntl.fcntl(writer, fcntl.F_GETFL) | os.O_NONBLOCK)
        output = BackgroundOutput(writer, drops)
        most = MOST_WAITING // len(LINE)
        for _ in range(2 * most):
            output.write(LINE)
        assert drops.count >= most - 64, "what the pipe holds, and no more than the bound besides"
        assert not output.drain(0)
        kept = (2 * most - drops.count) * len(LINE)
        received = bytearray()
        while len(received) < kept:
            received += os.read(reader, 65536)
        assert output.drain(10)
        assert bytes(received) == LINE * (kept // len(LINE))


def test_a_line_that_was_cut_off_ends_before_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drops, write, room = Drops(), os.write, [3, 0]

    def write_to_full_disk(descriptor: int, data: bytes) -> int:
        if not room:
            return write(descriptor, data)
        if not (size := room.pop(0)):
            raise OSError(28, "No space left on device")
        return write(descriptor, bytes(data)[:size])

    with (tmp_path / "log").open("wb") as file:
        output = BackgroundOutput(file.fileno(), drops)
    monkeypatch.setattr("turnstream.kit.background_output.os.write", write_to_full_disk)
    output.write(b"first\n")
    output.write(b"second\n")
    assert output.drain(10)
    assert (tmp_path / "log").read_bytes() == b"fir\nsecond\n"
    assert drops.count == 1


def test_a_closed_descriptor_sends_no_line_into_the_next_file(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        output = BackgroundOutput(file.fileno(), Drops())
    with (tmp_path / "other").open("wb"):
        output.write(b"line\n")
        assert output.drain(10)
    assert (tmp_path / "log").read_bytes() == b"line\n"
    assert (tmp_path / "other").read_bytes() == b""


FORK = """
import os
from turnstream.kit.background_output import BackgroundOutput
output = BackgroundOutput(2, lambda: None)
if (child := os.fork()) == 0:
    output.write(b"of the child")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_child_writes_by_itself() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORK], stderr=subprocess.PIPE, check=True)
    assert done.stderr == b"of the child"


EXIT = f"""
import sys
from turnstream.kit.background_output import BackgroundOutput
output = BackgroundOutput(2, lambda: None)
for _ in range(200):
    output.write({LINE!r})
"""


def test_a_pipe_that_nobody_reads_does_not_hold_the_exit() -> None:
    with pipe() as (reader, writer):
        process = subprocess.Popen([sys.executable, "-c", EXIT], stderr=writer)
        assert process.wait(60 * EXIT_PATIENCE) == 0
        os.close(writer)
        assert read_to_end(reader), "what the pipe had room for"


def test_the_last_lines_are_written_before_the_exit() -> None:
    done = subprocess.run([sys.executable, "-c", EXIT], stderr=subprocess.PIPE, check=True)
    assert done.stderr == LINE * 200
