"""Encodes streams for the AI SDK's workflow transport, which resumes a stream by the number of received chunks."""

from collections.abc import Callable
from dataclasses import replace

from turnstream.api.codec import to_json
from turnstream.domain.cursor import Cursor
from turnstream.domain.events import BlockDelta, BlockStop, Event, Notice, Reset, TurnEnd
from turnstream.domain.turns import Turn
from turnstream.extensions.ai_sdk.chunks import UiEncoder

UNIT = 16  # characters of each text chunk, except the last chunk of a block


class CountedEncoder:
    """Encodes a turn so that its n-th chunk is the same on every connection. Text is split at fixed offsets, and
    notices are omitted. The first `skip` chunks are not sent.

    A later attempt may have voided chunks that the client has counted. Each attempt has its own marks: if the mark of
    such an attempt is among the skipped chunks, `is_lost` is set. The stream then ends with an error, and the client
    must read the answer from its beginning.

    `before` is the attempt before the first attempt of the stream, and `now` returns the turn.
    """

    def __init__(self, encoder: UiEncoder, skip: int, before: int, now: Callable[[], Turn]) -> None:
        self._encoder = encoder
        self._left = skip
        self._before = before
        self._now = now
        self._held = ""
        self.is_lost = False

    def __call__(self, event: Event | Notice, cursor: Cursor | None) -> bytes:
        if isinstance(event, Notice):
            return b""
        if isinstance(event, BlockDelta):
            self._held += event.text
            return self._text(event, len(self._held) // UNIT * UNIT)
        if isinstance(event, Reset):
            self._held = ""
            self.is_lost |= self._left > 0
            return self.passed(self._encoder(event, cursor))
        # The last chunk of a block may be shorter than the others, because the rest of the text is sent when the block
        # ends.
        if self._left:
            self.is_lost |= any(self._before < each < event.attempt for each in self._now().lineage)
        rest = b""
        if isinstance(event, BlockStop):
            rest = self._text(BlockDelta(event.block.index, 0, ""), len(self._held))
        # The transport repeats its request until it receives a `finish`, but a failed turn has no `finish`.
        failed = isinstance(event, TurnEnd) and event.error is not None
        end = b'data: {"type":"finish","finishReason":"error"}\n\n' if failed else b""
        return rest + self.passed(self._encoder(event, cursor) + end)

    def _text(self, delta: BlockDelta, length: int) -> bytes:
        """Encodes the first `length` of the characters that are held back."""
        pieces = [self._held[start : min(start + UNIT, length)] for start in range(0, length, UNIT)]
        self._held = self._held[length:]
        return b"".join(self.passed(self._encoder(replace(delta, text=piece), None)) for piece in pieces)

    def passed(self, frames: bytes) -> bytes:
        """Returns the frames that the client does not have yet."""
        if not self._left or not frames:
            return frames
        chunks = frames.split(b"\n\n")[:-1]
        kept, self._left = chunks[self._left :], max(self._left - len(chunks), 0)
        return b"".join(b"%b\n\n" % chunk for chunk in kept)

    def lost(self) -> bytes:
        reason = "A part of the answer was generated again. Resume it from its beginning."
        return b"data: %b\n\n" % to_json({"type": "error", "errorText": reason})
