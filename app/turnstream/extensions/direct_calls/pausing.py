"""Reads a body for a reader that is often busy, for example because it waits for the tick of the frame clock."""

import asyncio

import aiohttp

_MOMENT = 0.005  # seconds; a reader that returns sooner receives each piece when the piece arrives


class PausingReader:
    """Reads a response. If the caller takes longer than a moment between two reads, the socket is paused meanwhile. The
    kernel then joins the arriving data, and one run of the parser handles all of it. Without the pause, each piece
    needs its own run.
    """

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._time = asyncio.get_running_loop().time
        self._read_at = self._time()
        self._paused: asyncio.Transport | None = None

    async def read(self) -> bytes:
        """Returns the bytes that have arrived, or b"" at the end of the response. Raises the exceptions of aiohttp."""
        busy = self._time() - self._read_at > _MOMENT
        if self._paused is not None:
            if self._paused.is_closing():
                raise aiohttp.ClientConnectionError("The connection has been closed here.")
            self._paused.resume_reading()
            self._paused = None
        data = await self._response.content.readany()
        if busy:
            self._pause()
        self._read_at = self._time()
        return data

    def _pause(self) -> None:
        """Pauses the socket, unless the response is complete: its connection may already belong to another response. A
        connection with a read timeout is not paused, because the timeout would count the pause as silence from the
        server.
        """
        connection = self._response.connection
        protocol = None if connection is None else connection.protocol
        if protocol is not None and protocol.transport is not None and protocol.read_timeout is None:
            self._paused = protocol.transport
            self._paused.pause_reading()
