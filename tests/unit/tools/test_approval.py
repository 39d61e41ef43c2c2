import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.tools.doubles import SCHEMA, Logged, Script
from turnstream.domain.turns import HttpCall, ToolSpec
from turnstream.tools.policy import Policy
from turnstream.tools.toolset import Toolset


def over_a_hundred(sent: Mapping[str, Any]) -> bool:
    return bool(sent["amount"] > 100)


def toolset(policy: Policy) -> Toolset:
    return Toolset([Script(ToolSpec("pay", "Pay.", SCHEMA), policy)])


@pytest.mark.parametrize("sent", ["{}", '{"amount": 1}', "", "[", "null"])
def test_always_and_never_do_not_look_at_the_input(sent: str) -> None:
    assert toolset(Policy(approval="always")).needs_approval("pay", sent)
    assert not toolset(Policy(approval="never")).needs_approval("pay", sent)


@pytest.mark.parametrize(("amount", "needed"), [(100, False), (101, True)])
def test_a_function_of_the_input_decides(amount: int, needed: bool, logged: Logged) -> None:
    tools = toolset(Policy(approval=over_a_hundred))
    assert tools.needs_approval("pay", json.dumps({"amount": amount})) is needed
    assert logged == []


@pytest.mark.parametrize(
    "sent", ["", "{}", '{"amount": "much"}', '{"amount": 1', "[1]", "null", '{"amount": null}', "[" * 100_000]
)
def test_an_undecidable_input_needs_an_approval_and_is_logged(sent: str, logged: Logged) -> None:
    assert toolset(Policy(approval=over_a_hundred)).needs_approval("pay", sent)
    assert [(line["event"], line["tool"]) for line in logged] == [("tool.approval_undecided", "pay")]


@given(st.text())
def test_only_a_decided_input_needs_no_approval(sent: str) -> None:
    if not toolset(Policy(approval=over_a_hundred)).needs_approval("pay", sent):
        assert json.loads(sent)["amount"] <= 100


def test_a_tool_that_does_not_exist_needs_none_and_has_the_default_policy() -> None:
    tools = toolset(Policy(approval="always"))
    assert tools.policy("pay") == Policy(approval="always")
    assert tools.policy("sing") == Policy()
    assert not tools.needs_approval("sing", "{}")


def test_a_declared_tool_keeps_its_policy_under_the_name_of_another() -> None:
    declared = [ToolSpec("pay", "Pay.", SCHEMA, http=HttpCall("https://pay.example"))]
    tools = Toolset(
        [Script(ToolSpec("pay", "Pay.", SCHEMA), Policy(approval="always"))],
        declared=lambda spec: Script(spec, Policy(timeout=1.0)),
    )
    assert tools.policy("pay", declared) == Policy(timeout=1.0)
    assert not tools.needs_approval("pay", "{}", declared)
    assert tools.needs_approval("pay", "{}")
