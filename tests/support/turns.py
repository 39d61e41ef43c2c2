"""Rows for tests, built from those values that matter to a test."""

from collections.abc import Sequence
from uuid import UUID

from turnstream.domain.asks import AnswerKind, Ask, AskAnswer, AskKind, Steer, digest_of, elicitation_id
from turnstream.domain.blocks import Block
from turnstream.domain.kinds import TEXT, TOOL_RESULT, TOOL_USE, USER_TEXT
from turnstream.domain.rounds import Round
from turnstream.domain.turns import Limits, Status, Turn, TurnRequest

TURN = UUID(int=1)
CHAT = UUID(int=2)
USER_TURN = UUID(int=3)


def turn_of(
    *blocks: Block,
    rounds: Sequence[Round] = (),
    limits: Limits | None = None,
    status: Status = "running",
    attempt: int = 1,
    recoveries: int = 0,
    asks: Sequence[Ask] = (),
    steers: Sequence[Steer] = (),
) -> Turn:
    return Turn(
        id=TURN,
        chat_id=CHAT,
        parent_id=USER_TURN,
        role="assistant",
        status=status,
        attempt=attempt,
        recoveries=recoveries,
        request=TurnRequest("model", limits=limits or Limits()),
        rounds=tuple(rounds),
        blocks=blocks,
        asks=tuple(asks),
        steers=tuple(steers),
    )


def sealed(number: int = 1, stop_reason: str = "tool_use", attempt: int = 1) -> Round:
    return Round(number, attempt, messages=number, stop_reason=stop_reason, sealed_by=attempt)


def begun(number: int = 1, attempt: int = 1) -> Round:
    return Round(number, attempt, messages=number)


def voided(number: int = 1, attempt: int = 1) -> Round:
    return Round(number, attempt, messages=number, stop_reason="voided")


def text(index: int = 0, round: int = 1, content: str = "ahoy", attempt: int = 1, interrupted: bool = False) -> Block:
    return Block(index, round, attempt, TEXT, content, interrupted=interrupted)


def call(index: int = 0, round: int = 1, id: str = "a", attempt: int = 1, interrupted: bool = False) -> Block:
    return Block(index, round, attempt, TOOL_USE, "{}", tool_use_id=id, name="look", interrupted=interrupted)


def result(index: int = 1, round: int = 1, id: str = "a", attempt: int = 1, is_error: bool = False) -> Block:
    return Block(index, round, attempt, TOOL_RESULT, "seen", tool_use_id=id, name="look", is_error=is_error)


def words(index: int = 0, round: int = 1, content: str = "faster", attempt: int = 1) -> Block:
    return Block(index, round, attempt, USER_TEXT, content)


def elicitation(id: str = "a", round: int = 1, attempt: int = 1) -> Ask:
    """Returns a question that the tool asks while call `id` runs."""
    question = '{"message": "How many?"}'
    return Ask(round, elicitation_id(id, attempt, 1), "look", "elicitation", "0" * 64, attempt, question=question)


def sign_in(id: str = "a", round: int = 1, attempt: int = 1) -> Ask:
    """Returns an ask: the call `id` waits until its owner has signed in."""
    question = '{"message": "Sign in.", "server": "calendar"}'
    return Ask(round, elicitation_id(id, attempt, 1), "look", "sign_in", "0" * 64, attempt, question=question)


def ask(
    id: str = "a", round: int = 1, answer: AnswerKind | None = None, attempt: int = 1, kind: AskKind = "client"
) -> Ask:
    return Ask(
        round,
        id,
        "look",
        kind,
        digest_of(call(round=round, id=id)),
        attempt,
        answer=AskAnswer(answer) if answer else None,
    )


def steer(number: int = 1, content: str = "faster") -> Steer:
    return Steer(UUID(int=number), (Block(0, 0, 0, TEXT, content),))
