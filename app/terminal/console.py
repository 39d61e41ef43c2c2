"""The terminal as it is found, and as it is left."""

import asyncio
import shutil
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from io import TextIOWrapper
from typing import Any, TypeVar

import click
from rich.console import Console

from app.terminal.render import THEME
from app.terminal.screen import Paper, Screen, Surface

T = TypeVar("T")


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None


# Neither is there on Windows, where the console edits lines itself.
_readline, _termios = _module("readline"), _module("termios")


def open_console() -> Console:
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    console = Console(theme=THEME, highlight=False, markup=False, emoji=False)
    if console.is_dumb_terminal:  # of which rich thinks that it has 80 columns
        console.width = shutil.get_terminal_size().columns
    return console


def is_terminal() -> bool:
    """Whether a person looks at the output; what rich takes for one can also be a pipe, if FORCE_COLOR says so."""
    return sys.stdout.isatty()


def surface_of(console: Console) -> Surface:
    return Paper(console.file) if console.is_dumb_terminal or console.legacy_windows else Screen(console.file)


def prepare_prompt() -> None:
    """A text that is pasted with its line breaks is one message, not one for each line."""
    if _readline is not None and "libedit" not in (_readline.__doc__ or ""):
        _readline.parse_and_bind("set enable-bracketed-paste on")


def read_answer(prompt: str, draft: str = "") -> str:
    """A line that begins with `draft`, where lines can be edited. What was typed before the question is no answer to
    it. Raises EOFError and KeyboardInterrupt.
    """
    if _termios is not None and sys.stdin.isatty():
        _termios.tcflush(sys.stdin, _termios.TCIFLUSH)
    with _drafting(draft):
        line = input(prompt)
    return line.encode(errors="replace").decode().strip()


def edit_text(editor: str | None, text: str) -> str | None:
    """`text` as it was left in `editor`, or on one line where there is none; None for no change."""
    if editor is not None:
        try:
            return click.edit(text, editor, extension=".json")
        except click.ClickException as error:
            click.echo(f"{error.message}; here is one line instead:")
    return read_answer("", " ".join(line.strip() for line in text.splitlines()))


@contextmanager
def _drafting(draft: str) -> Iterator[None]:
    """What is answered is not what the arrow keys bring back at the next prompt."""
    if _readline is None:
        yield
        return
    _readline.set_startup_hook(lambda: _readline.insert_text(draft))
    _readline.set_auto_history(False)
    try:
        yield
    finally:
        _readline.set_startup_hook(None)
        _readline.set_auto_history(True)


@contextmanager
def watching(console: Console) -> Iterator[None]:
    """While an answer is shown no cursor blinks and what is typed is not echoed into it; the next prompt gets it."""
    if console.is_dumb_terminal or not is_terminal():
        yield
        return
    with _without_echo():
        console.show_cursor(False)
        try:
            yield
        finally:
            console.show_cursor(True)


@contextmanager
def _without_echo() -> Iterator[None]:
    if _termios is None or not sys.stdin.isatty():
        yield
        return
    before = _termios.tcgetattr(sys.stdin)
    quiet = _termios.tcgetattr(sys.stdin)
    quiet[3] &= ~_termios.ECHO
    _termios.tcsetattr(sys.stdin, _termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        _termios.tcsetattr(sys.stdin, _termios.TCSADRAIN, before)


@dataclass(frozen=True, slots=True)
class Carrier:
    """In between, the prompt has the terminal to itself."""

    runner: asyncio.Runner
    console: Console

    def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work`. The first Ctrl-C is its own affair; the second ends it where it stands."""
        with watching(self.console):
            try:
                return self.runner.run(work)
            except KeyboardInterrupt:
                self.runner.run(_cancel_all())
                raise


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
