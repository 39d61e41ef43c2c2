"""A client of turnstream servers. It imports nothing of the server, and is installed alone as `turnstream_client`."""

from .assembler import Assembler
from .blocking import Client
from .errors import (
    ClientClosed,
    ClientError,
    ConnectionLost,
    NotTurnstream,
    RequestRejected,
    ServerUnreachable,
    StreamError,
)
from .events import (
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
from .http import AsyncClient, StreamFollower

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
