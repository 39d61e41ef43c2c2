"""The command `turnstream-chat`, which is also available as `turnstream chat`."""

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

from turnstream_client.assembler import Assembler
from turnstream_client.errors import RequestRejected
from turnstream_client.events import Json
from turnstream_client.http import AsyncClient
from turnstream_terminal.approvals import ApprovalLoop, ApprovalPrompt, answer_commands
from turnstream_terminal.chat_list import plain_chats, print_chats
from turnstream_terminal.chat_session import ChatSession
from turnstream_terminal.console import (
    ForegroundRunner,
    edit_text,
    is_terminal,
    open_console,
    open_display,
    prepare_prompt,
    read_line,
)
from turnstream_terminal.errors import client_errors_explained
from turnstream_terminal.options import params_of
from turnstream_terminal.prompt import ChatPrompt
from turnstream_terminal.turn_view import LiveTurnView, PlainTurnView, TurnView

# A chat id is a UUID of version 7, which begins with the time: its first digit stays 0 for thousands of years. The
# first word of a question rarely has this form.
_CHAT_ID: Final = re.compile(r"0[0-9a-f]{3,7}(-[0-9a-f-]{0,27})?", re.IGNORECASE)
_LISTED: Final = 20
_ALL: Final = 1_000_000
_EXIT_INTERRUPTED: Final = 130  # the convention of shells for a program that Ctrl-C stopped
_EXIT_WAITING: Final = 3


@click.command()
@click.argument("words", nargs=-1, metavar="[CHAT] [QUESTION]")
@click.option("--continue", "newest", is_flag=True, help="Open the chat that changed last.")
@click.option("--list", "lists", is_flag=True, help="List chats and exit.")
@click.option(
    "--server",
    envvar="TURNSTREAM_URL",
    default="http://127.0.0.1:8000",
    help="URL of the server.  [default: the one on this machine]",
)
@click.option("--token", envvar="TURNSTREAM_TOKEN", help="Token that says who you are, if the server asks for one.")
@click.option("--model", help="Model that answers.  [default: the chat's, or the server's]")
@click.option(
    "--param",
    "params",
    multiple=True,
    metavar="NAME=VALUE",
    help="Parameter of the model, such as temperature=0.2; may be repeated.  [default: the chat's]",
)
@click.option(
    "--editor", envvar=["VISUAL", "EDITOR"], help="Editor for the arguments of a call.  [default: one line here]"
)
@click.option("--no-input", is_flag=True, help="Ask nothing: calls that wait for a person stay waiting.")
@client_errors_explained()
def chat(
    words: tuple[str, ...],
    newest: bool,
    lists: bool,
    server: str,
    token: str | None,
    model: str | None,
    params: tuple[str, ...],
    editor: str | None,
    no_input: bool,
) -> None:
    """Talk to a running server.

    CHAT is the beginning of a chat's id, as --list shows it. Without CHAT a new chat is started. With a QUESTION, or
    with one on standard input, the command prints the answer and exits; the word "-" inserts standard input into the
    question. Without a QUESTION it opens a prompt.

    On a terminal you are asked about calls that need your approval or your result. Ctrl-C stops the answer, or asks
    which call in the background is to stop. Elsewhere such calls stay waiting,
    and standard error shows the commands that answer them.

    \b
    Exit codes: 0  the answer is complete
                1  it failed
                3  it waits for a person
              130  it was stopped
    """
    prefix, words = (words[0], words[1:]) if words and _CHAT_ID.fullmatch(words[0]) else (None, words)
    program = click.get_current_context().command_path  # `turnstream chat` or `turnstream-chat`
    console = open_console()
    question = None if lists else _question(words)
    if no_input and not lists and question is None:
        raise click.UsageError("--no-input needs a QUESTION: without one the command opens a prompt.")
    options = params_of(params)
    client = AsyncClient(server, token)
    with asyncio.Runner() as runner:
        try:
            if lists:
                _list(console, program, runner.run(client.chats(_LISTED if is_terminal() else _ALL)))
                return
            chosen = runner.run(_choose(client, prefix, newest))
            asked = sys.stdin.isatty() and is_terminal() and not no_input
            session = ChatSession(client, partial(_open_view, console), model, options, offers_calls=asked)
            run = ForegroundRunner(runner, console)
            asks = ApprovalPrompt(console, read_line, partial(edit_text, editor), lambda: datetime.now().astimezone())
            approvals = ApprovalLoop(session, asks, run)
            if question is not None:
                session.chat = chosen["id"] if chosen else None
                state = run(session.send(question))
                if asked:
                    state = approvals.complete(state)
                if state.actions:
                    for line in answer_commands(state, client.server, program, token=token is not None):
                        print(f"turnstream: {line}", file=sys.stderr)
                    sys.exit(_EXIT_WAITING)
                sys.exit({"turn_complete": 0, "turn_cancelled": _EXIT_INTERRUPTED}.get(state.end or "", 1))
            runner.run(client.chats(1))  # a missing server fails here, before the prompt
            prepare_prompt()
            ChatPrompt(client, session, approvals, run, program).loop(chosen)
        finally:
            runner.run(client.aclose())


def _question(words: tuple[str, ...]) -> str | None:
    """Returns the question in the arguments and on standard input, or None if the command opens a prompt."""
    if "-" in words or not (words or sys.stdin.isatty()):
        piped = sys.stdin.read()
        words = tuple(f"\n\n{piped}" if word == "-" else word for word in words) or (piped,)
    elif not words and not is_terminal():
        raise click.UsageError("A prompt needs a terminal. Give a QUESTION, or pipe one in.")
    if words and not (question := " ".join(words).strip()):
        raise click.UsageError("The QUESTION is empty. Give its text as arguments or on standard input.")
    return question if words else None


async def _choose(client: AsyncClient, prefix: str | None, newest: bool) -> Json | None:
    if prefix is not None:
        return await client.find_chat(prefix)
    if not newest:
        return None
    if chats := await client.chats(1):
        return chats[0]
    raise RequestRejected(404, "there is no chat to continue; leave out --continue to start one")


def _open_view(console: Console, state: Assembler) -> TurnView:
    if is_terminal():
        return LiveTurnView(console, open_display(console), state, time.monotonic)
    return PlainTurnView(sys.stdout, sys.stderr, state)


def _list(console: Console, program: str, chats: list[Json]) -> None:
    if is_terminal():
        print_chats(console, chats, datetime.now().astimezone())
        if len(chats) == _LISTED:
            console.print(Text(f"These are the newest {_LISTED}. All: {program} --list | less", "dim"))
    else:
        sys.stdout.write(plain_chats(chats))
