"""Finds rows whose contents are encrypted by the keys of owners, and stores keys that were wrapped again."""

from typing import Final

from turnstream.storage.contents import BYTES_MARK, TEXT_MARK
from turnstream.storage.database import LONG, Statement

# Replicas register the forms that they can decrypt. The second form was introduced when more columns were encrypted.
# Keys of owners are rotated when all live replicas register the last form: such replicas can also decrypt contents that
# were encrypted by the previous key.
FORMS: Final = ("encryption", "encryption of chats", "encryption by new keys")

REWRAP = Statement(
    """
    UPDATE owner_keys SET master = :master, wrapped = :wrapped WHERE owner = :owner AND wrapped = :before
    RETURNING owner
    """
)
HAS_SEALED_ROWS = Statement(
    f"""
    SELECT EXISTS (SELECT FROM uploads WHERE owner = :owner
            AND substr(content, 1, {len(BYTES_MARK)}) = '\\x{BYTES_MARK.hex()}'::bytea)
        OR EXISTS (SELECT FROM documents WHERE owner = :owner AND starts_with(content, '{TEXT_MARK}'))
        OR EXISTS (SELECT FROM chats WHERE owner = :owner
            AND (starts_with(title, '{TEXT_MARK}') OR starts_with(system_prompt, '{TEXT_MARK}')))
        OR EXISTS (SELECT FROM chats JOIN turns ON chat_id = chats.id JOIN blocks ON turn_id = turns.id
            WHERE owner = :owner AND starts_with(text, '{TEXT_MARK}')) AS found
    """,
    timeout=LONG,
)
