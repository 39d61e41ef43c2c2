"""A client of turnstream servers. It does not import the server, and is installed separately as `turnstream_client`."""

from turnstream_client.assembler import Assembler
from turnstream_client.blocking import Client
from turnstream_client.errors import (
    ClientClosed,
    ClientError,
    ConnectionLost,
    NotTurnstream,
    RequestRejected,
    ServerUnreachable,
    StreamError,
)
from turnstream_client.events import (
    BlockEnded,
    BlocksTakenBack,
    BlockStarted,
    CallsWaiting,
    ConnectionEvent,
    RoundEnded,
    RoundStarted,
    ServerEvent,
    TextAdded,
    TurnDone,
    TurnStarted,
)
from turnstream_client.http import AsyncClient, StreamFollower

__all__ = [
    "Assembler",
    "AsyncClient",
    "BlockEnded",
    "BlockStarted",
    "BlocksTakenBack",
    "CallsWaiting",
    "Client",
    "ClientClosed",
    "ClientError",
    "ConnectionEvent",
    "ConnectionLost",
    "NotTurnstream",
    "RequestRejected",
    "RoundEnded",
    "RoundStarted",
    "ServerEvent",
    "ServerUnreachable",
    "StreamError",
    "StreamFollower",
    "TextAdded",
    "TurnDone",
    "TurnStarted",
]
