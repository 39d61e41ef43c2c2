"""The cursor of a chat: the turns that a client has, and its cursors in open ones."""

from dataclasses import dataclass, field

from turnstream.domain.cursor import Cursor


@dataclass(slots=True)
class ChatCursor:
    """The client's state: all turns up to `place` (`chat_changes` in turnstream.storage.chats), the fields of the chat
    with `digest`, and each turn in `open` up to its cursor. With None the client lacks the turn. The client has the end
    of all other turns. The extension `chat_stream` reads the text of a cursor.
    """

    place: int = 0
    digest: str = ""
    open: dict[int, Cursor | None] = field(default_factory=dict)

    def __str__(self) -> str:
        """Turns are encoded as their distance from `place`: the newest is 0."""
        followed = ",".join(f"{self.place - place:x}:{cursor or ''}" for place, cursor in self.open.items())
        return f"{self.place:x}.{self.digest}.{followed}"
