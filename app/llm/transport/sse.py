"""Server-sent events, as far as a model API needs them: bytes in, the data of whole events out."""


class Frames:
    """Splits bytes into events, however the network cut them. Lines may end in LF, CRLF or CR."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._skip_newline = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of every event that `chunk` completes. Events without data, such as comments, are left out."""
        if self._skip_newline or b"\r" in chunk:
            chunk = self._with_plain_newlines(chunk)
        self._pieces.append(chunk)
        if b"\n" not in chunk:
            return []
        *frames, rest = (b"".join(self._pieces) if len(self._pieces) > 1 else chunk).split(b"\n\n")
        self._pieces = [rest] if rest else []
        return [data for frame in frames if (data := _data(frame))]

    def end(self) -> bytes:
        """The data of an event that the stream ended in, before its blank line; perhaps only a part of it."""
        rest = b"".join(self._pieces)
        self._pieces = []
        return _data(rest)

    def _with_plain_newlines(self, chunk: bytes) -> bytes:
        if self._skip_newline and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._skip_newline = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _data(frame: bytes) -> bytes:
    if not frame.startswith(b"data:"):
        _, mark, after = frame.partition(b"\ndata:")
        if mark and b"\n" not in after:
            return after.strip()
    lines = [line[5:] for line in frame.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines).strip()
