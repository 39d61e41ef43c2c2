"""The number of pages that a search or the indexer reads does not grow with the size of the database."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.integration.test_plans import OWNER, SIZE, check_reads, large_database_url
from tests.support.plans import EXECUTIONS, Execution
from turnstream.extensions.search import documents, index
from turnstream.storage.database import Statement

__all__ = ("large_database_url",)


def searched(owner: str, *words: str) -> Mapping[str, Any]:
    """Returns the parameters of a search statement."""
    filters = dict.fromkeys(("since", "until", "only", "score", "before", "before_id"))
    return {"owner": owner, "words": words, "first": index.NEWEST, "tools": False, "limit": 51, **filters}


def searched_documents(*words: str) -> Mapping[str, Any]:
    return {"owner": OWNER, "words": words, "prefix": "", "limit": 50}


# For each case: the statement, its parameters, and the maximum of 8 kB pages that the statement may touch.
CASES: Mapping[str, tuple[Statement, Mapping[str, Any], int]] = {
    # One owner has 51 chats. One owner has 51 chats, of which one is long. One owner has 120 segments, of which a
    # search reads 100.
    "a search for nothing": (index.SEARCH_CHATS, searched(OWNER, "nothing"), 200),
    "a search for nothing where all words must be read": (index.SEARCH_CHATS, searched("owner-0", "nothing"), 2500),
    "a search for nothing in a hundred segments": (index.SEARCH_CHATS, searched("heavy", "nothing"), 6000),
    "a search for the most frequent word": (index.SEARCH_CHATS, searched(OWNER, "word1"), 1500),
    "a search for the beginning of all words": (index.SEARCH_CHATS, searched("owner-0", "w"), 3500),
    "a search for a frequent word and one that is nowhere": (
        index.SEARCH_CHATS,
        searched(OWNER, "word1", "nothing"),
        400,
    ),
    # The same three owners, with a search inside of words.
    "a search inside of words for nothing": (index.SEARCH_INSIDE, searched(OWNER, "nothing"), 100),
    "a search inside of words that must all be read": (index.SEARCH_INSIDE, searched("owner-0", "nothing"), 2500),
    "a search inside of words in a hundred segments": (index.SEARCH_INSIDE, searched("heavy", "nothing"), 6000),
    "a search for a part of all words": (index.SEARCH_INSIDE, searched(OWNER, "ord"), 800),
    "a search for a part of all words in a long chat": (index.SEARCH_INSIDE, searched("owner-0", "ord"), 5000),
    "a search for a part of all words and one of none": (index.SEARCH_INSIDE, searched(OWNER, "ord", "nothing"), 100),
    # An owner has 100 of the 9,000 documents.
    "a search of documents for nothing": (
        documents.SEARCH_OWNERS_DOCUMENTS,
        searched_documents("nothing"),
        1000,
    ),
    "a search of documents for a word of all": (
        documents.SEARCH_OWNERS_DOCUMENTS,
        searched_documents("word1"),
        1000,
    ),
    "excerpts of documents": (
        documents.GET_DOCUMENT_EXCERPTS,
        {
            "owner": OWNER,
            "paths": [f"notes/{7 + SIZE.owners * number}.md" for number in range(1, 51)],
            "words": ["word1"] * 50,
            "margin_before": 40,
            "margin_after": 140,
        },
        1000,
    ),
    "the sweep of documents": (index.CATCH_UP_DOCUMENTS, {"most": 10}, 50),
    "the oldest text that is not indexed": (index.GET_OLDEST_PENDING, {}, 10),
    "indexing a hundred texts": (index.INDEX_PENDING, {"most": 100}, 7000),
    "indexing fifty texts of an owner": (index.INDEX_PENDING_OF, {"owner": OWNER, "most": 50}, 5000),
}


FUNCTIONS = {
    *(index.SEARCH_CHATS, index.SEARCH_INSIDE, index.CATCH_UP_DOCUMENTS),
    documents.SEARCH_OWNERS_DOCUMENTS,
}


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("case", CASES)
async def test_a_statement_of_the_search_reads_only_its_own_rows(
    large_database_url: str,
    case: str,
    execution: Execution,
) -> None:
    await check_reads(large_database_url, *CASES[case], execution, warm=CASES[case][0] in FUNCTIONS)
