"""One turn's events, over as many connections as it takes."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

import msgspec

from app.terminal.assembler import ENDS, Json
from app.terminal.client import Backoff, Client, Lost

# Events of our own, told between the server's: the connection is there, and it is gone.
CONNECTED: Final = "connected"
DISCONNECTED: Final = "disconnected"


@dataclass(frozen=True, slots=True)
class ServerEvent:
    name: str
    data: Json


class TurnFollower:
    """`cursor` is the id of the last event that was handed on. Who stops listening may begin again where that was."""

    def __init__(self, client: Client, chat: str, turn: str, cursor: str | None = None) -> None:
        self.cursor = cursor
        self._client = client
        self._chat = chat
        self._turn = turn

    async def events(self) -> AsyncGenerator[ServerEvent, None]:
        """Until the turn has ended, however long its server is away. Raises Refused."""
        backoff = Backoff()
        while True:
            lost = Lost("the server closed the stream")
            try:
                async with self._client.stream(self._chat, self._turn, self.cursor) as stream:
                    if stream is None:
                        return
                    yield ServerEvent(CONNECTED, {})
                    async for event in stream:
                        if event.retry is not None:
                            backoff.first = event.retry / 1000
                        self.cursor = event.id or self.cursor
                        if event.data:
                            backoff.reset()
                            yield ServerEvent(event.event, msgspec.json.decode(event.data))
                            if event.event in ENDS:
                                return
            except Lost as error:
                lost = error
            pause = backoff.next(lost.after)
            yield ServerEvent(DISCONNECTED, {"reason": str(lost), "seconds": pause})
            await asyncio.sleep(pause)
