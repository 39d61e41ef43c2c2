"""Media types: a table of the files that messages and results may contain. The first bytes of a file decide its type;
the server does not trust a declared type.

To add a type, add its row here. tests/unit/domain/test_media.py then fails for the chat page, each dialect and each
provider that has no form for the type.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from turnstream.domain.kinds import DOCUMENT, IMAGE


@dataclass(frozen=True, slots=True)
class MediaType:
    """One row of the table. `block` is the type of block that shows a file of this type. `beginning` is a pattern that
    matches the file's first bytes. Without a pattern, the file is UTF-8 text: providers receive the text, and in a
    tool's result the text replaces the file.
    """

    name: str
    block: str
    beginning: re.Pattern[bytes] | None = None

    @property
    def is_text(self) -> bool:
        return self.beginning is None


_ROWS = (
    MediaType("image/png", IMAGE, re.compile(rb"\x89PNG\r\n\x1a\n")),
    MediaType("image/jpeg", IMAGE, re.compile(rb"\xff\xd8\xff")),
    MediaType("image/gif", IMAGE, re.compile(rb"GIF8[79]a")),
    MediaType("image/webp", IMAGE, re.compile(rb"RIFF.{4}WEBP", re.DOTALL)),
    MediaType("application/pdf", DOCUMENT, re.compile(rb"%PDF-")),
    MediaType("text/plain", DOCUMENT),
)
MEDIA: Final[Mapping[str, MediaType]] = {row.name: row for row in _ROWS}
(PLAIN,) = (row.name for row in _ROWS if row.is_text)


def media_shown_as(block: str) -> frozenset[str]:
    """Returns the media types of the files that a block of the type `block` shows."""
    return frozenset(row.name for row in _ROWS if row.block == block)


def media_type_of(content: bytes) -> MediaType | None:
    """Returns the media type of a file; None if no row of the table matches."""
    for row in _ROWS:
        if row.beginning is not None and row.beginning.match(content):
            return row
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return MEDIA[PLAIN] if text and "\0" not in text else None
