"""Writes and reads files in the tar format one at a time, and finds the place where an unfinished archive continues."""

import tarfile
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Self

# Most bytes of one file, which is read into memory. The files of an export have a few megabytes each.
MAX_FILE_BYTES = 100_000_000
# Most bytes of a long name, or of other attributes of a file: tarfile reads them into memory before it yields the file.
MAX_ATTRIBUTE_BYTES = 1_000_000
END = bytes(2 * tarfile.BLOCKSIZE)


class _Weighed(tarfile.TarInfo):
    """The head of a file. Checks the size of the file before its content is read."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        info = super().frombuf(buf, encoding, errors)
        _check_size(info, MAX_FILE_BYTES if info.isfile() else MAX_ATTRIBUTE_BYTES)
        return info


def _check_size(info: tarfile.TarInfo, most: int) -> None:
    """Raises ValueError if the file has more than `most` bytes."""
    if info.size > most:
        raise ValueError(f"the file {info.name} has {info.size:,} bytes, of {most:,} that it may have")


def tar_member(name: str, content: bytes) -> bytes:
    """Returns the bytes of one file in an archive. `END` must follow the last file."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o600
    head = info.tobuf(tarfile.PAX_FORMAT, "utf-8")
    return head + content + bytes(-len(content) % tarfile.BLOCKSIZE)


def tar_members(file: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yields the name and the content of each file in an archive, which may be a pipe. Raises tarfile.TarError for a
    truncated archive, and ValueError for an oversized file. A sparse file counts with its full size, because its few
    bytes expand to this size in memory.
    """
    with tarfile.open(fileobj=file, mode="r|", tarinfo=_Weighed) as archive:
        for info in archive:
            _check_size(info, MAX_FILE_BYTES)  # attributes or holes may have changed the size
            content = archive.extractfile(info)
            if content is not None:
                yield info.name, content.read()


def tar_places(file: IO[bytes]) -> Iterator[tuple[str, int]]:
    """Yields the name and the offset of each file, up to the first incomplete file."""
    size = file.seek(0, 2)
    file.seek(0)
    with suppress(tarfile.TarError), tarfile.open(fileobj=file, mode="r:") as archive:
        while (info := archive.next()) is not None and info.offset_data + info.size <= size:
            yield info.name, info.offset
