"""What the streams of all model APIs have in common, on the way from bytes to parts. Pure."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from app.llm.provider import Part
from app.llm.raw import mended
from app.llm.sse import Frames

LONGEST_MESSAGE = 1_000  # characters, of what a provider says of its failure


class Wire(Protocol):
    """What reads one answer. `ended` and `failure` are its good and bad end; once `finished`, nothing need follow."""

    @property
    def ended(self) -> bool: ...

    @property
    def failure(self) -> object: ...

    @property
    def finished(self) -> bool: ...

    def feed(self, chunk: bytes) -> Sequence[Part]: ...

    def whole(self, body: bytes) -> Sequence[Part]:
        """An answer that was not streamed, though it was asked for."""
        ...

    def end(self) -> Sequence[Part]:
        """The stream is over. An event that was cut in the middle is no event."""
        ...


class BadStream(ValueError):
    """The provider sent something that is not JSON."""

    def __init__(self, problem: Exception, data: bytes) -> None:
        super().__init__(f"{problem}: {data[:200]!r}")


class Events(ABC):
    """One answer as server-sent events whose data is JSON, taken in one by one until it is `over`."""

    def __init__(self) -> None:
        self.ended = False
        self.failure: object = None
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
        parts: list[Part] = []
        if body.strip():
            self._take(body.strip(), parts)
        return parts

    def end(self) -> list[Part]:
        parts: list[Part] = []
        if not self.over and (data := self._frames.end()):
            self._take(data, parts)
            if isinstance(self.failure, BadStream):
                self.failure = None
        return parts

    @abstractmethod
    def _take(self, data: bytes, parts: list[Part]) -> None:
        """One event."""

    def _take_mended(self, data: bytes, parts: list[Part], problem: Exception) -> None:
        better = (mended(data.decode("utf-8", "replace")) or "").encode()
        if better in {b"", data}:
            self.failure = BadStream(problem, data)
        else:
            self._take(better, parts)
