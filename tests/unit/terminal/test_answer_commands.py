import shlex

import msgspec

from app.terminal.approvals import how_to_answer
from app.terminal.assembler import Assembler, Json

TURN = "http://127.0.0.1:8000/api/chats/c/turns/t/actions"


def lines(*calls: Json, token: bool = False) -> list[str]:
    state = Assembler()
    state.start = {"turn": "t", "chat": "c"}
    state.actions = list(calls)
    return list(how_to_answer(state, "http://127.0.0.1:8000", token=token))


def call(kind: str, **more: object) -> Json:
    return {
        "type": kind,
        "tool_use_id": "it's",
        "name": "x",
        "input": {},
        "input_digest": "d",
        "expires_at": None,
    } | more


def test_each_call_is_told_with_a_command_for_each_answer_that_a_shell_takes_as_it_is() -> None:
    first, told, *commands = lines(call("approval", input={"to": "a\x1b"}, expires_at="2026-05-01T12:00:00Z"))
    assert first == "a call waits for a person; `turnstream chat c` asks, or answer with"
    assert told == r'x {"to": "a\u001b"} (until 2026-05-01T12:00:00Z)'
    words = [shlex.split(command) for command in commands]
    assert [word[:2] + word[3:] for word in words] == [["curl", "--json", TURN]] * 2
    decision = {"tool_use_id": "it's", "input_digest": "d"}
    assert [msgspec.json.decode(word[2]) for word in words] == [
        {"actions": [{"type": "approve", **decision}]},
        {"actions": [{"type": "deny", **decision, "reason": ""}]},
    ]


def test_a_tool_of_the_client_wants_a_result() -> None:
    _, told, command = lines(call("client"))
    assert told == "x {}"
    assert msgspec.json.decode(shlex.split(command)[2]) == {
        "actions": [{"type": "result", "tool_use_id": "it's", "output": "RESULT"}]
    }


def test_a_token_is_named_and_not_shown() -> None:
    *_, command = lines(call("client"), call("client"), token=True)
    assert '-H "Authorization: Bearer $TURNSTREAM_TOKEN"' in command
