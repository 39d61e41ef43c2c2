"""`turnstream serve` on a server that does not have the extension."""

from pathlib import Path

import pytest

from tests.support.server_process import turnstream

ADD = "add workers to TURNSTREAM_EXTENSIONS."


@pytest.mark.parametrize(
    ("arguments", "settings", "problem"),
    [
        (
            ("--workers", "2"),
            {},
            f"`serve --workers` needs the extension workers: {ADD}",
        ),
        (
            (),
            {"TURNSTREAM_WORKERS": "2"},
            "TURNSTREAM_WORKERS is a setting of the extension workers, which this server leaves out: " + ADD,
        ),
    ],
)
def test_several_processes_are_refused_by_name(
    tmp_path: Path, arguments: tuple[str, ...], settings: dict[str, str], problem: str
) -> None:
    done = turnstream(tmp_path, "serve", *arguments, TURNSTREAM_EXTENSIONS="none", **settings)
    assert (done.returncode, done.stderr) == (1, f"turnstream: {problem}\n")
