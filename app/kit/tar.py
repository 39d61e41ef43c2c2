"""Files of the tar format, written one after the other, also behind those of a file that was left unfinished."""

import tarfile
from collections.abc import Iterator
from contextlib import suppress
from typing import IO

END = bytes(2 * tarfile.BLOCKSIZE)


def tar_member(name: str, content: bytes) -> bytes:
    """The bytes of one file in an archive. `END` stands behind the last one."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o600
    head = info.tobuf(tarfile.PAX_FORMAT, "utf-8")
    return head + content + bytes(-len(content) % tarfile.BLOCKSIZE)


def tar_members(file: IO[bytes], most: int) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file in an archive, which may be a pipe. Raises tarfile.TarError if it is cut off, and
    ValueError for a file of more than `most` bytes, and for a sparse one: few bytes of the archive are many of it.
    """
    with tarfile.open(fileobj=file, mode="r|") as archive:
        for info in archive:
            if info.issparse() or info.size > most:
                raise ValueError(f"{info.name} is sparse, or has more than {most:,} bytes")
            if info.isfile() and (content := archive.extractfile(info)) is not None:
                yield info.name, content.read()


def tar_places(file: IO[bytes]) -> Iterator[tuple[str, int]]:
    """Name and offset of each file that is whole, up to the first one that is not."""
    size = file.seek(0, 2)
    file.seek(0)
    with suppress(tarfile.TarError), tarfile.open(fileobj=file, mode="r:") as archive:
        while (info := archive.next()) is not None and info.offset_data + info.size <= size:
            yield info.name, info.offset
