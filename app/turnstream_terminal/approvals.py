"""Collects a person's answers to waiting calls: the loop over a turn, the questions, and shell commands for scripts."""

import json
import shlex
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence, Set
from datetime import datetime
from typing import Any, Final, Protocol, TypeVar

from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.padding import Padding
from rich.text import Text

from turnstream_client.assembler import Assembler
from turnstream_client.errors import RequestRejected
from turnstream_client.events import Json
from turnstream_terminal.chat_session import CallKey, call_key
from turnstream_terminal.errors import explained
from turnstream_terminal.text import (
    duration,
    indented_json,
    json_line,
    one_line,
    printable,
    same_json,
    sentence,
    short_input,
)
from turnstream_terminal.turn_parts import job_notes

T = TypeVar("T")

_QUESTIONS: Final = {
    "approval": "asks to run",
    "client": "is for you to run",
    "elicitation": "asks you",
    "sign_in": "needs you to sign in, then it goes on",
}
_UNKNOWN: Final = "waits for an answer that this client does not know: skip it"
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "approval": ("allow", "deny", "edit", "skip"),
    "client": ("result", "decline", "skip"),
    "elicitation": ("answer", "decline", "skip"),
    "sign_in": ("answer", "decline", "skip"),
}
_WITH_QUESTION: Final = {"elicitation", "sign_in"}
# This choice is offered only if the server allows it.
_REMEMBER: Final = "chat"
_LABELS: Final = {_REMEMBER: "allow for this (c)hat"}
_SYNONYMS: Final = {"y": "allow", "yes": "allow", "n": "deny", "no": "deny"}
_REASON: Final = "Reason for the model (Enter for none): "
_DECLINED: Final = "The user declined to run this tool."
_WHAT_TO_STOP: Final = "Stop a call (its number), the (a)nswer, or nothing (Enter): "
_COUNTDOWN_FROM: Final = 3600  # seconds


class RunCoroutine(Protocol):
    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


class WaitingTurn(Protocol):
    """The members of a `ChatSession` that the loop uses for the current turn."""

    interrupted: bool

    async def stop_call(self, job: Json, /) -> None: ...
    async def pending_calls(self) -> list[Json]: ...
    async def answer_call(self, call: Json, action: Json, /) -> None: ...
    async def resume(self, skipped: Set[CallKey], /) -> Assembler: ...
    async def stop(self) -> Assembler: ...


class Approver(Protocol):
    """Asks a person. If `ask` returns None, the call is skipped. EOFError skips all calls, and KeyboardInterrupt stops
    the turn.

    `choose_call` asks which of the background calls `jobs` to stop. Each job contains the `input` of its call. The
    result None stops no call, and KeyboardInterrupt stops the turn.
    """

    def choose_call(self, jobs: Sequence[Json], /) -> Json | None: ...

    def ask(self, call: Json, remaining: int, /) -> Json | None: ...
    def notify(self, text: str, /) -> None: ...


class ApprovalLoop:
    """Asks about the waiting calls of a turn. `run` runs a coroutine of the session to its end."""

    def __init__(self, session: WaitingTurn, approver: Approver, run: RunCoroutine) -> None:
        self._session = session
        self._approver = approver
        self._run = run

    def complete(self, state: Assembler) -> Assembler:
        """Asks until the turn has ended or waits only for skipped calls, and returns the state of the turn."""
        skipped: set[CallKey] = set()
        while state.end is None:
            try:
                if self._session.interrupted and state.jobs:
                    self._stop_call(state)
                self._ask_all(skipped)
            except KeyboardInterrupt:
                print()
                return self._run(self._session.stop())
            if state.waits:
                break
            state = self._run(self._session.resume(skipped))
        return state

    def _stop_call(self, state: Assembler) -> None:
        inputs = {block.get("id"): block.get("input") for block in state.blocks}
        jobs = [job | {"input": inputs.get(job["tool_use_id"])} for job in state.jobs]
        if (job := self._approver.choose_call(jobs)) is not None:
            try:
                self._run(self._session.stop_call(job))
            except RequestRejected as error:
                self._approver.notify(explained(error))

    def _ask_all(self, skipped: set[CallKey]) -> None:
        # Reads the calls again after each answer: other people may have answered calls, and calls may have expired.
        while calls := [call for call in self._run(self._session.pending_calls()) if call_key(call) not in skipped]:
            call = calls[0]
            try:
                action = self._approver.ask(call, len(calls) - 1)
            except EOFError:
                print()
                skipped.update(map(call_key, calls))
                return
            if action is None:
                skipped.add(call_key(call))
                continue
            try:
                self._run(self._session.answer_call(call, action))
            except RequestRejected as error:
                self._approver.notify(explained(error))


