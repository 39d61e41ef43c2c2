"""Watches open streams. Checks their credentials every few seconds, and stops streams with an invalid credential."""

import asyncio

import structlog

from turnstream.api.http.errors import Unavailable
from turnstream.api.services import admit
from turnstream.api.streams.response import OpenStream, OwnerStreams
from turnstream.domain.errors import Forbidden, OfAnotherCell, StorageError, Unauthorized
from turnstream.kit.clock import CLOCK

log = structlog.get_logger(__name__)

# Seconds between two checks of a stream. Tokens are cached too, so a stream ends within ten seconds of a revocation.
PAUSE = 5.0
# Streams that are checked together, with one query for their tokens. Between two checks, the event loop is free.
_PORTION = 100
# Limit in seconds for a check, which may call the authentication function of an embedding program.
_TIMEOUT = 5.0


class StreamWatch:
    def __init__(self, streams: OwnerStreams) -> None:
        self._streams = streams

    async def run(self) -> None:
        """Checks all open streams again and again, and never returns."""
        while True:
            await asyncio.sleep(PAUSE)
            streams = self._streams.all()
            for start in range(0, len(streams), _PORTION):
                await asyncio.gather(*map(_check, streams[start : start + _PORTION]))


async def _check(stream: OpenStream) -> None:
    """Stops a stream that its credential no longer allows. If the check itself is impossible, the stream continues
    until the credential expires.
    """
    owner, request = stream.identity.owner, stream.request
    try:
        async with asyncio.timeout(_TIMEOUT):
            await admit(request, request.state.endpoint)
        if request.state.identity.owner != owner:
            if stream.identity.member:
                raise Forbidden("Your membership of this chat has ended.")
            stream.end(Unauthorized("The credential of the request now belongs to another owner."))
    except OfAnotherCell:
        stream.end(None)  # a proxy leads the reader to the other cell
    except (Unauthorized, Forbidden) as error:
        stream.end(error)
    except Exception as error:
        if not isinstance(error, StorageError | Unavailable):
            log.warning("stream.unchecked", exc_info=error)
        if stream.identity.has_expired(CLOCK.now()):
            stream.end(Unauthorized("The credential of the request has expired; send a new credential."))
