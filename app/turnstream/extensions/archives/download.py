"""Lets owners download an archive of their own data."""

from collections.abc import AsyncIterator
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from turnstream.api.http.call_group import CallGroup
from turnstream.api.http.endpoint import Endpoint
from turnstream.api.services import identity_of, services_of
from turnstream.domain.errors import Forbidden
from turnstream.extensions.archives.tar import END, tar_member
from turnstream.storage.database import Database
from turnstream.storage.owners.audit import AuditTrail

if TYPE_CHECKING:
    from turnstream.extensions.archives.archives import OwnerExport

TAR = "application/x-tar"
_HEADERS = {"Content-Disposition": 'attachment; filename="turnstream.tar"', "Cache-Control": "no-store"}
# Most bytes of one chat, or of all documents, that are held in memory; larger contents are held in a file.
_IN_MEMORY = 8_000_000
_PIECE = 256_000  # bytes


class Downloads:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._trail = AuditTrail(database)

    async def begin(self, owner: str, actor: str) -> AsyncIterator[bytes]:
        """Records the download in the audit trail, and returns the bytes of the archive, without recordings."""
        from turnstream.extensions.archives.archives import OwnerExport  # the import loads SQLAlchemy and the tables

        await self._trail.note("owner.exported", owner, {}, actor=actor)  # noted before the first byte is sent
        return _tar(OwnerExport(self._database, owner))


async def _tar(source: "OwnerExport") -> AsyncIterator[bytes]:
    """Yields the bytes of an archive. A chat is read completely before its first byte is sent: otherwise a slow client
    would hold the transaction open.
    """
    yield tar_member(*source.head)
    with SpooledTemporaryFile(_IN_MEMORY) as held:
        async for part in source.parts():
            held.write(tar_member(*part))
            if part.in_transaction:
                continue
            held.seek(0)
            while piece := held.read(_PIECE):
                yield piece
            held.seek(0)
            held.truncate()
    yield END


async def download_archive(request: Request) -> Response:
    downloads, identity = services_of(request).states.get("archives"), identity_of(request)
    if not isinstance(downloads, Downloads):
        raise Forbidden(
            "Downloads are off on this server; its operator turns them on with TURNSTREAM_ARCHIVE_DOWNLOADS."
        )
    if not identity.is_whole:
        raise Forbidden("An archive needs a credential with all rights of a person: `read`, `chat`, `approve`.")
    if request.method == "HEAD":
        return Response(media_type=TAR, headers=_HEADERS)
    return StreamingResponse(await downloads.begin(identity.owner, identity.actor), 200, _HEADERS, TAR)


CALLS = CallGroup(
    (
        Endpoint(
            "GET /api/account/export",
            download_archive,
            "An archive of what the owner has",
            gives=TAR,
            problems=(403,),
            limits=("writes",),
        ),
    ),
    "Archives",
    "What an owner has as a file that another server imports",
)
