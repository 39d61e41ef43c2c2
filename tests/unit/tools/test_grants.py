"""Grants: the calls that a remembered approval covers. If the server is in doubt, a call is not covered."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.tools.doubles import SCHEMA, Script
from turnstream.domain.asks import Grant
from turnstream.domain.turns import HttpCall, ToolSpec
from turnstream.tools.grants import covers, digest_of_tool, meets
from turnstream.tools.policy import Policy
from turnstream.tools.toolset import Toolset

SPEC = ToolSpec("pay", "Pay.", SCHEMA)
DIGEST = digest_of_tool(SPEC, SPEC)


def grant(when: dict[str, Any] | None = None) -> Grant:
    condition = None if when is None else json.dumps(when)
    return Grant(uuid4(), "pay", DIGEST, condition, uuid4(), "a", datetime.now(UTC))


def test_without_a_condition_any_input_of_the_same_tool_is_covered() -> None:
    assert covers(grant(), "pay", DIGEST, "")
    assert covers(grant(), "pay", DIGEST, "not JSON: the tool refuses it")
    assert not covers(grant(), "pays", DIGEST, "{}")
    assert not covers(grant(), "pay", None, "{}")


@pytest.mark.parametrize(
    "changed",
    [
        replace(SPEC, description="Pay twice."),
        replace(SPEC, input_schema='{"type":"object","required":["n"]}'),
        replace(SPEC, read_only=True),
        replace(SPEC, http=HttpCall("https://pay.example")),
        replace(SPEC, http=HttpCall("https://pay.example", headers={"x": "1"})),
    ],
)
def test_a_changed_tool_is_another_tool_whether_the_turn_or_the_server_has_the_new_one(changed: ToolSpec) -> None:
    digests = {digest_of_tool(SPEC, SPEC), digest_of_tool(changed, changed), digest_of_tool(SPEC, changed)}
    assert len(digests) == 3


def test_the_digests_of_stored_grants_stay_valid() -> None:
    """If a tool gets a new member, the digest must not contain the member: otherwise people are asked again for each
    remembered approval.
    """
    plain = ToolSpec("pay", "Pay.", '{"type":"object"}')
    call = HttpCall("https://pay.example", headers={"x": "1"})
    declared = replace(plain, read_only=True, http=call, expiry=2.5)
    assert digest_of_tool(plain, plain) == "a54cda0527271cb7585511de672e5614bea6ec5f223f517d789cfe1d81c10a96"
    assert digest_of_tool(declared, plain) == "ebb2d2c4da5c63e43a1a7d563c939d690fe63c3c5577705d5d30c123532d216d"
    assert digest_of_tool(replace(plain, deferred=True), plain) == digest_of_tool(plain, plain)


@pytest.mark.parametrize(
    ("when", "covered", "not_covered"),
    [
        (
            {"to": {"const": "ada"}},
            ['{"to":"ada"}', '{"n":1,"to":"ada"}'],
            ['{"to":"Ada"}', "{}", "", '{"to":["ada"]}'],
        ),
        ({"to": {"const": None}}, ['{"to":null}'], ["{}", '{"to":0}', '{"to":""}']),
        ({"n": {"const": 1}}, ['{"n":1}', '{"n":1.0}'], ['{"n":true}', '{"n":"1"}']),
        ({"n": {"enum": [1, 2]}}, ['{"n":2}'], ['{"n":3}', '{"n":[1,2]}']),
        ({"n": {"maximum": 9}}, ['{"n":9}', '{"n":-1e9}'], ['{"n":9.1}', '{"n":"1"}', '{"n":null}', '{"n":true}']),
        ({"n": {"minimum": 1, "maximum": 9}}, ['{"n":1}'], ['{"n":0}', '{"n":NaN}', '{"n":1e999}']),
        ({"n": {"const": 1}, "to": {"const": "a"}}, ['{"n":1,"to":"a"}'], ['{"n":1}', '{"to":"a"}']),
    ],
)
def test_every_member_that_the_condition_names_must_meet_it(
    when: dict[str, Any], covered: list[str], not_covered: list[str]
) -> None:
    assert [sent for sent in covered if not covers(grant(when), "pay", DIGEST, sent)] == []
    assert [sent for sent in not_covered if covers(grant(when), "pay", DIGEST, sent)] == []


@pytest.mark.parametrize(
    "sent",
    [
        '{"to":"ada","to":"eve"}',
        '{"to":"eve","to":"ada"}',
        '{"to":"ada","more":{"x":1,"x":2}}',
        "[" * 100_000,
        '{"to":"ada"',
        '["ada"]',
        "null",
    ],
)
def test_an_input_that_can_be_read_in_two_ways_meets_no_condition(sent: str) -> None:
    assert not meets({"to": {"const": "ada"}}, sent)


def test_a_condition_that_takes_too_long_to_check_is_not_met() -> None:
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    assert not meets({"n": {"enum": [{"a": deep}] * 100}}, json.dumps({"n": {"a": [deep]}}))


@given(st.text(), st.text())
def test_a_text_is_covered_exactly_if_it_is_the_same(one: str, other: str) -> None:
    assert meets({"to": {"const": one}}, json.dumps({"to": other})) == (one == other)


def test_an_operator_can_forbid_that_approvals_are_remembered() -> None:
    for scope, remembered in (("call", False), ("chat", True)):
        toolset = Toolset([Script(SPEC, Policy(approval="always", approval_scope=scope))])  # type: ignore[arg-type]
        assert (toolset.tool_digest("pay", [SPEC]) == DIGEST) is remembered
        assert toolset.tool_digest("pay", []) is None
