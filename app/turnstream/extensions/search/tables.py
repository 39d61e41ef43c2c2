"""The tables of the index. `sql/` has its functions."""

from collections.abc import Mapping
from typing import Final

from turnstream.storage.ownership import Ownership, owned

TABLES: Final[Mapping[str, Ownership]] = {
    # The index of the extension `search` (its `search_*.sql`). Segments contain chats of a single owner: a search does
    # not grow with other owners.
    "search_owners": owned("owner", "state"),
    # Ids increase, so that the newest chats are searched first; negative ids are of chats older than the index.
    # `vocabulary` has the words of all texts added until `covered_until`; a sweep collects it.
    "search_segments": owned("owner"),
    # `form` defines how the texts of the chat are indexed: the language, and whether tool results are included.
    "search_chats": owned("owner"),
    # The words of an ended turn, or of its tool results.
    "search_texts": owned("owner"),
    # Texts and titles that are not indexed yet; a title has no turn. A row is inserted in the transaction of its text,
    # by triggers (`mark_searchable_turn`), and deleted in the transaction that indexes the text. It has no foreign
    # keys: deleted texts need no index. If Postgres has `refused` to index a text, its row stays, with the reason
    # (`search_index_next`).
    "search_pending": owned("owner"),
    # The words of a document, in the language of its owner; null if a sweep must index it
    # (`search_catch_up_documents`).
    "search_documents": owned("owner"),
    # Chats for the sweep to index: those older than the index, and those with a changed language.
    "search_backlog": owned("chat_id"),
}
