"""Other processes on the port of this one, of which each is a replica. An extension starts and reaches them."""

from contextlib import AbstractContextManager
from socket import socket
from typing import Final, Protocol
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

# In the scope of a request that a neighbour has passed on. No client can set it.
MARK: Final = "turnstream.neighbour"


def is_from_neighbour(request: Request) -> bool:
    """Whether a neighbour has passed the request on, so that it goes no further."""
    return MARK in request.scope


class Neighbours(Protocol):
    """The other processes, as one of them reaches them. A silent process is left out."""

    async def is_any_ready(self) -> bool:
        """Whether another process takes new turns."""
        ...

    async def metrics(self, own: bytes) -> bytes:
        """The metrics of all processes, those of this one given, each with the number of its process as a label."""
        ...

    async def pass_on(self, request: Request, replica: UUID | None) -> Response | None:
        """The answer of the process that is this replica to a request without a body, piece by piece as it comes."""
        ...

    def listening(self, app: ASGIApp) -> AbstractContextManager[tuple[ASGIApp, socket]]:
        """The app with the mark of requests of neighbours, and the socket by which they come."""
        ...
