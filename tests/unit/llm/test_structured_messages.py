"""The messages that follow an output that a model wrote as text."""

from dataclasses import replace

from tests.support.legal.anthropic import message_problems
from tests.support.model_requests import REQUEST, assistant, rendered, text, thinking, user
from turnstream.domain.blocks import ACCEPTED, REJECTED, Block
from turnstream.domain.turns import OutputSpec, Turn
from turnstream.llm.conversation.messages import NO_OUTPUT, NO_TEXT, build_messages

ASKED = user(text("When was it?"))


def verdict(data: str) -> Block:
    return Block(0, 1, 1, "verdict", "The output is not right.", data)


def structured(*rounds: list[Block], native: bool = True) -> Turn:
    output = OutputSpec("{}", native=native)
    return assistant(*rounds, request=replace(REQUEST, output=output))


def texts_of(*path: Turn) -> list[str]:
    messages = rendered(build_messages(path))
    assert message_problems(messages) == []
    return [block["text"] for block in messages[-1]["content"]]


def test_the_fault_of_an_output_is_a_user_message() -> None:
    assert texts_of(ASKED, structured([text('{"year":1}'), verdict(REJECTED)])) == ["The output is not right."]


def test_an_output_that_was_taken_needs_no_word() -> None:
    answered = structured([text('{"year":1}'), verdict(ACCEPTED)])
    assert texts_of(ASKED, answered, user(text("Thanks.")), assistant()) == ["Thanks."]


def test_a_reply_without_an_output_is_asked_for_one_in_the_words_of_its_way() -> None:
    assert texts_of(ASKED, structured([thinking("Hm.")]))[-1] == NO_TEXT
    assert texts_of(ASKED, structured([text("In 1969.")], native=False)) == [NO_OUTPUT.format("output")]
