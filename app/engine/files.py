"""The files that tools return become uploads of the turn's owner before anybody is told of them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.domain.kinds import DOCUMENT, IMAGE
from app.domain.results import layout_of, words_of
from app.kit.media import IMAGES, media_type_of
from app.storage.database import retry_while_unavailable
from app.storage.uploads import Uploads
from app.tools.tool import File, Outcome


class Files:
    """Those of one owner. While Postgres is away they wait for it."""

    def __init__(self, uploads: Uploads, owner: str) -> None:
        self._uploads = uploads
        self._owner = owner

    async def kept(self, outcome: Outcome) -> Outcome:
        """The outcome as its row will hold it: all its words in one text, and the layout. Providers take no blanks."""
        if not outcome.more:
            return outcome
        told = [part for part in outcome.parts if isinstance(part, File) or part.strip()]
        parts = [await self._keep(part) if isinstance(part, File) else part for part in told]
        return replace(outcome, text=words_of(parts), more=(), layout=layout_of(parts))

    async def _keep(self, file: File) -> Mapping[str, Any]:
        media_type = media_type_of(file.content)
        assert media_type is not None
        upload = await retry_while_unavailable(lambda: self._uploads.put(self._owner, media_type, file.content))
        return {"type": IMAGE if media_type in IMAGES else DOCUMENT, "source": upload.source}
