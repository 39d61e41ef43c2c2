"""The recording on the documentation page equals the terminal's output. `RECORD=1` writes the recording."""

import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.acceptance.front_desk import BOTH
from tests.acceptance.terminal_clients import terminals
from tests.acceptance.test_terminal_approvals import CHOICES, CLEAR_LINE, REASON
from tests.support.diagrams import FOLDER, ROOT, terminal
from tests.support.server_process import Server

pytestmark = pytest.mark.timeout(180)

FILE = FOLDER / "terminal.svg"


class FrontDesk(Server):
    command = (sys.executable, "-m", "tests.acceptance.front_desk")


@pytest.fixture
async def desk(database_url: str, tmp_path: Path) -> AsyncIterator[FrontDesk]:
    server = FrontDesk(database_url, tmp_path, {"PYTHONPATH": str(ROOT)})
    await server.start()
    yield server
    await server.close()


def _fixed(line: str) -> str:
    """Replaces times and the port, because they differ between runs. A short call or thought has no time."""
    line = re.sub(r"at \d\d:\d\d:\d\d, in \d+ min", "at 14:32:10, in 15 min", line)
    line = re.sub(r"thought for [\d.]+ \w+", "thought", line)
    time = "" if line.startswith("✓") else " · 0.2 s"
    return re.sub(r" · [\d.]+ m?s$", time, re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:8000", line))


async def test_the_recording_is_what_the_terminal_shows(desk: FrontDesk, tmp_path: Path) -> None:
    with terminals(tmp_path) as start:
        person = start(desk)
        await person.sees_prompt()
        person.type(f"{BOTH}\r")
        await person.sees_prompt(CHOICES)
        person.type("edit\r")
        await person.sees_prompt('{ "room": "12", "nights": 2 }')
        person.type(CLEAR_LINE + '{"room": "21", "nights": 3}\r')
        await person.sees("? send_invoice asks to run")
        await person.sees_prompt(CHOICES)
        person.type("deny\r")
        await person.sees_prompt(REASON)
        person.type("I pay at the desk\r")
        await person.sees("Room 21 is booked for 3 nights")
        await person.sees_prompt()
        lines = [_fixed(line) for line in person.screen.lines]
    drawn = terminal(lines)
    if os.environ.get("RECORD"):
        FILE.write_text(drawn, encoding="utf-8")
    assert drawn == FILE.read_text(encoding="utf-8"), "write it again with RECORD=1"
