"""The search for small servers, which matches word beginnings without an index."""

from typing import TYPE_CHECKING

from turnstream.extension import Extension

if TYPE_CHECKING:
    from turnstream.api.reads import Search
    from turnstream.storage.database import Database


def _search(database: "Database") -> "Search":
    from turnstream.extensions.simple_search.search import SimpleSearch

    return SimpleSearch(database)


EXTENSION = Extension(
    "simple_search", "search of titles, messages of people and documents, without an index", search=_search
)
