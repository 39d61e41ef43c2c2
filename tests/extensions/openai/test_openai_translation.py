"""Blocks of OpenAI in requests to Anthropic, and calls that other providers made in requests to OpenAI and to
Anthropic.
"""

import json
import re
from typing import Any

from msgspec import Raw

from tests.extensions.openai.test_openai_render import called, human, reply, thought
from tests.support.legal.anthropic import request_problems
from tests.support.model_requests import call, result, server_call, server_result, text, thinking
from turnstream.domain.blocks import Block
from turnstream.domain.turns import ToolSpec
from turnstream.extensions.openai.responses.render import render as render_responses
from turnstream.libraries.providers.anthropic.render import render
from turnstream.libraries.providers.translation import (
    CallRules,
    provider_of,
    split_definitions,
    with_valid_calls,
    without_foreign_blocks,
)
from turnstream.llm.provider import Message, ModelRequest

ANY = CallRules(re.compile("[a-z]+"), 10)


def anthropic(*messages: Message) -> list[dict[str, Any]]:
    body = json.loads(render(ModelRequest("claude-opus-5-5", messages)))
    assert request_problems(body) == []
    found: list[dict[str, Any]] = body["messages"]
    return [{"role": m["role"], "content": [_plain(block) for block in m["content"]]} for m in found]


def _plain(block: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in block.items() if name != "cache_control"}


def cited(words: str) -> Block:
    return text(words, data='{"type":"text","text":"","provider":"openai","annotations":[{"type":"url_citation"}]}')


def test_of_a_text_with_sources_of_openai_anthropic_is_sent_the_words() -> None:
    sent = anthropic(human("x"), reply(cited("See this.")), human("y"))
    assert sent[1]["content"] == [{"type": "text", "text": "See this."}]


def test_thoughts_of_openai_are_not_sent_to_anthropic_nor_messages_of_nothing_else() -> None:
    sent = anthropic(
        human("a"), reply(thought("reasoning", "Hm"), text(" ")), human("b"), reply(text("c"), thinking("d"),
        thought("reasoning", "e")), human("f"),
    )  # fmt: skip
    assert [[block["text"] for block in message["content"]] for message in sent] == [["a", "b"], ["c"], ["f"]]


def test_ids_that_anthropic_refuses_are_changed_in_call_and_result_and_repeated_ones_become_unique() -> None:
    shell = '{"type":"tool_result","tool_use_id":"a b"}'
    once = reply(called("functions.look:0")), human(result("functions.look:0"))
    sent = anthropic(
        human("x"),
        *once,
        *once,
        reply(called("a b", name="x y")),
        human(result("a b", data=shell)),
    )
    used = [block["id"] for message in sent for block in message["content"] if block["type"] == "tool_use"]
    assert len({*used}) == 3
    assert sent[-2]["content"][0]["name"] == "x_y"


def test_a_changed_id_does_not_depend_on_later_messages() -> None:
    begun = human("x"), reply(called("f:0")), human(result("f:0"))
    later = *begun, reply(called("f:0")), human(result("f:0"))
    assert anthropic(*later)[:3] == anthropic(*begun)


def test_ids_and_names_that_fit_leave_the_blocks_as_they_were() -> None:
    messages = (
        human("x"),
        reply(text("a"), call("ab"), server_call("S")),
        human(result("ab"), server_result("S")),
    )
    assert with_valid_calls(messages, ANY) == list(messages)
    assert without_foreign_blocks(messages) is messages


def test_the_providers_own_object_of_a_call_is_changed_with_it() -> None:
    rules = CallRules(re.compile("[a-z]{9}|[a-f0-9]{9}"), 3)
    _, answer, _ = with_valid_calls((human("x"), reply(call("A!")), human(result("A!"))), rules)
    block = answer.blocks[0]
    data = json.loads(block.data or "")
    assert (data["id"], data["name"]) == (block.tool_use_id, block.name)
    assert block.name == "loo"


def test_a_result_without_a_call_keeps_its_id() -> None:
    (message,) = with_valid_calls([human(result("A!"))], ANY)
    assert message.blocks[0].tool_use_id == "A!"


def test_only_a_mark_of_its_own_makes_a_block_a_providers() -> None:
    assert provider_of(text("x", data='{"type":"text","inner":{"provider":"openai"}}')) is None
    assert provider_of(text("x", data='{"provider":{"name":"openai"}}')) is None
    assert provider_of(cited("x")) == "openai"


def test_an_answer_of_which_blanks_are_left_is_not_sent_though_it_comes_last() -> None:
    asked = Block(
        0, 1, 1, "server_tool_use", "{}", '{"type":"server_tool_use","provider":"openai-responses"}', "ws", "web"
    )
    (question,) = without_foreign_blocks([human("Hello"), reply(" \n", asked)])
    assert [block.text for block in question.blocks] == ["Hello"]


def test_a_definition_with_the_name_of_a_tool_adds_its_members_to_it() -> None:
    tool = ToolSpec("look", "Looks.", "{}")
    definitions = (
        '{"type":"custom","name":"look","description":"x","allowed_callers":["direct"],"strict":null}',
        '{"type":"bash_20250124","name":"look"}',
        '{"type":"custom","name":"other"}',
        '{"type":"custom","name":["look"]}',
        '{"name":"look","defer_loading":true}',
    )
    added = {"allowed_callers": Raw(b'["direct"]'), "defer_loading": Raw(b"true")}
    request = ModelRequest("m", (), tools=(tool,), provider_tools=definitions)
    assert split_definitions(request) == ({"look": added}, list(definitions[1:4]))
    one = ModelRequest("m", (Message("user", (text("x"),)),), tools=(tool,), provider_tools=definitions[:1])
    (to_anthropic,) = json.loads(render(one))["tools"]
    members = {"name": "look", "description": "Looks.", "input_schema": {}, "allowed_callers": ["direct"]}
    assert {name: to_anthropic[name] for name in members} == members
    (to_openai,) = json.loads(render_responses(one))["tools"]
    assert (to_openai["strict"], to_openai["allowed_callers"]) == (False, ["direct"])
