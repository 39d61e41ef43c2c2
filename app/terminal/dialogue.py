"""What a person is asked about a call that waits, and what is made of the answer."""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, Protocol

from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.padding import Padding
from rich.text import Text

from app.terminal.assembler import Json
from app.terminal.exact import pretty, same
from app.terminal.parts import one_line, sentence, span

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
