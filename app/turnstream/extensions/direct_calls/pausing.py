"""Reading of a body by a reader that may be busy, as those are that wait for the tick of the frame clock."""

import asyncio

import aiohttp

_MOMENT = 0.005  # seconds; who comes back within them reads each piece as it arrives


class PausingReader:
    """Reader of a response. Once its user takes longer than a moment from one read to the next, the socket is paused in
    between: what arrives then is joined by the kernel, and parsed at once. Otherwise each piece costs a parser's run.
    """

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._time = asyncio.get_running_loop().time
        self._read_at = self._time()
        self._paused: asyncio.Transport | None = None

    async def read(self) -> bytes:
        """Returns what has arrived; b"" at the end. Raises the exceptions of aiohttp."""
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
        """Pauses the socket, unless the response has come whole: then its connection is another one's already. With a
        limit of its own, the connection would take the pause for a silence of the server.
        """
        connection = self._response.connection
        protocol = None if connection is None else connection.protocol
        if protocol is not None and protocol.transport is not None and protocol.read_timeout is None:
            self._paused = protocol.transport
            self._paused.pause_reading()
