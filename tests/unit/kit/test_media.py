"""What a file is, by its first bytes."""

import pytest

from turnstream.kit.media import IMAGES, media_type_of


@pytest.mark.parametrize(
    ("content", "media_type"),
    [
        (b"\x89PNG\r\n\x1a\n...", "image/png"),
        (b"\xff\xd8\xff\xe0...", "image/jpeg"),
        (b"GIF87a...", "image/gif"),
        (b"GIF89a...", "image/gif"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "image/webp"),
        (b"%PDF-1.7", "application/pdf"),
        ("Zwölf Boxkämpfer".encode(), "text/plain"),
        (b"RIFF\x00\x00\x00\x00WAVE", None),
        (b"text with a \x00", None),
        (b"\xff\xfe", None),
        (b"", None),
    ],
)
def test_bytes_say_what_they_are(content: bytes, media_type: str | None) -> None:
    assert media_type_of(content) == media_type
    assert (media_type in IMAGES) == (media_type or "").startswith("image/")
