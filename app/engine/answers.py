"""What a person's answer tells the model."""

from dataclasses import replace
from typing import assert_never

from app.domain.asks import Ask, AskAnswer
from app.tools.tool import RETURNED_NOTHING, Outcome

_SUPERSEDED = "This call was not run: the user said something else instead of answering."


def outcome_of_answer(ask: Ask, answer: AskAnswer) -> Outcome:
    """The outcome of a call that is not run here: its tool runs at the client, or nobody allowed it."""
    match answer.kind:
        case "result":
            empty = "" if answer.layout else RETURNED_NOTHING
            return Outcome(answer.text or empty, is_error=answer.is_error, layout=answer.layout)
        case "deny":
            because = f" The user says: {answer.text}" if answer.text else ""
            return _refused(f"The user did not allow this call of {ask.name}.{because}", "denied")
        case "expired":
            return _refused("This call was not run: nobody answered in time.", "expired")
        case "superseded":
            return _refused(_SUPERSEDED, "superseded")
        case "approve":
            raise AssertionError("an approved call is run")
        case _:
            assert_never(answer.kind)


def with_approval(outcome: Outcome, edited: str | None) -> Outcome:
    """The outcome of a call that was allowed, perhaps with another input than the model's: then the model is told."""
    if edited is None:
        return replace(outcome, notes={**outcome.notes, "approval": {"decision": "approve"}})
    told = f"The user changed the input to {edited} before allowing the call."
    notes = {**outcome.notes, "approval": {"decision": "approve", "input": edited}}
    return replace(outcome.saying(told, *outcome.parts), notes=notes)


def _refused(text: str, decision: str) -> Outcome:
    return Outcome(text, kind="refused", notes={"approval": {"decision": decision}})
