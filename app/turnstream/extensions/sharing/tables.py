"""The tables of links to chats and of members of chats."""

from collections.abc import Mapping
from typing import Final

from turnstream.storage.ownership import Ownership, owned

TABLES: Final[Mapping[str, Ownership]] = {
    # A link that shows a chat to people without a credential: up to the turn `turn_id`, or, if `live`, the newest
    # branch. `digest` is of its secret. `results` and `files`: whether calls with their results, and files, are shown.
    "shares": owned("chat_id", "state"),
    # The people who may read a chat, write in it, or decide about its calls (`role`; each role includes the rights of
    # those before it), by permission of its owner. `member` is the name of an owner. `plan` is the plan of the
    # credential that added the member.
    "chat_members": owned("chat_id", "state"),
}
