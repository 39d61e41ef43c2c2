"""The full search: it also searches answers, matches stems and parts of words, and ranks the results. Its index is
updated about a second after a text is committed.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnstream.extension import Context, Extension, Work

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup
    from turnstream.api.reads import Search
    from turnstream.storage.database import Database


def _calls() -> "Sequence[CallGroup]":
    from turnstream.extensions.search.calls import CALLS

    return (CALLS,)


def _search(database: "Database") -> "Search":
    from turnstream.extensions.search.index import SearchIndex

    return SearchIndex(database)


def _work(context: Context) -> Work:
    from turnstream.engine.upkeep.sweeps import HOURS, Sweep
    from turnstream.extensions.search.index import SearchIndex
    from turnstream.extensions.search.indexer import SearchIndexer

    index = SearchIndex(context.database)
    return Work(tasks=[SearchIndexer(index).run], sweeps=[Sweep("search", HOURS / 30, index.catch_up)])


EXTENSION = Extension(
    "search",
    "search of answers and parts of words, by stems and ranks",
    calls=_calls,
    work=_work,
    search=_search,
)
