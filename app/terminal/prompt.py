"""The prompt: what is typed goes to the server, but for the few lines that begin with a slash."""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Final

from rich.text import Text

from app.terminal.approvals import Attendant
from app.terminal.assembler import Assembler, Json
from app.terminal.blocks import unfolded
from app.terminal.chat_list import print_chats, short_ids, title_of
from app.terminal.chat_session import ChatSession
from app.terminal.console import Carrier
from app.terminal.errors import Refused, TerminalError
from app.terminal.http_client import Client
from app.terminal.text import clean, sentence

HELP: Final = """\
/list          the newest chats
/open N or ID  open a chat, by its number in the list or the beginning of its id
/open          show this chat again, and what still runs or waits in it
/new           start another chat
/more          the last answer with its thinking, and its tools with input and result
/quit          leave (Ctrl-D does too)
Ctrl-C         stop the answer that is being written; at the prompt, leave
When a call waits for you: Ctrl-D leaves it waiting, Ctrl-C stops the answer"""
_COMMAND: Final = re.compile(r"/(\w*)(?:\s+(.*))?", re.DOTALL)
_LISTED: Final = 20
_TURNS_SHOWN: Final = 20
_LINES_SHOWN: Final = 12


class Conversation:
    """`attendant` asks about calls that wait; `do` has the terminal while something is done."""

    def __init__(self, client: Client, session: ChatSession, attendant: Attendant, do: Carrier) -> None:
        self._client = client
        self._session = session
        self._attendant = attendant
        self._do = do
        self._console = do.console
        self._listed: list[Json] = []
        self._last: Assembler | None = None
        self._commands: Mapping[str, Callable[[str], None]] = {
            "help": self._help,
            "list": self._list,
            "open": self._open,
            "new": self._new,
            "more": self._more,
        }

    def run(self, chat: Json | None) -> None:
        """Until the person leaves."""
        self._greet()
        if chat is not None:
            self._attempt(partial(self.open, chat))
        while (line := _read()) is not None:
            command = _COMMAND.fullmatch(line)
            if command and command[1] in {"quit", "exit", "q"}:
                break
            if command:
                self._attempt(partial(self._obey, command[1], command[2] or ""))
            elif line:
                self._attempt(partial(self._ask, line))
        self._part()

    def open(self, chat: Json) -> None:
        """Shows the chat so far, and follows its newest turn where that still runs."""
        page = self._do(self._client.path(chat["id"], _TURNS_SHOWN))
        self._session.chat = chat["id"]
        self._dim(f"{title_of(chat)}" + ("  (only its newest turns are shown)" if page["next"] else ""))
        for turn in page["turns"]:
            if turn["role"] == "user":
                self._show_question(turn)
            else:
                self._last = self._attended(self._do(self._session.follow(turn)))
            if self._last and self._last.waits:  # whatever was said after it waits too
                break
        self._console.print()

    # --- commands ----------------------------------------------------------------------------------------------------

    def _obey(self, name: str, rest: str) -> None:
        if (command := self._commands.get(name)) is None:
            self._say(f"There is no /{name}. /help lists what there is.")
        else:
            command(rest)

    def _ask(self, text: str) -> None:
        self._last = self._attended(self._do(self._session.ask(text)))
        self._console.print()

    def _help(self, _: str) -> None:
        self._dim(HELP)

    def _list(self, _: str) -> None:
        self._listed = self._do(self._client.chats(_LISTED))
        print_chats(self._console, self._listed, datetime.now().astimezone())

    def _open(self, which: str) -> None:
        if which.isdecimal() and 1 <= int(which) <= len(self._listed):
            self.open(self._listed[int(which) - 1])
        elif which or self._session.chat:
            self.open(self._do(self._client.find_chat(which or self._session.chat or "")))
        else:
            self._say("Say which: /open N, with a number from /list, or the beginning of an id.")

    def _new(self, _: str) -> None:
        self._session.chat = self._last = None
        self._dim("A new chat; it is created with your first words.")

    def _more(self, _: str) -> None:
        if self._last is None:
            self._say("There is no answer yet.")
        else:
            self._console.print(*unfolded(self._last.blocks), "", sep="\n")

    # --- the terminal ------------------------------------------------------------------------------------------------

    def _attended(self, state: Assembler) -> Assembler:
        state = self._attendant.attend(state)
        if state.waits:
            self._say("Left waiting. /open asks again.")
        return state

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Refused as error:
            self._say(sentence(self._why(error)))
        except TerminalError as error:
            self._say(sentence(str(error)))
        except KeyboardInterrupt:
            self._say("Interrupted. What the server was told, it may go on with.")

    def _why(self, error: Refused) -> str:
        if error.status != 409:
            return str(error)
        if self._last is not None and self._last.waits:
            return "a call still waits for your answer: /open asks again, and Ctrl-C there stops the turn"
        return f"{str(error).rstrip('.')} (/open shows it)"

    def _greet(self) -> None:
        self._dim(f"turnstream at {self._client.server} · /help for help, Ctrl-D to leave")

    def _part(self) -> None:
        if self._session.chat:
            chat = short_ids([self._session.chat])[self._session.chat]
            self._dim(f"Come back with: turnstream chat {chat}")

    def _show_question(self, turn: Json) -> None:
        lines = clean("\n\n".join(block["text"] for block in turn["blocks"])).splitlines()
        left_out = len(lines) - _LINES_SHOWN
        if left_out > 1:
            lines[_LINES_SHOWN:] = [f"({left_out} more lines)"]
        self._console.print(Text("\n> " + "\n  ".join(lines), "bold"))

    def _dim(self, words: str) -> None:
        self._console.print(Text(words, "dim"))

    def _say(self, words: str) -> None:
        self._console.print(Text(words, "yellow"))


def _read() -> str | None:
    """What is typed at the prompt; None when the person wants to leave."""
    try:
        return input("> ").strip()
    except (EOFError, KeyboardInterrupt):
        print()
        return None
