import io
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from turnstream_client.events import Json
from turnstream_terminal.chat_list import plain_chats, print_chats, short_ids

CHATS: list[Json] = [
    {"id": "01a2005f-4a6e-7307-afc2-3c133026f358", "updated_at": "2026-11-21T23:09:34Z", "title": "The tides"},
    {"id": "01a2005f-4a6e-7999-afc2-3c133026f358", "updated_at": "2026-11-20T10:00:00Z", "title": None},
]


@given(st.lists(st.uuids().map(str), unique=True))
def test_a_short_id_is_the_beginning_of_one_id_only(ids: list[str]) -> None:
    for identity, short in short_ids(ids).items():
        assert [other for other in ids if other.startswith(short)] == [identity]


def test_short_ids_of_the_same_moment_are_longer() -> None:
    assert list(short_ids([chat["id"] for chat in CHATS]).values()) == ["01a2005f-4a6e-73", "01a2005f-4a6e-79"]


def test_a_list_has_a_number_an_id_a_time_and_a_title() -> None:
    out = io.StringIO()
    print_chats(Console(file=out, width=60), CHATS, datetime(2026, 11, 21, 23, 30, tzinfo=UTC))
    assert out.getvalue().splitlines() == [
        "  1  01a2005f-4a6e-73       23:09  The tides",
        "  2  01a2005f-4a6e-79  2026-11-20  (no title)",
    ]


def test_a_list_shows_how_many_calls_of_a_chat_run_in_the_background() -> None:
    out = io.StringIO()
    now = datetime(2026, 11, 21, 23, 30, tzinfo=UTC)
    print_chats(Console(file=out, width=60), [CHATS[0] | {"jobs": 3}, CHATS[1] | {"jobs": 0}], now)
    first, second = out.getvalue().splitlines()
    assert first.endswith("23:09  (3 running) The tides")
    assert "running" not in second


def test_plain_chats_are_separated_by_tabs() -> None:
    assert plain_chats(CHATS[:1]) == "01a2005f-4a6e-7307-afc2-3c133026f358\t2026-11-21T23:09:34Z\tThe tides\n"
