"""Parses the demo's commands: lines of a message that begin with a slash."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Final, Literal, get_args

# The ways in which a model call can fail on command.
Failure = Literal[
    "rate_limit",
    "overloaded",
    "server_error",
    "bad_request",
    "too_long",
    "refused",
    "reset",
    "truncation",
    "error_event",
    "silence",
]
FAILURES: Final[Sequence[Failure]] = get_args(Failure)

HELP: Final = f"""\
- `/call NAME {{"argument": "value"}}` calls a tool; one line for each round
- `/parallel` makes all calls of the message in one round
- `/think WORDS` thinks before it answers
- `/say WORDS` answers with these words and nothing else
- `/long N` answers with N words
- `/fail KIND TIMES` makes model calls of this turn fail, all of them or so many: {", ".join(FAILURES)}
- `/help` lists these lines"""

_COMMAND = re.compile(r"/(call|parallel|think|say|long|fail|help)\b[ \t]*(.*)")
_CALL = re.compile(r"(\S+)\s*(.*)")
_MOST_WORDS = 100_000


@dataclass(frozen=True, slots=True)
class ToolCommand:
    """The command to call a tool. `input` is JSON text, or deliberately invalid text."""

    name: str
    input: str


@dataclass(frozen=True, slots=True)
class DemoCommands:
    """The commands in a message. `failure` applies to the first `times` model calls, or to all calls if `times` is
    None. `mistake` describes an error in the commands.
    """

    calls: Sequence[ToolCommand] = ()
    parallel: bool = False
    thought: str | None = None
    said: str | None = None
    words: int = 0
    failure: Failure | None = None
    times: int | None = None
    mistake: str | None = None


def commands_of(message: str) -> DemoCommands | None:
    """Parses the commands in a message. Returns None if no line is a command."""
    # The message is read line by line: splitting megabytes at once would block all other threads.
    lines = StringIO(message, newline=None)
    found = [match.groups() for line in lines if (match := _COMMAND.fullmatch(line.strip()))]
    if not found:
        return None
    calls: list[ToolCommand] = []
    parallel, thought, said, words, mistake = False, None, None, 0, None
    failure: Failure | None = None
    times: int | None = None
    for name, rest in found:
        match name:
            case "call":
                if call := _CALL.fullmatch(rest):
                    calls.append(ToolCommand(call[1], call[2] or "{}"))
                else:
                    mistake = "`/call` needs the name of a tool."
            case "parallel":
                parallel = True
            case "think":
                thought = rest or "I was asked to think."
            case "say":
                said = rest
            case "long" if rest.isdecimal() and int(rest) <= _MOST_WORDS:
                words = int(rest)
            case "long":
                mistake = f"`/long` needs a number of words up to {_MOST_WORDS:,}."
            case "fail":
                kind, _, count = rest.partition(" ")
                failure = next((each for each in FAILURES if each == kind), None)
                times = int(count) if count.isdecimal() else None
                if failure is None or (count and times is None):
                    failure, mistake = None, f"`/fail` needs one of {', '.join(FAILURES)}, and a number or nothing."
            case _:
                said = HELP
    return DemoCommands(calls, parallel, thought, said, words, failure, times, mistake)
