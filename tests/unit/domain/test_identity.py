"""Identities of callers, and the rights of their credentials."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from turnstream.domain.errors import Forbidden
from turnstream.domain.identity import (
    Identity,
    Scope,
    arriving_name,
    departed_name,
    known_scopes,
    owner_before_move,
)
from turnstream.libraries.logins import owner_name

NOW = datetime(2026, 11, 23, tzinfo=UTC)


def test_a_person_has_all_rights_on_their_own_data_and_no_others() -> None:
    identity = Identity("ada")
    for scope in ("read", "chat", "approve"):
        identity.require(scope)
    with pytest.raises(Forbidden, match="needs the scope `admin`; the credential of the request has `read`, `chat`"):
        identity.require("admin")


@pytest.mark.parametrize(
    ("identity", "whole"),
    [
        (Identity("ada"), True),
        (Identity("ada", frozenset[Scope]({"read", "chat", "approve", "admin"})), True),
        (Identity("ada", frozenset[Scope]({"read", "chat"})), False),
        (Identity("ada", frozenset[Scope]({"read", "send", "approve"})), False),
        (Identity("ada", chat=UUID(int=1)), False),
        (Identity("ada", turn=UUID(int=1)), False),
        (Identity("ada", fixed={"model": "m"}), False),
    ],
)
def test_a_credential_is_whole_if_nothing_narrows_the_rights_of_a_person(identity: Identity, whole: bool) -> None:
    assert identity.is_whole is whole


def test_one_of_several_scopes_is_enough() -> None:
    approver = Identity("ada", frozenset[Scope]({"approve"}))
    approver.require("chat", "approve")
    with pytest.raises(Forbidden, match="`read` or `chat`") as refused:
        approver.require("read", "chat")
    assert refused.value.scopes == ("read", "chat")
    with pytest.raises(Forbidden, match="has none"):
        Identity("ada", frozenset()).require("read")


def test_a_credential_expires_at_its_end() -> None:
    assert not Identity("ada").has_expired(NOW)
    assert not Identity("ada", expires_at=NOW + timedelta(seconds=1)).has_expired(NOW)
    assert Identity("ada", expires_at=NOW).has_expired(NOW)


@pytest.mark.parametrize("owner", ["", "x" * 256, "a\nb", "a\x00", "\u202eada"])
def test_an_owner_is_a_name_on_one_line(owner: str) -> None:
    with pytest.raises(ValueError, match="1 to 255 printable characters"):
        Identity(owner)


@pytest.mark.parametrize("name", [arriving_name("ada"), departed_name("ada", "08"), "x (moved to a cell)"])
def test_the_names_that_a_move_gives_are_no_owners(name: str) -> None:
    with pytest.raises(ValueError, match="moves between cells give such names"):
        Identity(name)
    for owner in (f"{name} b", name.replace(" (", "("), "moved to 08"):
        assert Identity(owner).owner == owner


def test_a_time_without_a_zone_and_an_unknown_scope_are_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        Identity("ada", expires_at=datetime(2026, 11, 23))  # noqa: DTZ001
    with pytest.raises(ValueError, match="'write' is no scope; scopes are read, send, chat, approve, admin"):
        Identity("ada", frozenset({"write"}))  # type: ignore[arg-type]


def test_a_bound_credential_reaches_its_chat_or_its_turn_alone() -> None:
    chat, turn = UUID(int=1), UUID(int=2)
    of_nothing = Identity("ada")
    of_nothing.require_reach(None)
    of_chat = Identity("ada", chat=chat)
    of_chat.require_reach(chat)
    of_chat.require_reach(chat, turn)
    for other in (None, turn):
        with pytest.raises(Forbidden, match="reaches only the chat 00000000-0000-0000-0000-000000000001"):
            of_chat.require_reach(other)
    of_turn = Identity("ada", chat=chat, turn=turn)
    of_turn.require_reach(chat, turn)
    with pytest.raises(Forbidden, match="reaches only the turn 00000000-0000-0000-0000-000000000002"):
        of_turn.require_reach(chat)
    assert [each.is_bound for each in (of_nothing, of_chat, of_turn)] == [False, True, True]


def test_scopes_of_a_later_version_are_left_out() -> None:
    assert known_scopes(["read", "fly"]) == {"read"}


def test_options_that_a_token_cannot_fix_are_refused() -> None:
    with pytest.raises(ValueError, match="not blocks"):
        Identity("ada", fixed={"blocks": []})


def test_a_restricted_credential_reaches_the_documents_of_its_folder() -> None:
    assert Identity("ada", folder="notes").documents == ""
    bound = Identity("ada", chat=UUID(int=1))
    assert (bound.documents, replace(bound, folder="notes").documents) == (None, "notes/")


def test_a_name_that_was_given_is_normalised_and_has_no_invisible_characters() -> None:
    assert owner_name(" Zo\u0065\u0308 ") == "Zoë"
    for name in ("a\u200bda", "a\nda"):
        with pytest.raises(ValueError, match="invisible"):
            owner_name(name)


def test_the_rows_that_a_move_keeps_are_those_of_the_owner_before() -> None:
    names = ("ada", arriving_name("ada"), departed_name("ada", "north"))
    assert {owner_before_move(name) for name in names} == {"ada"}
