import shlex

import msgspec

from turnstream_client.assembler import Assembler
from turnstream_client.events import Json
from turnstream_terminal.approvals import answer_commands

TURN = "http://127.0.0.1:8000/api/chats/c/turns/t/actions"


def lines(*calls: Json, token: bool = False) -> list[str]:
    state = Assembler()
    state.start = {"turn": "t", "chat": "c"}
    state.actions = list(calls)
    return list(answer_commands(state, "http://127.0.0.1:8000", "turnstream chat", token=token))


def call(kind: str, **more: object) -> Json:
    return {
        "type": kind,
        "tool_use_id": "it's",
        "name": "x",
        "input": {},
        "input_digest": "d",
        "expires_at": None,
    } | more


def test_each_waiting_call_is_listed_with_a_shell_command_for_each_answer() -> None:
    first, described, *commands = lines(call("approval", input={"to": "a\x1b"}, expires_at="2026-05-01T12:00:00Z"))
    assert first == "1 call waits for a person; answer in `turnstream chat c`, or run one of the commands for each"
    assert described == r'x {"to": "a\u001b"} (until 2026-05-01T12:00:00Z)'
    words = [shlex.split(command) for command in commands]
    assert [word[:2] + word[3:] for word in words] == [["curl", "--json", TURN]] * 2
    decision = {"tool_use_id": "it's", "input_digest": "d"}
    assert [msgspec.json.decode(word[2]) for word in words] == [
        {"actions": [{"type": "approve", **decision}]},
        {"actions": [{"type": "deny", **decision, "reason": ""}]},
    ]


def test_a_client_tool_is_answered_with_a_result() -> None:
    _, described, command = lines(call("client"))
    assert described == "x {}"
    assert msgspec.json.decode(shlex.split(command)[2]) == {
        "actions": [{"type": "result", "tool_use_id": "it's", "output": "RESULT"}]
    }


def test_a_token_is_named_and_not_shown() -> None:
    *_, command = lines(call("client"), call("client"), token=True)
    assert '-H "Authorization: Bearer $TURNSTREAM_TOKEN"' in command
