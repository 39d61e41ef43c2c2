from dataclasses import fields
from typing import Any

import pytest

from tests.unit.tools.doubles import SCHEMA
from turnstream.domain.turns import ToolSpec
from turnstream.tools.policy import Breaker, Policy, Summarise, policy_of
from turnstream.tools.tool import tool


async def look(number: int) -> int:
    """Look."""
    return number


def test_the_decorator_makes_the_policy() -> None:
    chosen: dict[str, Any] = {
        "timeout": 1.5,
        "background": False,
        "reports": False,
        "concurrency": 2,
        "calls_per_turn": 3,
        "max_result_chars": 4,
        "retries": 5,
        "memo": True,
        "cache_seconds": 9.0,
        "results": "text",
        "summarise": Summarise(above=5, model="small"),
        "fallback": "other",
        "breaker": Breaker(failures=6, pause=7.0),
        "approval": "always",
        "approval_expiry": 8.0,
        "approval_scope": "call",
        "approvers": ("role:manager",),
    }
    made = tool(read_only=True, **chosen)(look).policy
    assert {field.name: getattr(made, field.name) for field in fields(Policy)} == chosen
    assert tool()(look).policy == Policy()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"timeout": 0.0}, "look: `timeout` must be a number of seconds above 0, not 0.0"),
        ({"timeout": -1}, "not -1"),
        ({"timeout": float("nan")}, "not nan"),
        ({"timeout": float("inf")}, "not inf"),
        ({"concurrency": 0}, "look: `concurrency` must be at least 1, or None for no limit, not 0"),
        ({"calls_per_turn": 0}, "`calls_per_turn` must be at least 1"),
        ({"max_result_chars": -5}, "`max_result_chars` must be at least 1"),
        ({"retries": -1, "retry_safe": True}, r"look: `retries` must be 0 \(none\) or more, not -1"),
        ({"retries": 1}, "look cannot have `retries`: declare it `read_only` or `retry_safe`, if it is"),
        ({"memo": True}, "look cannot have a `memo`"),
        ({"cache_seconds": 5.0, "retry_safe": True}, "look cannot have `cache_seconds`: declare it `read_only`"),
        ({"cache_seconds": -1.0, "read_only": True}, "`cache_seconds` must be a number of seconds above 0"),
        ({"memo": True, "retry_safe": True}, "look cannot have a `memo`"),
        ({"fallback": "look"}, "look cannot be its own `fallback`"),
        ({"summarise": Summarise(above=5), "max_result_chars": 0}, "`max_result_chars` must be at least 1"),
        ({"results": "xml"}, '`results` must be "json" or "text", not \'xml\''),
        ({"approval": "sometimes"}, '`approval` must be "never", "always" or a function of the input'),
        ({"approval_expiry": 60.0}, "`approval_expiry` needs an `approval`"),
        ({"approval_scope": "turn"}, '`approval_scope` must be "call" or "chat"'),
        ({"approval_expiry": 0.0, "approval": "always"}, "`approval_expiry` must be a number of seconds above 0"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_at_once(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        tool(**options)(look)


def test_a_policy_that_does_not_exist_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="'timeouts'"):
        tool(timeouts=3)(look)  # type: ignore[call-overload]


def test_retries_and_memo_can_be_switched_off_for_any_tool() -> None:
    assert tool(retries=0, memo=False)(look).policy == Policy(retries=0, memo=False)
    assert tool(retries=3, retry_safe=True)(look).policy.retries == 3


@pytest.mark.parametrize(("failures", "pause"), [(0, 1.0), (1, 0.0), (1, -1.0)])
def test_a_breaker_that_makes_no_sense_is_refused_at_once(failures: int, pause: float) -> None:
    with pytest.raises(ValueError, match=r"^`breaker\."):
        Breaker(failures, pause)


def test_a_policy_made_without_the_decorator_is_checked_too() -> None:
    with pytest.raises(ValueError, match="mail cannot have `retries`"):
        policy_of(ToolSpec("mail", "Send mail.", SCHEMA), {"retries": 2})


def test_a_summary_of_nothing_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"`summarise\.above` must be at least 1, not 0"):
        Summarise(0)
