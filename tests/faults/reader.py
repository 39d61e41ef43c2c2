"""A client that follows one turn through all faults of its servers and checks every event."""

import asyncio
import json

from tests.support.http_client import Event, Parser
from turnstream.domain.cursor import START, Cursor
from turnstream_client.assembler import ENDS, Assembler


class Reader:
    def __init__(self, path: str, cursor: Cursor = START) -> None:
        self.state = Assembler()
        self.cursor = cursor
        self.resets = 0
        self.connections = 0
        self._path = path

    async def read(self, port: int) -> bool:
        """Reads one connection to its end. Returns True if the turn has ended."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        self.connections += 1
        try:
            writer.write(self._request())
            return await self._take(reader)
        except (OSError, asyncio.IncompleteReadError):
            return False
        finally:
            writer.transport.abort()

    def _request(self) -> bytes:
        cursor = "" if self.cursor == START else f"Last-Event-ID: {self.cursor}\r\n"
        return f"GET {self._path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{cursor}\r\n".encode()

    async def _take(self, reader: asyncio.StreamReader) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split()[1])
        if status == 204:
            assert self.state.end, "204 is for those who have everything"
            return True
        if status == 503:
            return False
        assert status == 200, (head + await reader.read(2000)).decode()
        parser = Parser()
        while size := int(await reader.readuntil(b"\r\n"), 16):
            for event in parser.feed((await reader.readexactly(size + 2))[:-2]):
                self._apply(event)
        return self.state.end is not None

    def _apply(self, event: Event) -> None:
        if event.id is None:
            assert event.name not in ENDS
        else:
            cursor = Cursor.parse(event.id)
            assert cursor > self.cursor, f"{event.name} {event.id} came after {self.cursor}"
            self.cursor = cursor
        self.resets += event.name == "reset"
        self.state.apply(event.name, event.data)


def told(value: object) -> object:
    """Returns the value after a round trip through JSON."""
    return json.loads(json.dumps(value))
