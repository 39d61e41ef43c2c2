"""Replays recordings instead of the network: the same bytes in the same pieces, with the same end."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import httpx2
import msgspec

from turnstream.llm.interceptor import Send
from turnstream_lab.recording import Recording, redact

_NO_MORE = msgspec.json.encode(
    {"type": "error", "error": {"type": "end_of_recording", "message": "No further call of this turn was recorded."}}
)


class ReplayInterceptor:
    """Answers the n-th request with the n-th recording. `requests` are the bodies of the requests so far. `over` is set
    when the last response has reached the point where the original reader closed it, or when there are more requests
    than recordings.

    With `speed` 1, waits are as long as recorded; with 0, there are no waits.
    """

    def __init__(self, recordings: Sequence[Recording], *, speed: float = 0.0) -> None:
        self.requests: list[bytes] = []
        self.over = asyncio.Event()
        self._recordings = recordings
        self._speed = speed

    async def __call__(self, request: httpx2.Request, send: Send) -> httpx2.Response:  # noqa: ARG002, nothing is sent
        place = len(self.requests)
        self.requests.append(redact(request.content))
        if place >= len(self._recordings):
            self.over.set()
            headers = {"content-type": "application/json"}
            return httpx2.Response(400, headers=headers, content=_NO_MORE, request=request)
        recording = self._recordings[place]
        await self._sleep(recording.head_at if recording.status else recording.ended_at)
        if recording.status is None:
            await self._end(recording)
        assert recording.status is not None
        return httpx2.Response(
            recording.status, headers=dict(recording.headers), content=self.body(recording), request=request
        )

    async def body(self, recording: Recording) -> AsyncIterator[bytes]:
        before = recording.head_at
        for read in recording.reads:
            await self._sleep(read.at - before)
            before = read.at
            yield read.data
        await self._sleep(recording.ended_at - before)
        if recording.ending != "whole":
            await self._end(recording)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds) * self._speed)

    async def _end(self, recording: Recording) -> None:
        """Ends the response as recorded: raises the failure, or stays silent until the reader closes the response."""
        if recording.failure is None:
            if len(self.requests) == len(self._recordings):
                self.over.set()
            await asyncio.Event().wait()
        assert recording.failure is not None
        kind = getattr(httpx2, recording.failure.type, httpx2.ReadError)
        raise kind(recording.failure.message)
