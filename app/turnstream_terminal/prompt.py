"""The interactive prompt: each line is a message to the model, or a command with a slash."""

import re
from collections.abc import Callable, Coroutine
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from rich.text import Text

from turnstream_client.assembler import Assembler
from turnstream_client.errors import ClientError, RequestRejected
from turnstream_client.events import Json
from turnstream_client.http import AsyncClient
from turnstream_terminal.approvals import ApprovalLoop
from turnstream_terminal.blocks import block_of_upload, full_blocks
from turnstream_terminal.chat_list import print_chats, print_turns, short_ids, title_of
from turnstream_terminal.chat_session import ChatSession
from turnstream_terminal.console import ForegroundRunner
from turnstream_terminal.errors import explained
from turnstream_terminal.schedule_list import changed_body, local_zone, print_schedules, schedule_of
from turnstream_terminal.text import json_line, one_line, printable, sentence, short_input
from turnstream_terminal.turn_parts import job_notes

HELP: Final = """\
/list          list the newest chats
/open N or ID  open a chat, by its number in the list or the beginning of its id
/open          show this chat again, with any turn that still runs or waits
/search WORDS  list the chats in which words are found
/new           start a new chat
/fork          go on in a new chat, with a copy of this one
/retry         answer the last message again, with another model after /model NAME
/edit TEXT     send TEXT in place of the last message
/branches      list the other messages and answers beside those of this chat
/branch N      show the branch of that list
/model         list the models
/model NAME    let a model answer from now on
/attach FILE   send an image, a PDF or a text with the next message
/cost          add up the tokens and the cost of this branch
/grants        list the tools that you allowed for this chat
/revoke N      let a tool of that list ask again
/queue         list the messages that wait for their delivery
/change N TEXT put TEXT in place of a message of that list
/first N       move a message of that list to the front
/now N         send it into the answer that runs; /later N: ask it next
/withdraw N    take it out of the queue
/calls         list the calls of this branch that run in the background; /stop N: stop one
/schedules     list schedules and triggers; /pause N, /resume N, /run N, /delete N: change one
/schedule WHEN TEXT
               send TEXT in this chat at times: WHEN is 60m (minutes), or a cron expression
/more          show the last answer in full, with thinking, tool inputs and tool results
/quit          leave (Ctrl-D leaves too)
Ctrl-C         stop the answer that is being written; at the prompt, leave
When a call waits for you: Ctrl-D leaves it waiting, Ctrl-C stops the answer"""
_COMMAND: Final = re.compile(r"/(\w*)(?:\s+(.*))?", re.DOTALL)
_LISTED: Final = 20
_TURNS_SHOWN: Final = 20
_TURNS_COUNTED: Final = 200
_LINES_SHOWN: Final = 12