# --- questions -------------------------------------------------------------------------------------------------------


class ApprovalPrompt:
    """Asks on the console. `read` prints a prompt and reads a line, or raises EOFError. `edit` returns the edited text,
    or None if the person saved no change.
    """

    def __init__(
        self,
        console: Console,
        read: Callable[[str], str],
        edit: Callable[[str], str | None],
        now: Callable[[], datetime],
    ) -> None:
        self._console = console
        self._read = read
        self._edit = edit
        self._now = now
        self._drafts: dict[str, str] = {}

    def choose_call(self, jobs: Sequence[Json]) -> Json | None:
        for number, job in enumerate(jobs, start=1):
            call = f"{one_line(job['name'])} {short_input(job['input'])}".strip()
            line = f"{number:>3}  {' · '.join(filter(None, [call, *job_notes(job)]))}"
            self._console.print(Text(line, no_wrap=True, overflow="ellipsis"))
        while True:
            try:
                choice = self._read(_WHAT_TO_STOP)
            except EOFError:
                return None
            if choice in {"a", "answer"}:
                raise KeyboardInterrupt
            if not choice:
                return None
            if choice.isdecimal() and 0 < int(choice) <= len(jobs):
                return jobs[int(choice) - 1]
            self.notify(f"answer with a number from 1 to {len(jobs)}, with a, or with Enter")

    def ask(self, call: Json, remaining: int) -> Json | None:
        """Returns the action to send to the server, or None if the person skips the call. `remaining` is the number of
        other calls that wait after this call.
        """
        self._show(call, remaining)
        choices = _CHOICES.get(call["type"], ("skip",))
        if call.get("can_remember"):
            choices = (choices[0], _REMEMBER, *choices[1:])
        while (choice := self._choose(choices)) != "skip":
            if (action := self._action(choice, call)) is not None:
                return action
        return None

    def notify(self, text: str) -> None:
        self._console.print(Text(sentence(text), "yellow"))

    def _show(self, call: Json, remaining: int) -> None:
        heading = Text("\n? ", "yellow").append(one_line(call["name"]), "bold")
        heading.append(f" {_QUESTIONS.get(call['type'], _UNKNOWN)}", "not bold default")
        remarks = [_expiry(call["expires_at"], self._now())] if call["expires_at"] else []
        remarks += [f"{remaining} more after this"] if remaining else []
        heading.append("".join(f" · {remark}" for remark in remarks), "dim")
        self._console.print(heading)
        if call["type"] in _WITH_QUESTION:
            words = [call["input"]["message"], call["input"].get("url")]
            self._console.print(Padding(Text("\n".join(printable(each) for each in words if each)), (0, 4)))
        elif call["input"]:
            self._console.print(Padding(JSONHighlighter()(Text(indented_json(call["input"]))), (0, 4)))
        else:
            self._console.print(Text("    (no arguments)", "dim"))

    def _choose(self, choices: tuple[str, ...]) -> str:
        prompt = ", ".join(_LABELS.get(choice, f"({choice[0]}){choice[1:]}") for choice in choices)
        while True:
            line = self._read(f"{prompt}? ").lower()
            matches = [choice for choice in choices if line and choice.startswith(_SYNONYMS.get(line, line))]
            if len(matches) == 1:
                return matches[0]
            self.notify(f"answer with one of: {', '.join(choices)}")

    def _action(self, choice: str, call: Json) -> Json | None:
        match choice:
            case "allow":
                return _decision("approve", call)
            case "chat":
                return _decision("approve", call) | {"remember": {"scope": "chat"}}
            case "answer":
                return self._answer(call)
            case "decline" if call["type"] in _WITH_QUESTION:
                return _decision("answer", call) | {"action": "decline"}
            case "deny":
                reason = self._read(_REASON)
                return _decision("deny", call) | ({"reason": reason} if reason else {})
            case "edit":
                return self._edited(call)
            case "result":
                return _result(call, self._read("Result: "))
            case _:
                return _result(call, f"{_DECLINED} {self._read(_REASON)}".strip()) | {"is_error": True}

    def _answer(self, call: Json) -> Json:
        """Reads a value for each member that the question asks for. An empty line omits the member."""
        schema = call["input"].get("schema")
        accepted: Json = _decision("answer", call) | {"action": "accept"}
        if schema is None:
            return accepted
        content: dict[str, Any] = {}
        for name, member in schema.get("properties", {}).items():
            hints = [str(member[key]) for key in ("description", "enum", "type") if key in member]
            line = self._read(f"{one_line(member.get('title', name))} ({one_line(', '.join(hints))}): ")
            if line:
                content[name] = _typed(line, member.get("type"))
        return accepted | {"content": content}

    def _edited(self, call: Json) -> Json | None:
        """Lets the person edit the call's input, and returns the approval. If the text is not a JSON object, returns
        None, and keeps the text as a draft for the next edit.
        """
        identity = call["tool_use_id"]
        text = self._edit(self._drafts.get(identity, indented_json(call["input"] or {})))
        if text is None:
            text = self._drafts.get(identity, "")
        if not text.strip():
            return None
        self._drafts[identity] = text
        try:
            value = json.loads(text)
        except ValueError as error:
            self.notify(f"the arguments are not valid JSON ({error}); edit them again")
            return None
        if not isinstance(value, dict):
            self.notify("the arguments must be one JSON object, {…}; edit them again")
            return None
        return _decision("approve", call) | ({} if same_json(value, call["input"]) else {"input": value})


