"""Parses server-sent events from bytes. No I/O."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamFrame:
    """The fields of a complete event; a missing field is empty. `retry` is in milliseconds."""

    id: str = ""
    event: str = ""
    data: str = ""
    retry: int | None = None


class FrameParser:
    """Accepts bytes in pieces of any size. An event without its final empty line is ignored."""

    def __init__(self) -> None:
        self._rest = b""
        self._lines: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[StreamFrame]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            if line in {b"", b"\r"}:
                if self._lines:
                    yield _frame(self._lines)
                    self._lines = []
            elif not line.startswith(b":"):
                self._lines.append(line.removesuffix(b"\r"))


def _frame(lines: list[bytes]) -> StreamFrame:
    fields = dict(line.decode().partition(":")[::2] for line in lines)
    values = {name: value.removeprefix(" ") for name, value in fields.items()}
    retry = values.get("retry", "")
    return StreamFrame(
        values.get("id", ""), values.get("event", ""), values.get("data", ""), int(retry) if retry.isdecimal() else None
    )
