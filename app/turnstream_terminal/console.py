"""The terminal of the process: the console, line input, the editor, and foreground work during which keys are not
echoed.
"""

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

from turnstream_terminal.render import THEME
from turnstream_terminal.screen import AppendOnlyScreen, Display, Screen

T = TypeVar("T")


def _optional_module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None


# Windows has neither module: its console edits lines itself.
_readline, _termios = _optional_module("readline"), _optional_module("termios")


def open_console() -> Console:
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    console = Console(theme=THEME, highlight=False, markup=False, emoji=False)
    if console.is_dumb_terminal:  # rich assumes 80 columns for dumb terminals
        console.width = shutil.get_terminal_size().columns
    return console


def is_terminal() -> bool:
    """True if standard output is a terminal. `Console.is_terminal` would also be true for a pipe, if FORCE_COLOR is
    set.
    """
    return sys.stdout.isatty()


def open_display(console: Console) -> Display:
    append_only = console.is_dumb_terminal or console.legacy_windows
    return AppendOnlyScreen(console.file) if append_only else Screen(console.file)


def prepare_prompt() -> None:
    """Makes readline accept a pasted text with line breaks as one message, not one message per line. libedit cannot do
    this.
    """
    if _readline is not None and "libedit" not in (_readline.__doc__ or ""):
        _readline.parse_and_bind("set enable-bracketed-paste on")


def read_line(prompt: str, draft: str = "") -> str:
    """Reads a line, with `draft` as its editable beginning if possible. Raises EOFError and KeyboardInterrupt."""
    if _termios is not None and sys.stdin.isatty():
        # Keys pressed before the question appeared must not answer it.
        _termios.tcflush(sys.stdin, _termios.TCIFLUSH)
    if _readline is not None:
        _readline.set_startup_hook(lambda: _readline.insert_text(draft))
        _readline.set_auto_history(False)  # the history belongs to the prompt
    try:
        line = input(prompt)
    finally:
        if _readline is not None:
            _readline.set_startup_hook(None)
            _readline.set_auto_history(True)
    return line.encode(errors="replace").decode().strip()


def edit_text(editor: str | None, text: str) -> str | None:
    """Lets the person edit `text` in `editor`, or on one line if there is no editor. Returns the new text, or None if
    nothing was saved.
    """
    if editor is not None:
        try:
            return click.edit(text, editor, extension=".json")
        except click.ClickException as error:
            click.echo(f"{error.message}; edit the text on one line instead:")
    return read_line("", " ".join(line.strip() for line in text.splitlines()))


@dataclass(frozen=True, slots=True)
class ForegroundRunner:
    """Runs coroutines while no input is read from the terminal."""

    runner: asyncio.Runner
    console: Console

    def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` to its end. The first Ctrl-C cancels `work`, which may handle the cancellation; the second Ctrl-C
        cancels all tasks.
        """
        with _quiet_terminal(self.console):
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


@contextmanager
def _quiet_terminal(console: Console) -> Iterator[None]:
    """Hides the cursor, and switches off the echo of keys, which would disturb the answer. The next prompt receives the
    keys that were typed.
    """
    if console.is_dumb_terminal or not is_terminal():
        yield
        return
    before = _termios.tcgetattr(sys.stdin) if _termios is not None and sys.stdin.isatty() else None
    try:
        if before is not None:
            quiet = [*before]
            quiet[3] &= ~_termios.ECHO
            _termios.tcsetattr(sys.stdin, _termios.TCSADRAIN, quiet)
        console.show_cursor(False)
        yield
    finally:
        console.show_cursor(True)
        if before is not None:
            _termios.tcsetattr(sys.stdin, _termios.TCSADRAIN, before)