class ChatPrompt:
    """`approvals` asks about waiting calls; `run` runs coroutines in the foreground of the terminal."""

    def __init__(
        self, client: AsyncClient, session: ChatSession, approvals: ApprovalLoop, run: ForegroundRunner, program: str
    ) -> None:
        self._client = client
        self._session = session
        self._approvals = approvals
        self._run = run
        self._program = program
        self._console = run.console
        self._listed: list[Json] = []
        self._grants: list[Json] = []
        self._branches: list[Json] = []
        self._queue: list[Json] = []
        self._calls: list[Json] = []
        self._schedules: list[Json] = []
        self._last: Assembler | None = None

    def loop(self, chat: Json | None) -> None:
        """Reads and executes lines until the person leaves. Opens `chat` first."""
        self._dim(f"turnstream at {self._client.server} · /help for help, Ctrl-D to leave")
        if chat is not None:
            self._report_errors(partial(self.open, chat))
        while True:
            try:
                line = input("> ").strip()
            except (EOFError, KeyboardInterrupt):
                print()
                break
            command = _COMMAND.fullmatch(line)
            if command and command[1] in {"quit", "exit", "q"}:
                break
            if command:
                self._report_errors(partial(self._execute, command[1], command[2] or ""))
            elif line:
                self._report_errors(partial(self._send, line))
        if self._session.chat:
            chat_id = short_ids([self._session.chat])[self._session.chat]
            self._dim(f"Come back with: {self._program} {chat_id}")

    def open(self, chat: Json, through: str | None = None) -> None:
        """Shows the chat, or its branch through the turn `through`. If the newest turn is running, follows it."""
        page = self._run(self._client.path(chat["id"], _TURNS_SHOWN, through))
        self._session.chat = chat["id"]
        self._session.branch = page["turns"][-1]["id"] if through else None
        self._dim(f"{title_of(chat)}" + ("  (only the newest turns are shown)" if page["next"] else ""))
        for turn in page["turns"]:
            if turn["role"] == "user" and not turn["blocks"]:
                continue  # an empty message: the answer follows a report, or continues text from the client
            if turn["role"] == "user":
                lines = printable("\n\n".join(block["text"] for block in turn["blocks"])).splitlines()
                left_out = len(lines) - _LINES_SHOWN
                if left_out > 1:
                    lines[_LINES_SHOWN:] = [f"({left_out} more lines)"]
                self._console.print(Text("\n> " + "\n  ".join(lines), "bold"))
            else:
                self._last = self._with_approvals(self._run(self._session.follow(turn)))
            if self._last and self._last.waits:  # later turns are queued behind this turn
                break
        self._console.print()

    def _send(self, text: str) -> None:
        self._show(self._session.send(text))

    def _show(self, answering: Coroutine[Any, Any, Assembler]) -> None:
        self._last = self._with_approvals(self._run(answering))
        self._console.print()

    def _execute(self, command: str, argument: str) -> None:
        match command:
            case "help":
                self._dim(HELP)
            case "list":
                self._listed = self._run(self._client.chats(_LISTED))
                print_chats(self._console, self._listed, datetime.now().astimezone())
            case "search" if argument:
                self._listed = self._run(self._client.search(argument, _LISTED))
                print_chats(self._console, self._listed, datetime.now().astimezone(), excerpts=True)
            case "search":
                self._warn("Give /search the words to look for.")
            case "schedules" | "schedule" | "pause" | "resume" | "run" | "delete":
                self._use_schedules(command, argument)
            case "open" if argument.isdecimal() and 1 <= int(argument) <= len(self._listed):
                self.open(self._listed[int(argument) - 1])
            case "open" if argument or self._session.chat:
                self.open(self._run(self._client.find_chat(argument or self._session.chat or "")))
            case "open":
                self._warn("No chat is open yet. Give /open a number from /list, or the beginning of an id.")
            case "new":
                self._session.chat = self._session.branch = self._last = None
                self._dim("Your next message starts a new chat.")
            case "model" if argument:
                self._choose_model(argument)
            case "model":
                self._list_models()
            case "attach" if argument:
                self._attach(Path(argument).expanduser())
            case "attach":
                self._warn("Give /attach the name of a file.")
            case "more" if self._last is not None:
                self._console.print(*full_blocks(self._last.blocks), "", sep="\n")
            case "more":
                self._warn("There is no answer yet.")
            case "fork" | "retry" | "edit" | "branches" | "branch" | "cost" | "grants" | "revoke" | "calls" | "stop":
                if self._session.chat is None:
                    self._warn("No chat is open yet.")
                else:
                    self._execute_in_chat(self._session.chat, command, argument)
            case "queue" | "change" | "first" | "now" | "later" | "withdraw":
                if self._session.chat is None:
                    self._warn("No chat is open yet.")
                else:
                    self._use_queue(self._session.chat, command, argument)
            case _:
                self._warn(f"There is no command /{command}. /help lists the commands.")

    def _execute_in_chat(self, chat: str, command: str, argument: str) -> None:
        match command:
            case "fork":
                copy = self._run(self._client.fork(chat, str(uuid4())))
                self.open(self._run(self._client.find_chat(copy["assistant_turn"]["chat_id"])))
            case "retry":
                self._show(self._session.retry(self._newest("assistant")))
            case "edit" if argument:
                self._show(self._session.edit(self._newest("user"), argument))
            case "edit":
                self._warn("Give /edit the text that takes the place of your last message.")
            case "branches":
                self._list_branches(chat)
            case "branch" if argument.isdecimal() and 1 <= int(argument) <= len(self._branches):
                turn = self._branches[int(argument) - 1]
                self.open(self._run(self._client.find_chat(turn["chat_id"])), turn["id"])
            case "branch":
                self._warn("Give /branch a number from /branches.")
            case "cost":
                self._show_cost()
            case "calls":
                self._show_calls()
            case "stop" if argument.isdecimal() and 1 <= int(argument) <= len(self._calls):
                call = self._calls[int(argument) - 1]
                self._run(self._client.cancel_call(chat, call["turn"], call["tool_use_id"]))
                self._show_calls()
            case "stop":
                self._warn("Give /stop a number from /calls.")
            case "grants":
                self._show_grants(chat)
            case "revoke" if argument.isdecimal() and 1 <= int(argument) <= len(self._grants):
                self._run(self._client.revoke_grant(chat, self._grants[int(argument) - 1]["id"]))
                self._show_grants(chat)
            case _:
                self._warn("Give /revoke a number from /grants.")

    def _use_schedules(self, command: str, argument: str) -> None:
        known = argument.isdecimal() and 1 <= int(argument) <= len(self._schedules)
        each = self._schedules[int(argument) - 1] if known else None
        match command:
            case "schedules":
                pass
            case "schedule":
                body = schedule_of(argument, local_zone(), self._session.chat)
                if body is None:
                    self._warn(
                        "Give /schedule the time and the text, such as: /schedule 30 7 * * 1-5 Is the tide high?"
                    )
                    return
                self._run(self._client.change_schedule("POST", None, body))
            case _ if each is None or (command == "run" and "path" in each):
                self._warn(f"Give /{command} a number from /schedules{' that is no trigger' * (command == 'run')}.")
                return
            case "run":
                self._run(self._client.change_schedule("POST", each, call="/run"))
            case "delete":
                self._run(self._client.change_schedule("DELETE", each))
            case _:
                body = changed_body(each, paused=command == "pause")
                self._run(self._client.change_schedule("PUT", each, body))
        self._schedules = self._run(self._client.schedules())
        print_schedules(self._console, self._schedules)

    def _use_queue(self, chat: str, command: str, argument: str) -> None:
        number, _, text = argument.partition(" ")
        if command != "queue":
            if (
                not number.isdecimal()
                or not 1 <= int(number) <= len(self._queue)
                or (command == "change") != bool(text)
            ):
                self._warn(
                    f"Give /{command} a number from /queue{', and the new text' if command == 'change' else ''}."
                )
                return
            entry = self._queue[int(number) - 1]
            if text and any(block["type"] != "text" for block in entry["blocks"]):
                self._warn("The message has files, which /change would leave out: withdraw it, and send another one.")
                return
            self._run(self._changed(chat, command, entry, text))
        self._queue = self._run(self._client.queue(chat))
        for place, entry in enumerate(self._queue, 1):
            words = one_line(" ".join(block["text"] for block in entry["blocks"] if block["type"] == "text"))
            self._console.print(Text(f"{place:>3}  {'next' if entry['kind'] == 'queued' else 'steers'}  {words}"))
        if not self._queue:
            self._dim("No message waits.")

    def _changed(self, chat: str, command: str, entry: Json, text: str) -> Coroutine[Any, Any, Json]:
        id, version = entry["id"], entry["version"]
        match command:
            case "withdraw":
                return self._client.withdraw(chat, id, version)
            case "change":
                return self._client.change_queued(chat, id, version, blocks=[{"type": "text", "text": text}])
            case "first":
                return self._client.change_queued(chat, id, version, after=None)
            case _:
                return self._client.change_queued(chat, id, version, kind="steer" if command == "now" else "queued")

    def _path(self) -> list[Json]:
        """Returns the newest turns of the branch on display."""
        page = self._run(self._client.path(self._session.chat or "", _TURNS_COUNTED, self._session.branch))
        turns: list[Json] = page["turns"]
        return turns

    def _newest(self, role: str) -> Json:
        turns = [turn for turn in self._path() if turn["role"] == role]
        if not turns:
            raise RequestRejected(404, "this chat has no message yet")
        return turns[-1]

    def _list_models(self) -> None:
        for model in self._run(self._client.models()):
            is_chosen = model["id"] == self._session.model or (model["default"] and self._session.model is None)
            self._console.print(Text(f"{'*' if is_chosen else ' '} {one_line(model['id'])}"))

    def _choose_model(self, name: str) -> None:
        models = self._run(self._client.models())
        if name in {known for model in models for known in (model["id"], *model["aliases"])}:
            self._session.model = name
            self._dim(f"{name} answers from now on.")
        else:
            self._warn(f"There is no model {name}. /model lists the models.")

    def _attach(self, path: Path) -> None:
        try:
            data = path.read_bytes()
        except OSError as error:
            self._warn(f"{path} cannot be read: {error.strerror}.")
            return
        self._session.attached.append(block_of_upload(self._run(self._client.upload(data)), path.name))
        self._dim(f"{path.name} goes with your next message.")

    def _list_branches(self, chat: str) -> None:
        path = self._path()
        forks = [turn for turn in path if len(turn["siblings"] or ()) > 1]
        self._branches = [turn for fork in forks for turn in self._run(self._client.siblings(chat, fork["id"]))]
        print_turns(self._console, self._branches, {turn["id"] for turn in path})
        if not self._branches:
            self._dim("This chat has one branch. /edit and /retry begin others.")

    def _show_cost(self) -> None:
        answers = [turn for turn in self._path() if turn["role"] == "assistant"]
        tokens = [sum(turn["usage"].get(f"{kind}_tokens") or 0 for turn in answers) for kind in ("input", "output")]
        costs = [turn["cost"] for turn in answers if turn["cost"] is not None]
        price = f"{sum(costs):.4f}{self._currency()}" if costs else "no price is known"
        at_least = "at least " if costs and len(costs) < len(answers) else ""
        count = f"{len(answers)} answer{'s' if len(answers) != 1 else ''}"
        self._dim(f"{count} · {tokens[0]:,} tokens in, {tokens[1]:,} out · {at_least}{price}")

    def _currency(self) -> str:
        """Returns a space and the currency of the prices; empty if the server names no currency."""
        return next((f" {model['currency']}" for model in self._run(self._client.models()) if model["currency"]), "")

    def _show_calls(self) -> None:
        self._calls = []
        for turn in self._path():
            inputs = {block.get("id"): block.get("input") for block in turn["blocks"]}
            reporting = [report for report in turn["reports"] if report["state"] != "settled"]
            for call in (*turn["jobs"], *reporting):
                self._calls.append({**call, "turn": turn["id"]})
                line = f"{one_line(call['name'])} {short_input(inputs.get(call['tool_use_id']))}".strip()
                notes = " · ".join(filter(None, [line, *job_notes({"child": None, **call})]))
                self._console.print(Text(f"{len(self._calls):>3}  {notes}", no_wrap=True, overflow="ellipsis"))
        if not self._calls:
            self._dim("No call runs in the background.")

    def _show_grants(self, chat: str) -> None:
        self._grants = self._run(self._client.grants(chat))
        for number, grant in enumerate(self._grants, 1):
            when = f" where {json_line(grant['when'])}" if grant["when"] else ""
            self._console.print(Text(f"{number:>3}  {one_line(grant['tool'])}{when}"))
        if not self._grants:
            self._dim("No tool is allowed for this chat: each call is asked about.")

    def _with_approvals(self, state: Assembler) -> Assembler:
        state = self._approvals.complete(state)
        if state.waits:
            self._warn("The skipped calls still wait. /open asks again.")
        return state

    def _report_errors(self, work: Callable[[], None]) -> None:
        try:
            work()
        except ClientError as error:
            message = explained(error)
            if isinstance(error, RequestRejected) and error.status == 409:
                message = f"{message.rstrip('.')} (/open shows it)"
                if self._last is not None and self._last.waits:
                    message = "a call still waits for your answer: /open asks again, and Ctrl-C there stops the turn"
            self._warn(sentence(message))
        except KeyboardInterrupt:
            self._warn("Interrupted. The server may go on with the last message or answer that it received.")

    def _dim(self, text: str) -> None:
        self._console.print(Text(text, "dim"))

    def _warn(self, text: str) -> None:
        self._console.print(Text(text, "yellow"))
