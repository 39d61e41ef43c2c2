"""What a person's answer tells the model."""

import pytest

from app.domain.asks import Ask, AskAnswer
from app.engine.answers import outcome_of_answer, with_approval
from app.tools.tool import File, Outcome

ASK = Ask(1, "a", "pay", "approval", "0" * 64, 1)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (AskAnswer("result", "3 cats"), Outcome("3 cats")),
        (AskAnswer("result"), Outcome("The call succeeded and returned nothing.")),
        (AskAnswer("result", "no graph", is_error=True), Outcome("no graph", is_error=True)),
    ],
)
def test_the_result_of_a_client_tool_is_told_as_it_came(answer: AskAnswer, outcome: Outcome) -> None:
    assert outcome_of_answer(ASK, answer) == outcome


@pytest.mark.parametrize(
    ("answer", "text", "decision"),
    [
        (AskAnswer("deny"), "The user did not allow this call of pay.", "denied"),
        (
            AskAnswer("deny", "too dear"),
            "The user did not allow this call of pay. The user says: too dear",
            "denied",
        ),
        (AskAnswer("expired"), "This call was not run: nobody answered in time.", "expired"),
        (
            AskAnswer("superseded"),
            "This call was not run: the user said something else instead of answering.",
            "superseded",
        ),
    ],
)
def test_a_call_that_nobody_allowed_is_refused_and_the_model_is_told_why(
    answer: AskAnswer, text: str, decision: str
) -> None:
    outcome = outcome_of_answer(ASK, answer)
    assert (outcome.text, outcome.kind, outcome.is_error) == (text, "refused", True)
    assert outcome.notes == {"approval": {"decision": decision}}


def test_an_approved_call_is_never_answered_without_a_run() -> None:
    with pytest.raises(AssertionError, match="is run"):
        outcome_of_answer(ASK, AskAnswer("approve"))


def test_a_call_that_was_allowed_as_it_is_tells_the_model_nothing_of_it() -> None:
    outcome = Outcome("paid", notes={"seconds": 0.1})
    noted = {"seconds": 0.1, "approval": {"decision": "approve"}}
    assert with_approval(outcome, None) == Outcome("paid", notes=noted)


def test_a_changed_input_is_told_to_the_model_and_noted() -> None:
    told = with_approval(Outcome("paid", is_error=True, notes={"seconds": 0.1}), '{"euros":1}')
    assert told.text == 'The user changed the input to {"euros":1} before allowing the call.\n\npaid'
    assert told.is_error
    assert told.notes == {"seconds": 0.1, "approval": {"decision": "approve", "input": '{"euros":1}'}}


def test_what_a_person_changed_is_said_before_what_was_returned() -> None:
    said = "The user changed the input to {} before allowing the call."
    assert with_approval(Outcome("", more=(File(b"x"), "so")), "{}").parts == (said, File(b"x"), "so")


def test_a_clients_result_that_is_a_picture_needs_no_words() -> None:
    layout = '{"type":"tool_result","content":[]}'
    assert outcome_of_answer(ASK, AskAnswer("result", layout=layout)) == Outcome("", layout=layout)
