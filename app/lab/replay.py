"""Recordings in the network's place: the same bytes, cut in the same places, come to the same ends.

An adapter that is tapped so makes of them what it made of the network's; no server is asked.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

import httpx2
import msgspec

from app.lab.recording import Recording, redact
from app.llm.transport.http import retry_after
from app.llm.transport.interceptor import Send

_NO_MORE = msgspec.json.encode(
    {"type": "error", "error": {"type": "end_of_recording", "message": "No further call of this turn was recorded."}}
)
_WAITS = ("retry-after", "retry-after-ms")


class ReplayInterceptor:
    """Answers the n-th request with the n-th recording. `asked` are the requests; `over` is set once the last answer
    has come to where its reader hung up, or more is asked for than was recorded.

    `speed` 1 takes the time that it took then; 0 takes none. Waits that a provider asked for are left out, unless they
    are longer than `patience` seconds, which ends a turn.
    """

    def __init__(self, recordings: Sequence[Recording], *, speed: float = 0.0, patience: float = 60.0) -> None:
        self.asked: list[bytes] = []
        self.over = asyncio.Event()
        self._recordings = recordings
        self._speed = speed
        self._patience = patience

    async def __call__(self, request: httpx2.Request, send: Send) -> httpx2.Response:  # noqa: ARG002, nobody is asked
        place = len(self.asked)
        self.asked.append(redact(request.content))
        if place >= len(self._recordings):
            self.over.set()
            headers = {"content-type": "application/json"}
            return httpx2.Response(400, headers=headers, content=_NO_MORE, request=request)
        recording = self._recordings[place]
        await self._pass(recording.head_at if recording.status else recording.ended_at)
        if recording.status is None:
            await self._end(recording)
        assert recording.status is not None
        headers = dict(recording.headers)
        if (retry_after(httpx2.Headers(headers)) or 0.0) <= self._patience:
            headers = {name: value for name, value in headers.items() if name not in _WAITS}
        return httpx2.Response(recording.status, headers=headers, content=self.body(recording), request=request)

    async def body(self, recording: Recording) -> AsyncIterator[bytes]:
        before = recording.head_at
        for read in recording.reads:
            await self._pass(read.at - before)
            before = read.at
            yield read.data
        await self._pass(recording.ended_at - before)
        if recording.ending != "whole":
            await self._end(recording)

    async def _pass(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds) * self._speed)

    async def _end(self, recording: Recording) -> None:
        """As it ended then: by a failure, or in a silence that lasts until the reader hangs up."""
        if recording.failure is None:
            if len(self.asked) == len(self._recordings):
                self.over.set()
            await asyncio.Event().wait()
        assert recording.failure is not None
        kind = getattr(httpx2, recording.failure.type, httpx2.ReadError)
        raise kind(recording.failure.message)
