"""Media types of files, detected by their first bytes; a declared type is not trusted."""

IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
PDF = "application/pdf"
PLAIN = "text/plain"
_BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", PDF),
)


def media_type_of(content: bytes) -> str | None:
    """The media type of a file that models accept: an image, a PDF, or UTF-8 text. None for any other."""
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        return "image/webp"
    for beginning, media_type in _BEGINNINGS:
        if content.startswith(beginning):
            return media_type
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return PLAIN if text and "\0" not in text else None
