"""Which calls a person is asked about, and when the turn is shown on."""

from collections.abc import Coroutine, Set
from typing import Any, TypeVar

from app.terminal.approvals import Attendant
from app.terminal.assembler import Assembler, Json
from app.terminal.chat_session import Asked
from app.terminal.errors import Refused

T = TypeVar("T")


def call(identity: str) -> Json:
    return {"tool_use_id": identity, "input_digest": f"digest of {identity}"}


def do(work: Coroutine[Any, Any, T]) -> T:
    """None of the work waits for anything."""
    try:
        work.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    raise AssertionError("it waits")


class Turn:
    """A session with one turn: a call that is answered has its result when the turn is shown on."""

    def __init__(self, *calls: str) -> None:
        self.state = Assembler()
        for index, identity in enumerate(calls):
            self.state.apply("block_start", {"index": index, "round": 1, "type": "tool_use", "id": identity})
            self.state.apply("block_stop", {"index": index})
        self._left = [call(identity) for identity in calls]
        self.refusals: list[Refused] = []
        self.did: list[Any] = []
        self.state.actions = self._left

    async def waiting(self) -> list[Json]:
        self.state.actions = list(self._left)
        return self.state.actions

    async def act(self, asked: Json, action: Json) -> None:
        self.did.append((asked["tool_use_id"], action["type"]))
        if self.refusals:
            raise self.refusals.pop()
        self._left.remove(asked)

    async def go_on(self, passed: Set[Asked]) -> Assembler:
        self.did.append("on")
        if not self._left:
            self.state.apply("turn_complete", {"stop_reason": "end_turn", "usage": {}})
        for identity in {block["id"] for block in self.state.blocks} - {one["tool_use_id"] for one in self._left}:
            self.state.blocks.append({"type": "tool_result", "round": 1, "tool_use_id": identity, "id": identity})
        return self.state

    async def stop(self) -> Assembler:
        self.did.append("stopped")
        return self.state


class Person:
    def __init__(self, *answers: str | type[BaseException] | None) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, int]] = []
        self.told: list[str] = []

    def ask(self, call: Json, more: int) -> Json | None:
        self.asked.append((call["tool_use_id"], more))
        said = self._answers.pop(0)
        if isinstance(said, type):
            raise said
        return None if said is None else {"type": said}

    def say(self, words: str) -> None:
        self.told.append(words)


def attend(turn: Turn, person: Person) -> Assembler:
    return Attendant(turn, person, do).attend(turn.state)


def test_calls_are_asked_about_one_by_one_and_each_answer_is_told_at_once() -> None:
    turn, person = Turn("a", "b"), Person("approve", "deny")
    assert attend(turn, person).end == "turn_complete"
    assert person.asked == [("a", 1), ("b", 0)]
    assert turn.did == [("a", "approve"), ("b", "deny"), "on"]


def test_what_is_left_waiting_is_not_asked_about_again_and_the_rest_is_shown() -> None:
    turn, person = Turn("a", "b"), Person(None, "approve")
    assert attend(turn, person).waits
    assert turn.did == [("b", "approve"), "on"]
    assert len(person.asked) == 2


def test_whoever_leaves_everything_waiting_gets_the_prompt_back_at_once() -> None:
    turn, person = Turn("a", "b"), Person(EOFError)
    assert attend(turn, person).waits
    assert turn.did == []


def test_a_refused_answer_is_told_and_the_call_is_asked_about_again_while_it_waits() -> None:
    turn, person = Turn("a"), Person("approve", "deny")
    turn.refusals = [Refused(422, "room is a number")]
    assert attend(turn, person).end == "turn_complete"
    assert person.told == ["room is a number"]
    assert turn.did == [("a", "approve"), ("a", "deny"), "on"]


def test_ctrl_c_at_a_question_stops_the_turn() -> None:
    turn = Turn("a", "b")
    attend(turn, Person("approve", KeyboardInterrupt))
    assert turn.did == [("a", "approve"), "stopped"]


def test_a_turn_that_has_ended_is_left_alone() -> None:
    turn = Turn()
    turn.state.apply("turn_complete", {"stop_reason": "end_turn", "usage": {}})
    attend(turn, Person())
    assert turn.did == []
