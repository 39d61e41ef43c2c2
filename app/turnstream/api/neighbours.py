"""Other processes on the port of this process, each a replica. An extension starts and calls these processes."""

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
    """Whether a neighbour has forwarded the request. Such a request is not forwarded again."""
    return MARK in request.scope


class Neighbours(Protocol):
    """The other processes, from the view of one process. Silent processes are omitted."""

    async def is_any_ready(self) -> bool:
        """Whether another process accepts new turns."""
        ...

    async def metrics(self, own: bytes) -> bytes:
        """The metrics of all processes, those of this process given, with the number of the process as a label."""
        ...

    async def pass_on(self, request: Request, replica: UUID | None) -> Response | None:
        """The answer of the process that is this replica to a request without a body, piece by piece as it comes."""
        ...

    def listening(self, app: ASGIApp) -> AbstractContextManager[tuple[ASGIApp, socket]]:
        """The app that marks requests of neighbours, and the socket for these requests."""
        ...
