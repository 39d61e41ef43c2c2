"""Decodes the cursor of a chat from the text in a request."""

import re
from hashlib import sha256

from turnstream.domain.chats import Chat
from turnstream.domain.cursor import Cursor
from turnstream.storage.chats.chat_changes import LAST_PLACE
from turnstream.storage.rows import to_json
from turnstream.stream.chat_cursor import ChatCursor

_FORM = re.compile(r"([0-9a-f]{1,16})\.([0-9a-f]{12})?\.((?:[0-9a-f]{1,16}:[0-9-]*)(?:,[0-9a-f]{1,16}:[0-9-]*)*)?")

# The most turns of a chat that are streamed at the same time. Newer turns follow when some of these turns have ended.
MOST_OPEN = 100
# The most turns that a cursor names. This is more than the number of streamed turns, because the page of a chat may
# show more. A cursor of this size still fits into the headers that servers and proxies accept.
_MOST_NAMED = 300

UNKNOWN_CURSOR = (
    "no event of this chat's stream has had this id; leave the cursor out to read the stream from its beginning"
)


def parse_cursor(text: str) -> ChatCursor:
    """Decodes a cursor. Raises ValueError for a text that is no cursor of a chat's stream."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError("the cursor of a chat must be the `id` of an event of that chat's stream")
    place = int(found[1], 16)
    items = [item.split(":") for item in (found[3] or "").split(",") if item]
    opened = {place - int(behind, 16): Cursor.parse(cursor) if cursor else None for behind, cursor in items}
    if place > LAST_PLACE or len(items) > _MOST_NAMED or any(each < 0 for each in opened):
        raise ValueError(UNKNOWN_CURSOR)
    return ChatCursor(place, found[2] or "", opened)


def digest_of(chat: Chat) -> str:
    """Returns a digest of those fields of the chat that its events show."""
    return sha256(to_json([chat.title, chat.system_prompt, chat.settings]).encode()).hexdigest()[:12]
