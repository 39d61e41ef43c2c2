import re
from itertools import pairwise

from turnstream.domain import errors
from turnstream.domain.errors import (
    AccountRefused,
    Conflict,
    NoSuchPage,
    OfAnotherCell,
    ProviderError,
    RequestRefused,
    TooMany,
    TransientError,
    TurnstreamError,
)


def test_the_tree_that_is_drawn_is_the_tree_there_is() -> None:
    drawn = re.findall(r"^([│ ├└─]*)(\w+)(?: {2,}|$)", errors.__doc__ or "", re.MULTILINE)
    depths = [(len(branch) // 4, name) for branch, name in drawn]
    parents: dict[str, str] = {}
    above: list[str] = []
    for depth, name in depths:
        above = [*above[:depth], name]
        parents |= {child: parent for parent, child in pairwise(above)}
    assert parents == {
        kind.__name__: kind.__base__.__name__
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, TurnstreamError) and kind.__base__ not in {Exception, None}
    }


def test_a_refusal_names_the_error_and_its_field() -> None:
    refused = Conflict("it runs", field="turn")
    assert (str(refused), refused.detail, refused.field, refused.status) == ("it runs", "it runs", "turn", 409)
    assert RequestRefused("no").field is None


def test_a_reached_limit_says_when_to_come_again() -> None:
    refused = TooMany("no room", retry_after=5, limit="streams")
    assert (refused.detail, refused.retry_after, refused.limit, refused.status) == ("no room", 5, "streams", 429)


def test_another_cell_is_named() -> None:
    refused = OfAnotherCell("08", "07")
    assert (refused.cell, refused.status) == ("08", 421)
    assert refused.detail == "The owner belongs to the cell 08; this server belongs to the cell 07."


def test_a_provider_error_keeps_the_providers_words() -> None:
    error = TransientError("overloaded_error", "Overloaded", request_id="req_1", retry_after=2.5)
    assert str(error) == "overloaded_error: Overloaded"
    assert (error.type, error.message, error.request_id, error.retry_after) == (
        "overloaded_error",
        "Overloaded",
        "req_1",
        2.5,
    )
    assert ProviderError("x", "y").request_id is None


def test_an_error_about_the_account_is_not_shown_and_other_failures_are() -> None:
    assert "operator" in AccountRefused("invalid_api_key", "Wrong key.").shown
    assert TransientError("overloaded", "Busy.").shown == "Busy."


def test_a_wrong_page_is_named_by_its_field() -> None:
    assert (NoSuchPage().field, NoSuchPage().code) == ("before", "unreadable")


def test_a_limit_that_is_reached_is_named() -> None:
    assert TooMany("Two chats at most.", 60, "chats").members == {"limit": "chats"}
