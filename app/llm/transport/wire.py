"""What the streams of all model APIs have in common, on the way from bytes to parts. Pure."""

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from app.llm.provider import Part
from app.llm.transport.raw import mended
from app.llm.transport.sse import Frames


class BadStream(ValueError):
    """The provider sent something that is not JSON."""

    def __init__(self, problem: Exception, data: bytes) -> None:
        super().__init__(f"{problem}: {data[:200]!r}")


class Wire(ABC):
    """Reads one answer: server-sent events whose data is JSON, taken in one by one until it is `over`. `ended` and
    `failure` are its good and bad end; once `finished`, nothing need follow.
    """

    def __init__(self, request_id: str | None = None) -> None:
        self.request_id = request_id
        self.ended = False
        self.failure: Any = None
        self._frames = Frames()

    @property
    def finished(self) -> bool:
        return False

    @property
    def over(self) -> bool:
        return self.ended or self.failure is not None

    def feed(self, chunk: bytes) -> list[Part]:
        parts: list[Part] = []
        for data in self._frames.feed(chunk):
            if self.over:
                break
            self._take(data, parts)
        return parts

    def whole(self, body: bytes) -> list[Part]:
        """An answer that was not streamed, though it was asked for."""
        parts: list[Part] = []
        if body.strip():
            self._take(body.strip(), parts)
        return parts

    def end(self) -> list[Part]:
        """The stream is over. An event that was cut in the middle is no event."""
        parts: list[Part] = []
        if not self.over and (data := self._frames.end()):
            self._take(data, parts)
            if isinstance(self.failure, BadStream):
                self.failure = None
        return parts

    def _take(self, data: bytes, parts: list[Part]) -> None:
        try:
            self._hear(data, parts)
        except msgspec.ValidationError:
            self._take_strange(data, parts)
        except (ValueError, RecursionError) as problem:
            self._take_mended(data, parts, problem)

    def _take_strange(self, data: bytes, parts: list[Part]) -> None:
        if data.startswith(b"[DONE]"):
            self._hear_done(parts)
            return
        try:
            said = msgspec.json.decode(data)
        except (ValueError, RecursionError) as problem:
            self._take_mended(data, parts, problem)
        else:
            self._hear_strange(said, data, parts)

    def _take_mended(self, data: bytes, parts: list[Part], problem: Exception) -> None:
        better = (mended(data.decode("utf-8", "replace")) or "").encode()
        if better in {b"", data}:
            self.failure = BadStream(problem, data)
        else:
            self._take(better, parts)

    @abstractmethod
    def _hear(self, data: bytes, parts: list[Part]) -> None:
        """One event. Raises what msgspec does: ValidationError for JSON of another shape than any event has."""

    @abstractmethod
    def _hear_strange(self, said: Any, data: bytes, parts: list[Part]) -> None:
        """JSON of such a shape, decoded and as it came."""

    def _hear_done(self, parts: list[Part]) -> None:  # noqa: B027, in most APIs it says nothing
        """`[DONE]`: the last word of some servers."""
