"""What is said of calls that wait where nobody can be asked."""

import shlex
from collections.abc import Iterator

from app.terminal.assembler import Assembler, Json
from app.terminal.exact import compact


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
