"""A request for a summary contains the turns, in which long results are truncated, and the prompt."""

from dataclasses import replace
from uuid import UUID

from tests.support.turns import call, result, sealed, text, turn_of
from turnstream.llm.conversation.messages import SUMMARISE, messages_to_summarise


def test_long_results_are_cut_and_the_wish_comes_last() -> None:
    seen = replace(result(1), text="x" * 5000)
    said = replace(turn_of(text(content="Look", round=0), status="complete"), role="user", request=None, id=UUID(int=7))
    answered = replace(turn_of(call(), seen, text(2, 2), rounds=[sealed(1), sealed(2, "end_turn")]), id=UUID(int=8))
    running = turn_of()
    messages = messages_to_summarise([said, answered, replace(said, id=UUID(int=9)), running], UUID(int=8))
    assert [message.role for message in messages] == ["user", "assistant", "user", "assistant", "user"]
    assert messages[2].blocks[0].text == "x" * 2000 + "\n[…]"
    assert messages[-1].blocks[-1].text == SUMMARISE
