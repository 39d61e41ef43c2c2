"""A turn that waits for a person, brought on: each call is asked about, the server is told, the rest is shown."""

import json
import shlex
from collections.abc import Callable, Coroutine, Iterator, Mapping, Set
from datetime import datetime
from typing import Any, Final, Protocol, TypeVar

from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.padding import Padding
from rich.text import Text

from app.terminal.assembler import Assembler, Json
from app.terminal.chat_session import Asked, asked
from app.terminal.errors import Refused
from app.terminal.text import compact, one_line, pretty, same, sentence, span

T = TypeVar("T")


class Do(Protocol):
    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


class Waiting(Protocol):
    """The turn that is watched, as a session has it."""

    async def waiting(self) -> list[Json]: ...
    async def act(self, call: Json, action: Json, /) -> None: ...
    async def go_on(self, passed: Set[Asked], /) -> Assembler: ...
    async def stop(self) -> Assembler: ...


class Person(Protocol):
    """Somebody who is asked; None leaves the call waiting, EOFError all of them, KeyboardInterrupt stops the turn."""

    def ask(self, call: Json, more: int, /) -> Json | None: ...
    def say(self, words: str, /) -> None: ...


class Attendant:
    """`do` carries out what has to do with the server."""

    def __init__(self, session: Waiting, person: Person, do: Do) -> None:
        self._session = session
        self._person = person
        self._do = do

    def attend(self, state: Assembler) -> Assembler:
        """Until the turn has ended, or waits for nothing but what the person has left waiting."""
        passed: set[Asked] = set()
        while state.end is None:
            try:
                self._ask_all(passed)
            except KeyboardInterrupt:
                print()
                return self._do(self._session.stop())
            if state.waits:
                break
            self._do(self._session.go_on(passed))
        return state

    def _ask_all(self, passed: set[Asked]) -> None:
        while calls := [call for call in self._do(self._session.waiting()) if asked(call) not in passed]:
            try:
                action = self._person.ask(calls[0], len(calls) - 1)
            except EOFError:
                print()
                passed.update(map(asked, calls))
                return
            if action is None:
                passed.add(asked(calls[0]))
            else:
                self._tell(calls[0], action)

    def _tell(self, call: Json, action: Json) -> None:
        try:
            self._do(self._session.act(call, action))
        except Refused as error:
            self._person.say(str(error))


# --- asking ---


_ASKS: Final = {"approval": "asks to run", "client": "is for you to run"}
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "approval": ("allow", "deny", "edit", "skip"),
    "client": ("result", "decline", "skip"),
}
_ALSO: Final = {"y": "allow", "yes": "allow", "n": "deny", "no": "deny"}
_DECLINED: Final = "The user declined to run this tool."
_SOON: Final = 3600  # seconds


class ReadLine(Protocol):
    """A line that is typed after `prompt`; EOFError where there is none."""

    def __call__(self, prompt: str, /) -> str: ...