def _typed(line: str, kind: str | None) -> Any:
    """Converts a line to a value of type `kind`. If this fails, the value stays a text, which the server refuses."""
    if kind == "boolean":
        return {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}.get(line.lower(), line)
    try:
        return int(line) if kind == "integer" else float(line) if kind == "number" else line
    except ValueError:
        return line


def _decision(kind: str, call: Json) -> Json:
    return {"type": kind, "tool_use_id": call["tool_use_id"], "input_digest": call["input_digest"]}


def _result(call: Json, output: str) -> Json:
    return {"type": "result", "tool_use_id": call["tool_use_id"], "output": output}


def _expiry(time: str, now: datetime) -> str:
    then = datetime.fromisoformat(time).astimezone(now.tzinfo)
    left = (then - now).total_seconds()
    if left <= 0:
        return "has expired"
    if left < _COUNTDOWN_FROM:
        return f"expires at {then:%H:%M:%S}, in {duration(left) if left < 60 else f'{left / 60:.0f} min'}"
    return f"expires at {then:%H:%M}" if then.date() == now.date() else f"expires on {then:%Y-%m-%d at %H:%M}"


# --- for scripts -----------------------------------------------------------------------------------------------------


def answer_commands(state: Assembler, server: str, program: str, *, token: bool) -> Iterator[str]:
    """Yields lines that describe the waiting calls, and shell commands that answer the calls. With `token`, the
    commands send $TURNSTREAM_TOKEN. `program` is the command that opens a chat.
    """
    turn, chat = state.start["turn"], state.start["chat"]
    calls = f"{len(state.actions)} calls wait" if len(state.actions) > 1 else "1 call waits"
    yield f"{calls} for a person; answer in `{program} {chat}`, or run one of the commands for each"
    header = ' -H "Authorization: Bearer $TURNSTREAM_TOKEN"' if token else ""
    url = shlex.quote(f"{server}/api/chats/{chat}/turns/{turn}/actions")
    for call in state.actions:
        until = f" (until {call['expires_at']})" if call["expires_at"] else ""
        yield f"{json_line(call['name'])} {json_line(call['input'] or {})}{until}"
        possible = [_decision("approve", call), _decision("deny", call) | {"reason": ""}]
        if call["type"] == "client":
            possible = [_result(call, "RESULT")]
        if call["type"] in _WITH_QUESTION:
            accepted: Json = {"action": "accept"} | ({} if "url" in call["input"] else {"content": {}})
            possible = [_decision("answer", call) | each for each in (accepted, {"action": "decline"})]
        for action in possible:
            yield f"  curl --json {shlex.quote(json_line({'actions': [action]}))}{header} {url}"
