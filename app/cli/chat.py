"""`turnstream chat`."""

import asyncio
import re
import sys
import time
from datetime import datetime
from functools import partial
from typing import Final

import click
from rich.console import Console
from rich.text import Text

from app.config import read_settings
from app.terminal.approvals import Attendant, Dialogue, how_to_answer
from app.terminal.assembler import Assembler, Json
from app.terminal.chat_list import plain_chats, print_chats
from app.terminal.chat_session import ChatSession
from app.terminal.console import Carrier, edit_text, is_terminal, open_console, prepare_prompt, read_answer, surface_of
from app.terminal.errors import Refused
from app.terminal.http_client import Client
from app.terminal.prompt import Conversation
from app.terminal.turn_view import AnswerView, LiveAnswer, PlainAnswer

# The ids of chats are UUIDs of version 7, which begin with the time: with a 0 for some thousand years.
_CHAT: Final = re.compile(r"0[0-9a-f]{3,7}(-[0-9a-f-]{0,27})?", re.IGNORECASE)
_LISTED: Final = 20
_ALL: Final = 1_000_000
_INTERRUPTED: Final = 130  # what a shell expects of a program that Ctrl-C ended
_WAITING: Final = 3


@click.command()
@click.argument("words", nargs=-1, metavar="[CHAT] [QUESTION]")
@click.option("--continue", "newest", is_flag=True, help="go on with the chat that changed last")
@click.option("--list", "lists", is_flag=True, help="list chats and exit")
@click.option("--server", envvar="TURNSTREAM_URL", help="URL of the server  [default: the one on this machine]")
@click.option("--token", envvar="TURNSTREAM_TOKEN", help="who you are, where the server asks for it")
@click.option("--model", help="the model that answers  [default: the chat's, or the server's]")
@click.option("--editor", envvar=["VISUAL", "EDITOR"], help="what edits the arguments of a call  [default: one line]")
@click.option("--no-input", is_flag=True, help="leave calls waiting that wait for a person; needs a QUESTION")
def chat(
    words: tuple[str, ...],
    newest: bool,
    lists: bool,
    server: str | None,
    token: str | None,
    model: str | None,
    editor: str | None,
    no_input: bool,
) -> None:
    """Talk to a running server.

    CHAT is the beginning of a chat's id, as --list shows it; without it a new chat begins. With a QUESTION (or with one
    on standard input; "-" puts standard input into the question) the answer is printed, and that is all.

    A call that a person must allow, or that only the client can run, is asked about where there is a terminal.
    Elsewhere it is left waiting, and how to answer it is said on standard error.

    \b
    Exit codes: 0  the answer is complete
                1  it failed
                3  it waits for a person
              130  it was stopped
    """
    named, words = (words[0], words[1:]) if words and _CHAT.fullmatch(words[0]) else (None, words)
    console = open_console()
    question = None if lists else _question(words)
    if no_input and not lists and question is None:
        raise click.UsageError("--no-input leaves nothing to do without a question")
    client = Client(server or server_here(), token)
    with asyncio.Runner() as runner:
        try:
            if lists:
                _list(console, runner.run(client.chats(_LISTED if is_terminal() else _ALL)))
                return
            chosen = runner.run(_choose(client, named, newest))
            session, do = ChatSession(client, partial(_show, console), model), Carrier(runner, console)
            attendant = _attendant(session, do, editor)
            if question is not None:
                session.chat = chosen["id"] if chosen else None
                state = do(session.ask(question))
                if _is_attended() and not no_input:
                    state = attendant.attend(state)
                _tell_of_waiting(state, client.server, token=token is not None)
                sys.exit(_exit_code(state))
            runner.run(client.chats(1))  # says at once when there is no server
            prepare_prompt()
            Conversation(client, session, attendant, do).run(chosen)
        finally:
            runner.run(client.aclose())


def _is_attended() -> bool:
    return sys.stdin.isatty() and is_terminal()


def _attendant(session: ChatSession, do: Carrier, editor: str | None) -> Attendant:
    edit = partial(edit_text, editor)
    return Attendant(session, Dialogue(do.console, read_answer, edit, lambda: datetime.now().astimezone()), do)


def _tell_of_waiting(state: Assembler, server: str, *, token: bool) -> None:
    if state.actions:
        for line in how_to_answer(state, server, token=token):
            print(f"turnstream: {line}", file=sys.stderr)


def _exit_code(state: Assembler) -> int:
    if state.actions:
        return _WAITING
    return {"turn_complete": 0, "turn_cancelled": _INTERRUPTED}.get(state.end or "", 1)


def _question(words: tuple[str, ...]) -> str | None:
    """What is asked without a prompt; None where there shall be one."""
    if "-" in words or not (words or sys.stdin.isatty()):
        piped = sys.stdin.read()
        words = tuple(f"\n\n{piped}" if word == "-" else word for word in words) or (piped,)
    elif not words and not is_terminal():
        raise click.UsageError("there is no terminal to talk on: give a question, or pipe one in")
    if words and not (question := " ".join(words).strip()):
        raise click.UsageError("the question is empty")
    return question if words else None


async def _choose(client: Client, named: str | None, newest: bool) -> Json | None:
    if named is not None:
        return await client.find_chat(named)
    if not newest:
        return None
    if chats := await client.chats(1):
        return chats[0]
    raise Refused(404, "there is no chat to go on with; leave out --continue to begin one")


def _show(console: Console, state: Assembler) -> AnswerView:
    if is_terminal():
        return LiveAnswer(console, surface_of(console), state, time.monotonic)
    return PlainAnswer(sys.stdout, sys.stderr, state)


def _list(console: Console, chats: list[Json]) -> None:
    if is_terminal():
        print_chats(console, chats, datetime.now().astimezone())
        if len(chats) == _LISTED:
            console.print(Text(f"These are the newest {_LISTED}. All: turnstream chat --list | less", "dim"))
    else:
        sys.stdout.write(plain_chats(chats))


def server_here() -> str:
    settings = read_settings()
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104, not to listen on
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"
