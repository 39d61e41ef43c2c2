"""The cursor of a chat: which of its turns a client knows, and how much of those that had not ended."""

import re
from dataclasses import dataclass, field
from hashlib import sha256

from app.domain.chats import Chat
from app.domain.cursor import Cursor
from app.storage.chat_changes import LAST_PLACE
from app.storage.rows import to_json

_FORM = re.compile(r"([0-9a-f]{1,16})\.([0-9a-f]{12})?\.((?:[0-9a-f]{1,16}:[0-9-]*)(?:,[0-9a-f]{1,16}:[0-9-]*)*)?")

# So many turns of a chat are followed at once; those that were made later are told of when there is room.
MOST_OPEN = 100
# The page of a chat may show more of them; a longer cursor is too long for the headers that servers and proxies take.
_MOST_NAMED = 300


@dataclass(slots=True)
class ChatCursor:
    """The client knows all turns up to `place` (app.storage.chat_changes), the chat as `digest` says, and of each turn
    in `open` what its cursor says; None: not even that it is there. Of all others it knows the end.
    """

    place: int = 0
    digest: str = ""
    open: dict[int, Cursor | None] = field(default_factory=dict)

    def __str__(self) -> str:
        """Turns are named by how far they lie behind `place`: the newest is 0."""
        followed = ",".join(f"{self.place - place:x}:{cursor or ''}" for place, cursor in self.open.items())
        return f"{self.place:x}.{self.digest}.{followed}"

    @classmethod
    def parse(cls, text: str) -> "ChatCursor":
        """Raises ValueError for anything that was never handed out."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise ValueError("the cursor of a chat is the id of an event of its stream")
        place = int(found[1], 16)
        items = [item.split(":") for item in (found[3] or "").split(",") if item]
        opened = {place - int(behind, 16): Cursor.parse(cursor) if cursor else None for behind, cursor in items}
        if place > LAST_PLACE or len(items) > _MOST_NAMED or any(each < 0 for each in opened):
            raise ValueError("no event of this chat's stream had this id")
        return cls(place, found[2] or "", opened)


def digest_of(chat: Chat) -> str:
    """Of what a client is told of the chat itself."""
    return sha256(to_json([chat.title, chat.system_prompt, chat.settings]).encode()).hexdigest()[:12]
