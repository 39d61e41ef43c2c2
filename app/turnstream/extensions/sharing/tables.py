"""The tables of links to chats and of members of chats."""

from collections.abc import Mapping
from typing import Final

from turnstream.storage.ownership import Ownership, owned

TABLES: Final[Mapping[str, Ownership]] = {
    # A link that shows a chat to people without a credential: up to the turn `turn_id`, or, if it is `live`, the newest
    # branch. `digest` is of its secret. `results` and `files`: calls of tools with their results, and files, are shown.
    "shares": owned("chat_id", "state"),
    # The people whom the owner of a chat lets read it, write in it, or decide about its calls (`role`; each role has
    # the rights of those before it). `member` is the name of an owner. `plan` is that of the credential that added the
    # member.
    "chat_members": owned("chat_id", "state"),
}
