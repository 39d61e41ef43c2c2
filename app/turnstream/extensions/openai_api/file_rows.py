"""The list of files of an owner."""

from collections.abc import Sequence
from uuid import UUID

from turnstream.storage.contents import UPLOADS
from turnstream.storage.database import Database, Statement
from turnstream.storage.owners.uploads import UPLOAD_COLUMNS, Upload, upload_from

# The plan limits an owner's uploads, so there are few rows. The order of ids is the order of creation.
LIST_UPLOADS = Statement(
    f"""
    SELECT {UPLOAD_COLUMNS}, false AS created FROM uploads
    WHERE owner = :owner AND (CAST(:purpose AS text) IS NULL OR coalesce(purpose, :usual) = :purpose)
      AND (CAST(:after AS uuid) IS NULL OR CASE WHEN :descending THEN id < :after ELSE id > :after END)
    ORDER BY CASE WHEN :descending THEN id END DESC, id LIMIT :most
    """,
    opens=[UPLOADS],
)


async def page_of_uploads(
    database: Database, owner: str, after: UUID | None, most: int, purpose: str | None, usual: str, *, descending: bool
) -> Sequence[Upload]:
    """Returns up to `most` uploads of the owner that follow `after`, and that have the purpose `purpose` if it is
    given. An upload without a purpose has the purpose `usual`.
    """
    asked = {"after": after, "most": most, "purpose": purpose, "usual": usual, "descending": descending}
    return [upload_from(row) for row in await database.rows(LIST_UPLOADS, owner=owner, **asked)]
