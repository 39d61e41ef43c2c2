"""Requests for Chat Completions: each member of a request, and the replacements for blocks that the API does not
support.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.legal.openai import request_problems
from tests.support.model_requests import redacted, result, server_call, server_result, text, thinking
from turnstream.domain.blocks import Block
from turnstream.domain.results import layout_of
from turnstream.domain.turns import ToolSpec
from turnstream.extensions.openai.chat.render import render
from turnstream.extensions.openai.quirks import OPENAI, QUIRKS, Quirks
from turnstream.llm.conversation.messages import GO_ON
from turnstream.llm.provider import Message, ModelRequest

Json = dict[str, Any]
TOOL = ToolSpec("look", "Looks.", '{"type":"object","properties":{"z":{},"a":{}}}')


def request(*messages: Message, **fields: Any) -> ModelRequest:
    return ModelRequest("gpt-6-sol", messages or (human("Hello"),), **fields)


def human(*blocks: Block | str) -> Message:
    return Message("user", tuple(text(block) if isinstance(block, str) else block for block in blocks))


def reply(*blocks: Block | str) -> Message:
    return Message("assistant", tuple(text(block) if isinstance(block, str) else block for block in blocks))


def called(id: str, input: str = "{}", name: str | None = "look", **fields: Any) -> Block:
    return Block(0, 1, 1, "tool_use", input, tool_use_id=id, name=name, **fields)


def thought(member: str, words: str, **data: Any) -> Block:
    shell = {"type": "thinking", "thinking": "", "signature": f"openai:{member}", "provider": "openai", **data}
    return Block(0, 1, 1, "thinking", words, json.dumps(shell))


def body_of(asked: ModelRequest, quirks: Quirks = OPENAI) -> Json:
    body: Json = json.loads(render(asked, quirks))
    return body


def messages_of(*messages: Message, quirks: Quirks = OPENAI) -> list[Json]:
    body = body_of(request(*messages), quirks)
    assert request_problems(body, ids=quirks.call_ids.pattern, thoughts=quirks.thoughts_go_back) == []
    found: list[Json] = body["messages"]
    return found


# --- the whole body ------------------------------------------------------------------------------------------


def test_a_plain_request_is_a_model_its_messages_and_a_stream_with_figures() -> None:
    assert render(request(human("Hello"), system="Be kind.")) == (
        b'{"model":"gpt-6-sol","messages":[{"role":"system","content":"Be kind."},{"role":"user","content":"Hello"}],'
        b'"stream":true,"stream_options":{"include_usage":true}}'
    )


def test_tools_are_functions_with_their_schema_byte_for_byte_and_the_providers_own_follow() -> None:
    body = render(request(tools=(TOOL,), provider_tools=('{"type": "browser_search"}',)))
    assert TOOL.input_schema.encode() in body
    assert json.loads(body)["tools"] == [
        {
            "type": "function",
            "function": {"name": "look", "description": "Looks.", "parameters": json.loads(TOOL.input_schema)},
        },
        {"type": "browser_search"},
    ]


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (None, {}),
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        (
            {"type": "tool", "name": "look", "disable_parallel_tool_use": True},
            {"tool_choice": {"type": "function", "function": {"name": "look"}}, "parallel_tool_calls": False},
        ),
        ({"type": "auto", "disable_parallel_tool_use": False}, {"tool_choice": "auto"}),
        ({"type": "allowed_tools"}, {"tool_choice": {"type": "allowed_tools"}}),
        ("required", {"tool_choice": "required"}),
    ],
)
def test_a_choice_of_tools_is_translated(choice: object, sent: Json) -> None:
    body = body_of(request(tools=(TOOL,), params={"tool_choice": choice}))
    assert {name: body[name] for name in ("tool_choice", "parallel_tool_calls") if name in body} == sent


def test_a_model_that_may_not_use_tools_still_sees_them() -> None:
    body = body_of(request(tools=(TOOL,), may_use_tools=False, params={"tool_choice": {"type": "any"}}))
    assert body["tool_choice"] == "none"
    assert body["tools"]


def test_without_tools_no_choice_is_sent() -> None:
    assert "tool_choice" not in body_of(request(params={"tool_choice": {"type": "any"}}, may_use_tools=False))


@pytest.mark.parametrize(
    ("params", "sent"),
    [
        ({"max_tokens": 5}, {"max_completion_tokens": 5}),
        ({"stop_sequences": ["x"]}, {"stop": ["x"]}),
        ({"stop_sequences": [], "max_tokens": None}, {}),
        ({"temperature": 0, "seed": 7, "top_p": None}, {"temperature": 0, "seed": 7}),
        ({"container": "c", "betas": ["b"], "context_management": {}}, {}),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, {"reasoning_effort": "none"}),
        ({"thinking": {"type": "adaptive"}}, {}),
        ({"thinking": {"type": "enabled", "budget_tokens": 2_000}}, {"reasoning_effort": "low"}),
        ({"thinking": {"type": "enabled", "budget_tokens": 10_000}}, {"reasoning_effort": "medium"}),
        ({"thinking": {"type": "enabled", "budget_tokens": 30_000}}, {"reasoning_effort": "high"}),
        ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"output_config": {"effort": "max"}}, {"reasoning_effort": "xhigh"}),
        ({"output_config": {"effort": "low"}, "reasoning_effort": "minimal"}, {"reasoning_effort": "minimal"}),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "output", "schema": {"type": "object"}},
                }
            },
        ),
        ({"output_config": {"format": {"type": "grammar"}}}, {}),
    ],
)
def test_parameters_are_translated(params: Json, sent: Json) -> None:
    body = body_of(request(params=params))
    for name in ("model", "messages", "stream", "stream_options"):
        del body[name]
    assert body == sent


# --- messages ------------------------------------------------------------------------------------------------


def test_a_round_of_tools_is_an_answer_with_calls_and_a_message_for_each_result() -> None:
    assert messages_of(
        human("Look."),
        reply("I look", "ing.", called("a", '{"q": 1.0,  "q2":"\\u00e9"}'), called("b", "")),
        human(result("a"), result("b", "no", is_error=True), "And?"),
    )[1:] == [
        {
            "role": "assistant",
            "content": "I looking.",
            "tool_calls": [
                {
                    "id": "a",
                    "type": "function",
                    "function": {"name": "look", "arguments": '{"q": 1.0,  "q2":"\\u00e9"}'},
                },
                {"id": "b", "type": "function", "function": {"name": "look", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "seen"},
        {"role": "tool", "tool_call_id": "b", "content": "Error: no"},
        {"role": "user", "content": "And?"},
    ]


def test_arguments_that_are_no_object_go_back_in_one() -> None:
    (_, answer, _) = messages_of(human("x"), reply(called("a", '{"q": ')), human(result("a")))
    assert json.loads(answer["tool_calls"][0]["function"]["arguments"]) == {"INVALID_JSON": '{"q": '}


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (result("a", ""), "(no output)"),
        (result("a", "", is_error=True), "The tool failed and said nothing."),
        (result("a", "one\ntwo", data=layout_of(["one", "two"])), "one\ntwo"),
        (result("a", "one", is_error=True), "Error: one"),
    ],
)
def test_a_result_is_words(block: Block, words: str) -> None:
    assert messages_of(human("x"), reply(called("a")), human(block))[-1]["content"] == words


def test_results_come_right_after_their_calls_wherever_they_are_in_the_message() -> None:
    sent = messages_of(human("x"), reply(called("a")), human("words", result("a")))
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "user"]


def test_ids_that_are_too_long_and_names_that_were_invented_are_changed_in_call_and_result() -> None:
    long = "chatcmpl-tool-" + "a" * 32
    _, answer, *results = messages_of(
        human("x"),
        reply(called(long, name="my tool!"), called("functions.f:0", name=None)),
        human(result(long), result("functions.f:0")),
    )
    ids = [call["id"] for call in answer["tool_calls"]]
    assert ids[0] != long
    assert ids[1] == "functions.f:0"
    assert [message["tool_call_id"] for message in results] == ids
    assert [call["function"]["name"] for call in answer["tool_calls"]] == ["my_tool_", "unnamed"]


# --- other providers -----------------------------------------------------------------------------------------


def test_thoughts_and_blocks_of_server_tools_are_left_out() -> None:
    blocks = (
        thinking("Hm"), redacted(), text("I look."), server_call("s"), server_result("s"), text("Found."),
        thought("reasoning", "Hm"), called("a"),
    )  # fmt: skip
    sent = messages_of(human("x"), reply(*blocks), human(result("a")))
    assert sent[1]["content"] == "I look.\n\nFound."
    assert sent[1].keys() == {"role", "content", "tool_calls"}


def test_an_answer_of_which_nothing_is_left_divides_nothing() -> None:
    blocks = (thinking("Hm"), server_call("s"), server_result("s"), text(" \n"))
    assert messages_of(human("a", "b"), reply(*blocks), human("c")) == [{"role": "user", "content": "a\n\nb\n\nc"}]


def test_an_unfinished_answer_is_followed_by_a_prompt_to_continue() -> None:
    assert messages_of(human("x"), reply("I look.", server_call("s")))[-1] == {
        "role": "user",
        "content": GO_ON,
    }
    assert messages_of(human("x"), reply(server_call("s"))) == [{"role": "user", "content": "x"}]


def test_a_text_that_only_begins_after_a_server_tool_begins_at_once() -> None:
    assert messages_of(human("x"), reply(server_result("s"), "Found."), human("y"))[1]["content"] == "Found."


# --- images and documents ------------------------------------------------------------------------------------


def block(type: str, source: Json | None = None, **members: Any) -> Block:
    return Block(0, 0, 0, type, data=json.dumps({"type": type, "source": source, **members}))


def test_images_are_links_to_them_or_to_their_bytes() -> None:
    data = block("image", {"type": "base64", "media_type": "image/png", "data": "aGk="})
    link = block("image", {"type": "url", "url": "https://example.org/a.png"})
    (message,) = messages_of(human("a", "b", data, link, "c"))
    assert message["content"] == [
        {"type": "text", "text": "a\n\nb"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "text", "text": "c"},
    ]


def test_documents_are_files_or_their_text() -> None:
    source = {"type": "base64", "media_type": "application/pdf", "data": "aGk="}
    (message,) = messages_of(human(block("document", source), block("document", source, title="a.pdf")))
    assert [part["file"] for part in message["content"]] == [
        {"filename": "document.pdf", "file_data": "data:application/pdf;base64,aGk="},
        {"filename": "a.pdf", "file_data": "data:application/pdf;base64,aGk="},
    ]
    plain = block("document", {"type": "text", "media_type": "text/plain", "data": "words"})
    assert messages_of(human(plain, "more")) == [{"role": "user", "content": "words\n\nmore"}]


@pytest.mark.parametrize("strange", [block("document", {"type": "file"}), block("video"), replace(text("x"), type="v")])
def test_a_file_that_cannot_be_sent_is_named(strange: Block) -> None:
    (message,) = messages_of(human(strange))
    assert message["content"].startswith("(An attachment of the type ")


# --- quirks --------------------------------------------------------------------------------------------------


def test_members_a_server_does_not_know_are_not_sent_and_its_own_are() -> None:
    quirks = Quirks("max_tokens", None, unsupported=frozenset({"stream_options"}), extra={"top_k": 5})
    body = body_of(request(params={"max_tokens": 5, "output_config": {"effort": "low"}}), quirks)
    assert body == {
        "model": "gpt-6-sol",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 5,
        "stream": True,
        "top_k": 5,
    }


def test_mistral_takes_ids_of_nine_characters() -> None:
    sent = messages_of(human("x"), reply(called("toolu_1")), human(result("toolu_1")), quirks=QUIRKS["mistral"])
    assert len(sent[1]["tool_calls"][0]["id"]) == 9


@pytest.mark.parametrize(
    ("quirks", "params", "sent"),
    [
        ("openrouter", {"output_config": {"effort": "low"}}, {"reasoning": {"effort": "low"}}),
        ("openrouter", {"thinking": {"type": "disabled"}}, {"reasoning": {"enabled": False}}),
        ("openrouter", {}, {}),
        ("deepseek", {"thinking": {"type": "adaptive"}}, {"thinking": {"type": "enabled"}}),
        ("deepseek", {"thinking": {"type": "disabled"}}, {"thinking": {"type": "disabled"}}),
        ("deepseek", {"output_config": {"effort": "low"}}, {}),
    ],
)
def test_the_reasoning_effort_is_sent_in_the_form_of_the_server(quirks: str, params: Json, sent: Json) -> None:
    body = body_of(request(params=params), QUIRKS[quirks])
    assert {name: body[name] for name in ("reasoning", "thinking", "reasoning_effort") if name in body} == sent


def thoughts_of(*blocks: Block) -> Json:
    sent = messages_of(human("x"), reply(*blocks, "Yes."), human("y"), quirks=QUIRKS["openrouter"])
    return {name: value for name, value in sent[1].items() if name not in {"role", "content"}}


SECRET: list[Json] = [{"type": "reasoning.encrypted", "data": "s"}]


@pytest.mark.parametrize(
    ("blocks", "sent"),
    [
        ([thought("reasoning_content", "a"), thought("reasoning_content", "b")], {"reasoning_content": "ab"}),
        (
            [thought("reasoning", "a", reasoning_details=SECRET)],
            {"reasoning": "a", "reasoning_details": SECRET},
        ),
        ([thought("reasoning_details", "", reasoning_details=SECRET)], {"reasoning_details": SECRET}),
        ([thought("thinking", "a"), thinking("b"), redacted()], {}),
        ([replace(thinking("b"), data=None)], {}),
    ],
)
def test_a_models_own_thoughts_go_back_under_the_name_they_came_in(blocks: Sequence[Block], sent: Json) -> None:
    assert thoughts_of(*blocks) == sent


# --- files in results ------------------------------------------------------------------------------------------------

PICTURE: Json = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}
PAPER: Json = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "eA=="}}


def test_files_of_results_follow_all_results_as_user_messages() -> None:
    shown = result("a", "one\ntwo", data=layout_of(["one", PICTURE, "two", PAPER]))
    sent = messages_of(human("x"), reply(called("a"), called("b")), human(shown, result("b"), "And?"))
    assert [(message["role"], message.get("tool_call_id")) for message in sent[2:]] == [
        ("tool", "a"),
        ("tool", "b"),
        ("user", None),
    ]
    assert sent[2]["content"] == "one\n(This image is shown below.)\ntwo\n(This document is shown below.)"
    assert [part["type"] for part in sent[-1]["content"]] == ["text", "image_url", "file", "text"]
    assert sent[-1]["content"][0]["text"] == "Returned by look:"


def test_a_result_that_failed_says_so_before_its_files() -> None:
    shown = result("a", "", is_error=True, data=layout_of([PICTURE]))
    sent = messages_of(human("x"), reply(called("a")), human(shown))
    assert sent[2]["content"] == "Error: (This image is shown below.)"


def test_an_assistant_text_separates_a_tool_message_from_a_user_message_where_needed() -> None:
    shown = result("a", "", data=layout_of([PICTURE]))
    ids = {"a": "abcdefghi"}
    for told in (shown, result("a")):
        sent = messages_of(
            human("x"),
            reply(called(ids["a"])),
            human(replace(told, tool_use_id=ids["a"]), "And?"),
            quirks=QUIRKS["mistral"],
        )
        assert [message["role"] for message in sent] == ["user", "assistant", "tool", "assistant", "user"]
