"""Decisions in the SDK's messages: results of client tools and approvals, for calls that wait."""

from collections.abc import Mapping
from typing import Any

from app.api.codec import output_text
from app.domain.asks import Ask, AskAnswer
from app.domain.errors import RequestRefused
from app.domain.turns import Turn
from app.kit.text import unstorable
from app.storage.actions import Decision

Json = dict[str, Any]


def decisions_in(calls: Mapping[str, Json], turn: Turn) -> list[Decision]:
    """Decisions about the open asks of the turn. `calls` are the tool parts of a message by the id of their call."""
    decisions: list[Decision] = []
    for ask in turn.asks:
        part = calls.get(ask.tool_use_id)
        if ask.answer is None and part is not None:
            decision = _result(ask, part) if ask.kind == "client" else _approval(ask, part)
            if decision is not None:
                decisions.append(decision)
    return decisions


def _result(ask: Ask, part: Json) -> Decision | None:
    if part.get("state") == "output-available":
        text = output_text(part.get("output"))
        return Decision(ask.tool_use_id, None, AskAnswer("result", _storable(text)), "messages")
    if part.get("state") == "output-error":
        error = AskAnswer("result", _storable(str(part.get("errorText", ""))), is_error=True)
        return Decision(ask.tool_use_id, None, error, "messages")
    return None


def _approval(ask: Ask, part: Json) -> Decision | None:
    approval = part.get("approval")
    if not isinstance(approval, dict) or not isinstance(approval.get("approved"), bool):
        return None
    reason = _storable(str(approval.get("reason") or ""))
    answer = AskAnswer("approve") if approval["approved"] else AskAnswer("deny", reason)
    _, _, digest = str(approval.get("id", "")).rpartition(":")
    return Decision(ask.tool_use_id, digest, answer, "messages")


def _storable(text: str) -> str:
    if problem := unstorable(text):
        raise RequestRefused(f"`messages` {problem}, which cannot be stored; remove it.", field="messages")
    return text
