"""The cursor of a chat: the turns that a client has, and its cursors in open ones."""

import re
from dataclasses import dataclass, field
from hashlib import sha256

from turnstream.domain.chats import Chat
from turnstream.domain.cursor import Cursor
from turnstream.storage.chats.chat_changes import LAST_PLACE
from turnstream.storage.rows import to_json

_FORM = re.compile(r"([0-9a-f]{1,16})\.([0-9a-f]{12})?\.((?:[0-9a-f]{1,16}:[0-9-]*)(?:,[0-9a-f]{1,16}:[0-9-]*)*)?")

# The most turns of a chat that are streamed at once. Newer ones follow when there is room.
MOST_OPEN = 100
# The most turns in a cursor: more than are streamed, because the page of a chat may show more. A cursor of this size
# still fits into the headers that servers and proxies accept.
_MOST_NAMED = 300

UNKNOWN_CURSOR = (
    "no event of this chat's stream has had this id; leave the cursor out to read the stream from its beginning"
)


@dataclass(slots=True)
class ChatCursor:
    """The client's state: all turns up to `place` (`chat_changes` in turnstream.storage.chats), the fields of the chat
    with `digest`, and each turn in `open` up to its cursor. With None the client lacks the turn. The client has the end
    of all other turns.
    """

    place: int = 0
    digest: str = ""
    open: dict[int, Cursor | None] = field(default_factory=dict)

    def __str__(self) -> str:
        """Turns are encoded as their distance from `place`: the newest is 0."""
        followed = ",".join(f"{self.place - place:x}:{cursor or ''}" for place, cursor in self.open.items())
        return f"{self.place:x}.{self.digest}.{followed}"

    @classmethod
    def parse(cls, text: str) -> "ChatCursor":
        """Raises ValueError for a text that is no cursor of a stream."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise ValueError("the cursor of a chat must be the `id` of an event of that chat's stream")
        place = int(found[1], 16)
        items = [item.split(":") for item in (found[3] or "").split(",") if item]
        opened = {place - int(behind, 16): Cursor.parse(cursor) if cursor else None for behind, cursor in items}
        if place > LAST_PLACE or len(items) > _MOST_NAMED or any(each < 0 for each in opened):
            raise ValueError(UNKNOWN_CURSOR)
        return cls(place, found[2] or "", opened)


def digest_of(chat: Chat) -> str:
    """A digest of the chat's own fields in events."""
    return sha256(to_json([chat.title, chat.system_prompt, chat.settings]).encode()).hexdigest()[:12]
