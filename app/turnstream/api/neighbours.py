"""Other processes that share the port of this process; each is a replica. An extension starts and calls them."""

from contextlib import AbstractContextManager
from socket import socket
from typing import Final, Protocol
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

# The key that marks the scope of a request that a neighbour has forwarded. No client can set this key.
MARK: Final = "turnstream.neighbour"


def is_from_neighbour(request: Request) -> bool:
    """Whether a neighbour has forwarded the request. Such a request is not forwarded again."""
    return MARK in request.scope


class Neighbours(Protocol):
    """The other processes, as one process sees them. Processes that do not answer are omitted."""

    async def is_any_ready(self) -> bool:
        """Whether another process accepts new turns."""
        ...

    async def metrics(self, own: bytes) -> bytes:
        """Returns the metrics of all processes, labelled with the process number; `own` are those of this process."""
        ...

    async def pass_on(self, request: Request, replica: UUID | None) -> Response | None:
        """Forwards a request without a body to `replica`, and streams its answer; None if it cannot be reached."""
        ...

    def listening(self, app: ASGIApp) -> AbstractContextManager[tuple[ASGIApp, socket]]:
        """Opens the socket for requests from neighbours. Yields an app that marks these requests, and the socket."""
        ...
