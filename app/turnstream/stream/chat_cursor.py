"""The cursor of a chat: the turns that a client has, and the client's cursors in the open turns."""

from dataclasses import dataclass, field

from turnstream.domain.cursor import Cursor


@dataclass(slots=True)
class ChatCursor:
    """The content that a client has: all turns up to `place` (`chat_changes` in turnstream.storage.chats), the fields
    of the chat whose digest is `digest`, and each turn in `open` up to its cursor. The client lacks a turn whose cursor
    is None, and has every other turn to the end. The extension `chat_stream` parses the text of a cursor.
    """

    place: int = 0
    digest: str = ""
    open: dict[int, Cursor | None] = field(default_factory=dict)

    def __str__(self) -> str:
        """Encodes each open turn as its distance from `place`, which is 0 for the newest turn."""
        followed = ",".join(f"{self.place - place:x}:{cursor or ''}" for place, cursor in self.open.items())
        return f"{self.place:x}.{self.digest}.{followed}"
