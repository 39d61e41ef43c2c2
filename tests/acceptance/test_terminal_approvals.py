"""`turnstream chat` against a server whose tools need an approval."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import httpx2
import pytest

from tests.acceptance.front_desk import BOTH, OUTLOOK
from tests.acceptance.terminal_clients import Json, OpenTerminal, RunScript, TurnProbe, scripts, terminals
from tests.support.server_process import Server

pytestmark = pytest.mark.timeout(180)

ROOT: Final = Path(__file__).parents[2]
CLIENT_TOOL: Final[Json] = {
    "type": "client",
    "name": "look_out",
    "description": "TurnProbe out of a window.",
    "input_schema": {"type": "object", "properties": {"window": {"type": "string"}}},
}
CHOICES: Final = "(a)llow, allow for this (c)hat, (d)eny, (e)dit, (s)kip?"
CLEAR_LINE: Final = "\x15"  # Ctrl-U


class FrontDesk(Server):
    command = (sys.executable, "-m", "tests.acceptance.front_desk")


@pytest.fixture
async def desk(database_url: str, tmp_path: Path) -> AsyncIterator[FrontDesk]:
    server = FrontDesk(database_url, tmp_path, {"PYTHONPATH": str(ROOT)})
    await server.start()
    yield server
    await server.close()


@pytest.fixture
def run_script(tmp_path: Path) -> Iterator[RunScript]:
    with scripts(tmp_path) as start:
        yield start


@pytest.fixture
async def open_terminal(tmp_path: Path) -> AsyncIterator[OpenTerminal]:
    with terminals(tmp_path) as start:
        yield start


REASON: Final = "Reason for the model (Enter for none):"


def results(turn: Json) -> dict[str, Json]:
    return {block["name"]: block for block in turn["blocks"] if block["type"] == "tool_result"}


async def test_a_person_allows_a_call_with_edited_arguments_and_denies_another_with_a_reason(
    desk: FrontDesk, open_terminal: OpenTerminal
) -> None:
    terminal = open_terminal(desk)
    await terminal.sees_prompt()
    terminal.type(f"{BOTH}\rallow\r")  # keys typed before the question must not answer it
    await terminal.sees("? book_room asks to run · expires at", "1 more after this", '      "room": "12",')
    await terminal.sees_prompt(CHOICES)
    terminal.type("edit\r")
    await terminal.sees_prompt('{ "room": "12", "nights": 2 }')
    terminal.type(CLEAR_LINE + '{"room": "21", "nights": "three"}\r')
    await terminal.sees("'three' is not of type 'integer'.")
    await terminal.sees_prompt(CHOICES)
    terminal.type("e\r")
    await terminal.sees_prompt('{"room": "21", "nights": "three"}')
    terminal.type(CLEAR_LINE + '{"room": "21", "nights": 3}\r')
    await terminal.sees("? send_invoice asks to run")
    await terminal.sees_prompt(CHOICES)
    terminal.type("d\r")
    await terminal.sees_prompt(REASON)
    terminal.type("I pay at the desk\r")
    await terminal.sees(
        '✓ book_room room="21", nights=3 · edited',
        '■ send_invoice to="ada@example.org" · not allowed',
        "Room 21 is booked for 3 nights, without breakfast.",
        "· degraded: free_rooms cut",
    )
    await terminal.sees_prompt()
    async with TurnProbe(desk) as probe:
        turn = await probe.until(lambda turn: turn["status"] == "complete")
    outcomes = results(turn)
    assert "Room 21 is booked for 3 nights" in outcomes["book_room"]["text"]
    assert outcomes["send_invoice"]["text"].endswith("The user says: I pay at the desk")
    assert terminal.screen.text.count("I ask the desk.") == 1


async def test_a_chat_that_was_left_waiting_asks_again_when_it_is_opened_after_a_restart(
    desk: FrontDesk, open_terminal: OpenTerminal
) -> None:
    terminal = open_terminal(desk)
    await terminal.sees_prompt()
    terminal.type(f"{BOTH}\r")
    await terminal.sees_prompt(CHOICES)
    terminal.type("a\r")
    await terminal.sees("? send_invoice asks to run")
    await terminal.sees_prompt(CHOICES)
    terminal.type("s\r")
    await terminal.sees('✓ book_room room="12"', "The skipped calls still wait. /open asks again.")
    await terminal.sees_prompt()
    terminal.type("Never mind\r")
    await terminal.sees("A call still waits for your answer: /open asks again")
    await terminal.sees_prompt()
    terminal.type("\x04")
    assert await terminal.ended() == 0

    await desk.restart()
    again = open_terminal(desk, "--continue", EDITOR=str(editor(desk, "s/ada@/bob@/")))
    await again.sees(f"> {BOTH}", "I ask the desk.", "? send_invoice asks to run")
    await again.sees_prompt(CHOICES)
    assert "book_room asks" not in again.screen.text
    again.type("e\r")
    await again.sees("The invoice was sent to bob@example.org")
    await again.sees_prompt()


async def test_ctrl_c_at_a_question_stops_the_answer(desk: FrontDesk, open_terminal: OpenTerminal) -> None:
    terminal = open_terminal(desk, BOTH)
    await terminal.sees_prompt(CHOICES)
    await terminal.interrupt()
    assert await terminal.ended() == 130
    await terminal.sees("■ stopped")
    async with TurnProbe(desk) as probe:
        assert (await probe.until(lambda turn: turn["status"] != "waiting"))["status"] == "cancelled"


async def test_a_message_sent_elsewhere_instead_of_an_answer_is_shown_in_its_place(
    desk: FrontDesk, open_terminal: OpenTerminal
) -> None:
    terminal = open_terminal(desk, "A room, please")
    await terminal.sees_prompt(CHOICES)
    async with TurnProbe(desk) as probe:
        turn = await probe.until(lambda turn: turn["status"] == "waiting")
        async with httpx2.AsyncClient(base_url=desk.url) as http:
            body = {"blocks": [{"type": "text", "text": "Rather room 40"}], "on_busy": "steer"}
            assert (await http.post(f"/api/chats/{turn['chat_id']}/turns", json=body)).status_code == 202
    terminal.type("a\r")
    await terminal.sees(
        "(superseded, ",
        "not run, because the user wrote something else",
        "\n> Rather room 40\n",
        '"room": "40"',
    )
    await terminal.sees_prompt(CHOICES)
    terminal.type("y\r")
    await terminal.sees("Room 40 is booked")
    assert await terminal.ended() == 0


async def test_a_client_tool_is_answered_by_the_person(desk: FrontDesk, open_terminal: OpenTerminal) -> None:
    async with httpx2.AsyncClient(base_url=desk.url) as http:
        for _ in range(2):
            body = {"blocks": [{"type": "text", "text": OUTLOOK}], "tools": [CLIENT_TOOL]}
            assert (await http.post("/api/turns", json=body)).status_code == 201
    terminal = open_terminal(desk, "--continue")
    await terminal.sees("? look_out is for you to run", '"window": "north"')
    await terminal.sees_prompt("(r)esult, (d)ecline, (s)kip?")
    terminal.type("r\r")
    await terminal.sees_prompt("Result:")
    terminal.type("The sea.\r")
    await terminal.sees('✓ look_out window="north"', "• The sea.")
    await terminal.sees_prompt()
    terminal.type("/list\r")
    await terminal.sees("  2  ")
    terminal.type("/open 2\r")
    await terminal.sees_prompt("(r)esult, (d)ecline, (s)kip?")
    terminal.type("d\r")
    await terminal.sees_prompt(REASON)
    terminal.type("It is night\r")
    await terminal.sees("✗ look_out", "declined to run this tool. It is night")
    await terminal.sees_prompt()


@pytest.mark.needs("curl")
async def test_a_script_gets_the_waiting_calls_and_the_commands_that_answer_them(
    desk: FrontDesk, run_script: RunScript
) -> None:
    code, out, notes = await run_script(desk.url, BOTH).end()
    assert (code, out) == (3, "I ask the desk.\n")
    lines = [line.removeprefix("turnstream: ") for line in notes.splitlines()]
    assert lines[0].startswith("2 calls wait for a person; answer in `turnstream chat 0")
    assert lines[1].startswith('book_room {"room": "12", "nights": 2} (until 2')
    approve, _, _, deny = [line for line in lines if "curl" in line]
    for command in (approve, deny):
        subprocess.run(["bash", "-ec", f"{command} --silent --fail"], check=True, capture_output=True)
    async with TurnProbe(desk) as probe:
        turn = await probe.until(lambda turn: turn["status"] == "complete")
    assert {name: block["is_error"] for name, block in results(turn).items()} == {
        "free_rooms": False,
        "book_room": False,
        "send_invoice": True,
    }


def editor(desk: FrontDesk, change: str) -> Path:
    path = desk.log.with_name("editor.sh")
    path.write_text(f'#!/bin/sh\nexec sed -i "{change}" "$1"\n')
    path.chmod(0o755)
    return path
