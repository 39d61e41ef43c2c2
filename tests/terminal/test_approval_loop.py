"""The loop that asks about waiting calls and resumes the turn."""

from collections.abc import Coroutine, Sequence, Set
from typing import Any, TypeVar

from turnstream_client.assembler import Assembler
from turnstream_client.errors import RequestRejected
from turnstream_client.events import Json
from turnstream_terminal.approvals import ApprovalLoop
from turnstream_terminal.chat_session import CallKey

T = TypeVar("T")


def call(identity: str) -> Json:
    return {"tool_use_id": identity, "input_digest": f"digest of {identity}"}


def job(identity: str) -> Json:
    return {"id": identity, "tool_use_id": identity}


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    raise AssertionError("the coroutine suspended")


class Turn:
    """A session with one turn. After `resume`, each answered call has its result."""

    def __init__(self, *calls: str) -> None:
        self.state = Assembler()
        for index, identity in enumerate(calls):
            self.state.apply("block_start", {"index": index, "round": 1, "type": "tool_use", "id": identity})
            self.state.apply("block_stop", {"index": index})
        self._left = [call(identity) for identity in calls]
        self.refusals: list[RequestRejected] = []
        self.actions: list[Any] = []
        self.state.actions = self._left
        self.interrupted = False

    async def stop_call(self, job: Json) -> None:
        self.actions.append(f"stopped {job['id']}")
        if self.refusals:
            raise self.refusals.pop()

    async def pending_calls(self) -> list[Json]:
        self.state.actions = list(self._left)
        return self.state.actions

    async def answer_call(self, call: Json, action: Json) -> None:
        self.actions.append((call["tool_use_id"], action["type"]))
        if self.refusals:
            raise self.refusals.pop()
        self._left.remove(call)

    async def resume(self, skipped: Set[CallKey]) -> Assembler:
        self.actions.append("resumed")
        self.interrupted = False
        if not self._left:
            self.state.apply("turn_complete", {"stop_reason": "end_turn", "usage": {}})
        for identity in {block["id"] for block in self.state.blocks} - {one["tool_use_id"] for one in self._left}:
            self.state.blocks.append({"type": "tool_result", "round": 1, "tool_use_id": identity, "id": identity})
        return self.state

    async def stop(self) -> Assembler:
        self.actions.append("stopped")
        return self.state


class Person:
    def __init__(self, *answers: str | type[BaseException] | None) -> None:
        self._answers = list(answers)
        self.questions: list[tuple[str, int]] = []
        self.notices: list[str] = []

    def ask(self, call: Json, remaining: int) -> Json | None:
        self.questions.append((call["tool_use_id"], remaining))
        answer = self._answers.pop(0)
        if isinstance(answer, type):
            raise answer
        return None if answer is None else {"type": answer}

    def choose_call(self, jobs: Sequence[Json]) -> Json | None:
        answer = self._answers.pop(0)
        if isinstance(answer, type):
            raise answer
        return next((job for job in jobs if job["id"] == answer), None)

    def notify(self, text: str) -> None:
        self.notices.append(text)


def complete(turn: Turn, person: Person) -> Assembler:
    return ApprovalLoop(turn, person, run).complete(turn.state)


def test_calls_are_asked_about_one_by_one_and_each_answer_is_sent_at_once() -> None:
    turn, person = Turn("a", "b"), Person("approve", "deny")
    assert complete(turn, person).end == "turn_complete"
    assert person.questions == [("a", 1), ("b", 0)]
    assert turn.actions == [("a", "approve"), ("b", "deny"), "resumed"]


def test_a_skipped_call_is_not_asked_about_again_and_the_rest_is_shown() -> None:
    turn, person = Turn("a", "b"), Person(None, "approve")
    assert complete(turn, person).waits
    assert turn.actions == [("b", "approve"), "resumed"]
    assert len(person.questions) == 2


def test_ctrl_d_skips_all_calls_and_returns_at_once() -> None:
    turn, person = Turn("a", "b"), Person(EOFError)
    assert complete(turn, person).waits
    assert turn.actions == []


def test_a_rejected_answer_is_reported_and_the_call_is_asked_about_again() -> None:
    turn, person = Turn("a"), Person("approve", "deny")
    turn.refusals = [RequestRejected(422, "room is a number")]
    assert complete(turn, person).end == "turn_complete"
    assert person.notices == ["room is a number"]
    assert turn.actions == [("a", "approve"), ("a", "deny"), "resumed"]


def test_ctrl_c_at_a_question_stops_the_turn() -> None:
    turn = Turn("a", "b")
    complete(turn, Person("approve", KeyboardInterrupt))
    assert turn.actions == [("a", "approve"), "stopped"]


def test_a_turn_that_has_ended_is_left_alone() -> None:
    turn = Turn()
    turn.state.apply("turn_complete", {"stop_reason": "end_turn", "usage": {}})
    complete(turn, Person())
    assert turn.actions == []


def test_an_interrupt_stops_the_chosen_call_or_nothing_and_the_turn_continues() -> None:
    for chosen, done in (("b", ["stopped b", "resumed"]), (None, ["resumed"])):
        turn, person = Turn(), Person(chosen)
        turn.state.jobs, turn.interrupted = [job("a"), job("b")], True
        turn.refusals = [RequestRejected(409, "it is over")]
        assert ApprovalLoop(turn, person, run).complete(turn.state).end == "turn_complete"
        assert turn.actions == done
        assert len(person.notices) == len(done) - 1


def test_an_interrupt_may_stop_the_turn_in_place_of_a_call() -> None:
    turn = Turn()
    turn.state.jobs, turn.interrupted = [job("a")], True
    ApprovalLoop(turn, Person(KeyboardInterrupt), run).complete(turn.state)
    assert turn.actions == ["stopped"]