class Dialogue:
    """`edit` gives a text as it was left in an editor, None where nothing was changed."""

    def __init__(
        self, console: Console, read: ReadLine, edit: Callable[[str], str | None], now: Callable[[], datetime]
    ) -> None:
        self._console = console
        self._read = read
        self._edit = edit
        self._now = now
        self._drafts: dict[str, str] = {}

    def ask(self, call: Json, more: int) -> Json | None:
        """The answer to `call`, as the server takes it; None when the call is to be left waiting. `more` wait too."""
        self._show(call, more)
        choices = _CHOICES.get(call["type"], ("skip",))
        while (choice := self._choose(choices)) != "skip":
            if (action := self._action(choice, call)) is not None:
                return action
        return None

    def say(self, words: str) -> None:
        self._console.print(Text(sentence(words), "yellow"))

    def _show(self, call: Json, more: int) -> None:
        heading = Text("\n? ", "yellow").append(one_line(call["name"]), "bold")
        heading.append(
            f" {_ASKS.get(call['type'], 'waits for something that cannot be given here')}", "not bold default"
        )
        after = [_until(call["expires_at"], self._now())] if call["expires_at"] else []
        after += [f"{more} more after this"] if more else []
        heading.append("".join(f" · {words}" for words in after), "dim")
        self._console.print(heading)
        if call["input"]:
            self._console.print(Padding(JSONHighlighter()(Text(pretty(call["input"]))), (0, 4)))
        else:
            self._console.print(Text("    (no arguments)", "dim"))

    def _choose(self, choices: tuple[str, ...]) -> str:
        prompt = ", ".join(f"({choice[0]}){choice[1:]}" for choice in choices)
        while True:
            said = self._read(f"{prompt}? ").lower()
            fitting = [choice for choice in choices if said and choice.startswith(_ALSO.get(said, said))]
            if len(fitting) == 1:
                return fitting[0]
            self.say(f"say one of: {', '.join(choices)}")

    def _action(self, choice: str, call: Json) -> Json | None:
        match choice:
            case "allow":
                return _decision("approve", call)
            case "deny":
                reason = self._read("Why not? The model is told; Enter for no reason: ")
                return _decision("deny", call) | ({"reason": reason} if reason else {})
            case "edit":
                return self._edited(call)
            case "result":
                return _result(call, self._read("Result: "))
            case _:
                reason = self._read("Why not? The model is told; Enter for no reason: ")
                return _result(call, f"{_DECLINED} {reason}".strip()) | {"is_error": True}

    def _edited(self, call: Json) -> Json | None:
        """An edit that is no JSON object is kept, to be mended."""
        identity = call["tool_use_id"]
        text = self._edit(self._drafts.get(identity, pretty(call["input"] or {})))
        if text is None:
            text = self._drafts.get(identity, "")
        if not text.strip():
            return None
        self._drafts[identity] = text
        try:
            value = json.loads(text)
        except ValueError as error:
            self.say(f"That is no JSON: {error}")
            return None
        if not isinstance(value, dict):
            self.say("arguments are one JSON object: {…}")
            return None
        return _decision("approve", call) | ({} if same(value, call["input"]) else {"input": value})


def _decision(kind: str, call: Json) -> Json:
    return {"type": kind, "tool_use_id": call["tool_use_id"], "input_digest": call["input_digest"]}


def _result(call: Json, output: str) -> dict[str, Any]:
    return {"type": "result", "tool_use_id": call["tool_use_id"], "output": output}


def _until(time: str, now: datetime) -> str:
    then = datetime.fromisoformat(time).astimezone(now.tzinfo)
    left = (then - now).total_seconds()
    if left <= 0:
        return "has expired"
    if left < _SOON:
        return f"expires at {then:%H:%M:%S}, in {span(left) if left < 60 else f'{left / 60:.0f} min'}"
    return f"expires at {then:%H:%M}" if then.date() == now.date() else f"expires on {then:%Y-%m-%d at %H:%M}"


# --- nobody to ask ---


def how_to_answer(state: Assembler, server: str, *, token: bool) -> Iterator[str]:
    """Lines for a person, or for the log of a script: what waits, and the commands that answer it."""
    turn, chat = state.start["turn"], state.start["chat"]
    calls = f"{len(state.actions)} calls wait" if len(state.actions) > 1 else "a call waits"
    yield f"{calls} for a person; `turnstream chat {chat}` asks, or answer with"
    header = ' -H "Authorization: Bearer $TURNSTREAM_TOKEN"' if token else ""
    url = shlex.quote(f"{server}/api/chats/{chat}/turns/{turn}/actions")
    for call in state.actions:
        until = f" (until {call['expires_at']})" if call["expires_at"] else ""
        yield f"{compact(call['name'])} {compact(call['input'] or {})}{until}"
        for action in _answers(call):
            yield f"  curl --json {shlex.quote(compact({'actions': [action]}))}{header} {url}"


def _answers(call: Json) -> list[Json]:
    identity = {"tool_use_id": call["tool_use_id"]}
    if call["type"] == "client":
        return [{"type": "result", **identity, "output": "RESULT"}]
    identity["input_digest"] = call["input_digest"]
    return [{"type": "approve", **identity}, {"type": "deny", **identity, "reason": ""}]
