"""The tables of the index. `sql/` has its functions."""

from collections.abc import Mapping
from typing import Final

from turnstream.storage.ownership import Ownership, owned

TABLES: Final[Mapping[str, Ownership]] = {
    # The index of the extension `search` (its `search_*.sql`). Chats of an owner are in segments: what is searched does
    # not grow with the other owners.
    "search_owners": owned("owner", "state"),
    # Ids count up, so that the newest chats are searched first; below zero they are of chats from before the index.
    # `vocabulary` has the words of all texts that were added until `covered_until`; it is collected by a sweep.
    "search_segments": owned("owner"),
    # `form` says how the texts of the chat are to be indexed: the language, and whether results of tools are.
    "search_chats": owned("owner"),
    # The words of a turn that has ended, or of what its tools returned.
    "search_texts": owned("owner"),
    # Texts and titles that are not indexed yet; of a title without a turn. A row is written in the transaction of its
    # text, by triggers (`mark_searchable_turn`), and deleted in that which indexes the text. It refers to nothing: what
    # is gone needs no index. A text that Postgres has `refused` to index stays, with the reason (`search_index_next`).
    "search_pending": owned("owner"),
    # The words of a document, in the language of its owner; null if a sweep has to index it
    # (`search_catch_up_documents`).
    "search_documents": owned("owner"),
    # Chats whose texts are to be indexed by a sweep: those from before the index, and those whose language has changed.
    "search_backlog": owned("chat_id"),
}
