"""A request is limited to the abilities of its model."""

import pytest

from turnstream.domain.errors import RequestRefused
from turnstream.domain.turns import ToolSpec, TurnRequest
from turnstream.extensions.agents.children import without_format
from turnstream.llm.models.abilities import within_abilities
from turnstream.llm.models.catalog import Model, Models


def test_tools_are_refused_for_a_model_that_is_known_to_support_none() -> None:
    asked = TurnRequest("small", tools=(ToolSpec("look", "Look.", "{}"),))
    with pytest.raises(RequestRefused, match="`tools` must be left out: model small does not support tools") as refused:
        within_abilities(Models(), Model("small", can=frozenset()), asked)
    assert refused.value.field == "tools"
    unknown = within_abilities(Models(), Model("small", context_window=1000), asked)
    assert (unknown.tools, unknown.limits.context_window) == (asked.tools, 1000)


def test_a_format_of_the_reply_is_left_out() -> None:
    assert without_format({"temperature": 1, "response_format": {}, "output_config": {"format": {}}}) == {
        "temperature": 1
    }
    assert without_format({"output_config": {"format": {}, "effort": "low"}}) == {"output_config": {"effort": "low"}}
