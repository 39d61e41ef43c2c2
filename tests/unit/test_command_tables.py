import sys

import pytest

from turnstream.libraries.command_tables import print_table

LINES = [["name", "owner", "plan"], ["phone", "ada@example.org", ""], ["a longer name", "li", "plan pro"]]


def test_columns_are_aligned_in_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_table(LINES)
    assert capsys.readouterr().out.splitlines() == [
        "name           owner            plan",
        "phone          ada@example.org",
        "a longer name  li               plan pro",
    ]


def test_programs_get_tabs_between_cells_and_none_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(LINES)
    assert [line.split("\t") for line in capsys.readouterr().out.splitlines()] == [LINES[0], LINES[1][:2], LINES[2]]


def test_an_empty_list_prints_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_table([])
    assert capsys.readouterr().out == ""
