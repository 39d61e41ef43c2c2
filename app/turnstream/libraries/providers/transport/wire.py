"""Parses streamed model answers: bytes into server-sent events, and events into parts. Pure. Each API has a subclass of
`Wire`.
"""

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from turnstream.libraries.json_weight import weight_of
from turnstream.libraries.providers.raw_members import repaired_json
from turnstream.llm.provider import Part

# From this size in bytes on, the weight of an event counts instead of its size.
_WEIGHED = 65_536
_BOM = b"\xef\xbb\xbf"


class EventSplitter:
    """Splits bytes into the data of server-sent events, wherever the chunks divide them. Lines end in LF, CRLF or CR.

    `unfinished` is the size in bytes of the event that is not complete yet. Chunks after the first 64 KiB count by
    their weight (`weight_of`).
    """

    def __init__(self) -> None:
        self.unfinished = 0
        self._pieces: list[bytes] = []
        self._skip_newline = False
        self._first: bytes | None = b""  # the bytes so far, while they may be a byte order mark

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the data of every event that `chunk` completes. Events without data are omitted."""
        if self._first is not None:
            chunk = self._first + chunk
            if _BOM.startswith(chunk):
                self._first = chunk
                return []
            self._first, chunk = None, chunk.removeprefix(_BOM)
        if self._skip_newline or b"\r" in chunk:
            # A CRLF may be split between two chunks: then the LF at the start of the next chunk does not end another
            # line.
            if self._skip_newline and chunk.startswith(b"\n"):
                chunk = chunk[1:]
            self._skip_newline = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if self._pieces and self._pieces[-1].endswith(b"\n"):  # the two line ends after an event may be in two chunks
            self._pieces[-1], chunk = self._pieces[-1][:-1], b"\n" + chunk
            self.unfinished -= 1
        # Only the new bytes are searched, because an event of megabytes consists of hundreds of chunks.
        first, *others = chunk.split(b"\n\n") if b"\n" in chunk else [chunk]
        self._pieces.append(first)
        self.unfinished += len(first) if self.unfinished < _WEIGHED else weight_of(first)
        if not others:
            return []
        found = [_data(*self._pieces)]
        *frames, rest = others
        found += map(_data, frames)
        self._pieces, self.unfinished = [rest] if rest else [], len(rest)
        return [data for data in found if data]

    def end(self) -> bytes:
        """Returns the data of the last event if its final blank line is missing. The data may be incomplete."""
        pieces, self._pieces = self._pieces, []
        return _data(*pieces) if pieces else b""


def _data(frame: bytes, *more: bytes) -> bytes:
    """Returns the data of a frame, which consists of one or more pieces."""
    if more:
        # A line of megabytes is copied once: `strip` copies nothing if there is nothing to strip.
        head, mark, line = frame.partition(b"data:")
        if mark and (not head or head.endswith(b"\n")) and not any(b"\n" in piece for piece in (line, *more)):
            return b"".join((line.lstrip(), *more)).strip()
        frame = b"".join((frame, *more))
    if not frame.startswith(b"data:"):
        # The usual frame has an event name and one line of data, so no split into lines is needed.
        _, mark, after = frame.partition(b"\ndata:")
        if mark and b"\n" not in after:
            return after.strip()
    lines = [line[5:] for line in frame.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines).strip()


class BadStream(ValueError):
    """The provider sent data that is not JSON."""

    def __init__(self, problem: Exception, data: bytes) -> None:
        super().__init__(f"{problem}: {data[:200]!r}")


class Wire(ABC):
    """Parses one answer, which consists of events whose data is JSON. The events are read one by one until the answer
    is `over`.

    `ended` means success; `failure` is the error. Once `finished`, the answer is complete even if no event follows.
    """

    def __init__(self, request_id: str | None = None) -> None:
        self.request_id = request_id
        self.ended = False
        self.failure: Any = None
        self._splitter = EventSplitter()

    @property
    def unfinished(self) -> int:
        """The size of the incomplete event, as the splitter counts it."""
        return self._splitter.unfinished

    @property
    def finished(self) -> bool:
        return False

    @property
    def over(self) -> bool:
        return self.ended or self.failure is not None

    def feed(self, chunk: bytes) -> list[Part]:
        parts: list[Part] = []
        for data in self._splitter.feed(chunk):
            if self.over:
                break
            self._read(data, parts)
        return parts

    def feed_whole(self, body: bytes) -> list[Part]:
        """Reads an answer that the server sent as one JSON object, although a stream was requested."""
        parts: list[Part] = []
        if body := body.removeprefix(_BOM).strip():
            self._read(body, parts)
        return parts

    def end(self) -> list[Part]:
        """Reads the rest at the end of the stream. An incomplete event is ignored."""
        parts: list[Part] = []
        if not self.over and (data := self._splitter.end()):
            self._read(data, parts)
            if isinstance(self.failure, BadStream):
                self.failure = None
        return parts

    def _read(self, data: bytes, parts: list[Part]) -> None:
        try:
            self._read_event(data, parts)
        except msgspec.ValidationError:
            self._read_invalid(data, parts)
        except (ValueError, RecursionError) as problem:
            self._read_broken(data, parts, problem)

    def _read_invalid(self, data: bytes, parts: list[Part]) -> None:
        if data.startswith(b"[DONE]"):
            self._read_done(parts)
            return
        try:
            value = msgspec.json.decode(data)
        except (ValueError, RecursionError) as problem:
            # msgspec detected the wrong shape before it reached the invalid bytes.
            self._read_broken(data, parts, problem)
        else:
            self._read_unexpected(value, data, parts)

    def _read_broken(self, data: bytes, parts: list[Part], problem: Exception) -> None:
        repaired = (repaired_json(data.decode("utf-8", "replace")) or "").encode()
        if repaired in {b"", data}:
            self.failure = BadStream(problem, data)
        else:
            self._read(repaired, parts)

    @abstractmethod
    def _read_event(self, data: bytes, parts: list[Part]) -> None:
        """Reads one event. Raises msgspec.ValidationError for JSON that does not have the shape of a known event."""

    @abstractmethod
    def _read_unexpected(self, value: Any, data: bytes, parts: list[Part]) -> None:
        """Reads JSON of an unknown shape. `value` is the decoded JSON; `data` contains the received bytes."""

    def _read_done(self, parts: list[Part]) -> None:  # noqa: B027, most APIs have other events for the end
        """Reads `[DONE]`, the last data that some servers send."""
