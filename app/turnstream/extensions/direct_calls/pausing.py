"""Reads of a body by a busy reader, such as one that waits for the tick of the frame clock."""

import asyncio

import aiohttp

_MOMENT = 0.005  # seconds; a reader that returns sooner receives each piece at its arrival


class PausingReader:
    """Reader of a response. If its user takes longer than a moment between two reads, the socket is paused meanwhile:
    the kernel joins the arriving data, and one parser run handles it. Otherwise each piece costs a parser run.
    """

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._time = asyncio.get_running_loop().time
        self._read_at = self._time()
        self._paused: asyncio.Transport | None = None

    async def read(self) -> bytes:
        """Returns the arrived bytes; b"" at the end. Raises the exceptions of aiohttp."""
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
        """Pauses the socket, unless the response is complete: the connection may then belong to another response
        already. A connection with a read timeout is not paused, because the timeout would treat the pause as a silence
        of the server.
        """
        connection = self._response.connection
        protocol = None if connection is None else connection.protocol
        if protocol is not None and protocol.transport is not None and protocol.read_timeout is None:
            self._paused = protocol.transport
            self._paused.pause_reading()
