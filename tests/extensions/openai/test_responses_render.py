"""Requests for the Responses API: each member of a request, and the replacements for blocks that the API does not
support.
"""

import json
from typing import Any

import pytest

from tests.extensions.openai.test_openai_render import called, human, reply, thought
from tests.support.legal.responses import request_problems
from tests.support.model_requests import assistant, redacted, result, server_call, server_result, text, thinking, user
from turnstream.domain.blocks import Block
from turnstream.domain.results import layout_of
from turnstream.domain.turns import ToolSpec
from turnstream.extensions.openai.quirks import OPENAI, QUIRKS, Quirks
from turnstream.extensions.openai.responses.render import render
from turnstream.llm.conversation.messages import GO_ON, build_messages
from turnstream.llm.provider import Message, ModelRequest

Json = dict[str, Any]

TOOL = ToolSpec("look", "Looks.", '{"type":"object","properties":{"z":{},"a":{}}}')
SEARCH: Json = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
THOUGHT: Json = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "e"}
SAID = {"role": "assistant", "content": "Hi"}


def own(type: str, item: Json | None = None, words: str = "", **fields: Any) -> Block:
    """Returns a block in the form that answers of this API have."""
    data = {"type": type, "provider": "openai-responses", **({"item": item} if item else {})}
    marks = {name: fields.pop(name) for name in ("ahead", "thought", "phase", "signature") if name in fields}
    return Block(0, 1, 1, type, words, json.dumps({**data, **marks}), **fields)


def mused(item: Json = THOUGHT) -> Block:
    return own("thinking", item, signature="openai-responses:rs_1")


def body_of(*messages: Message, quirks: Quirks = OPENAI, **fields: Any) -> Json:
    request = ModelRequest(fields.pop("model", "gpt-6-sol"), messages or (human("Hello"),), **fields)
    body: Json = json.loads(render(request, quirks))
    return body


def input_of(*messages: Message, **fields: Any) -> list[Json]:
    body = body_of(*messages, **fields)
    assert request_problems(body) == []
    found: list[Json] = body["input"]
    return found


def answer_of(*blocks: Block | str, **fields: Any) -> list[Json]:
    """Returns the items of an answer that is between two questions."""
    first, *items, last = input_of(human("a"), reply(*blocks), human("b"), **fields)
    assert (first["content"], last["content"]) == ("a", "b")
    return items


# --- the whole body ------------------------------------------------------------------------------------------


def test_a_plain_request_is_a_model_its_input_and_a_stream_of_which_nothing_is_stored() -> None:
    request = ModelRequest("gpt-6-sol", (human("Hello"),), system="Be kind.")
    assert render(request) == (
        b'{"model":"gpt-6-sol","instructions":"Be kind.","input":[{"role":"user","content":"Hello"}],'
        b'"store":false,"include":["reasoning.encrypted_content"],"stream":true}'
    )


def test_tools_are_functions_with_their_schema_byte_for_byte_and_the_providers_own_follow() -> None:
    body = render(
        ModelRequest("gpt-6-sol", (human("x"),), tools=(TOOL,), provider_tools=('{"type": "web_search", "n": 1e2}',))
    )
    assert TOOL.input_schema.encode() in body
    assert b'{"type": "web_search", "n": 1e2}' in body
    schema = json.loads(TOOL.input_schema)
    function = {"type": "function", "name": "look", "description": "Looks.", "parameters": schema, "strict": False}
    assert json.loads(body)["tools"] == [function, {"type": "web_search", "n": 100}]


@pytest.mark.parametrize(
    ("params", "sent"),
    [
        ({"max_tokens": 9}, {"max_output_tokens": 9}),
        ({"stop_sequences": ["x"], "betas": ["y"], "max_tokens": None}, {}),
        ({"temperature": 0.5, "top_p": 1}, {"temperature": 0.5, "top_p": 1}),
        ({"store": True, "include": []}, {"store": True, "include": []}),
        ({"include": ["x"]}, {"include": ["reasoning.encrypted_content", "x"]}),
        ({"output_config": {"effort": "max"}}, {"reasoning": {"effort": "xhigh"}}),
        ({"thinking": {"type": "disabled"}}, {"reasoning": {"effort": "none"}}),
        ({"thinking": {"type": "adaptive", "display": "summarized"}}, {"reasoning": {"summary": "auto"}}),
        ({"reasoning_effort": "low", "reasoning": {"n": 1}}, {"reasoning": {"effort": "low", "n": 1}}),
        ({"verbosity": "low"}, {"text": {"verbosity": "low"}}),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
            {"text": {"format": {"type": "json_schema", "name": "output", "schema": {"type": "object"}}}},
        ),
        ({"tool_choice": {"type": "any"}}, {}),
    ],
)  # fmt: skip
def test_parameters_are_translated_for_this_api(params: Json, sent: Json) -> None:
    always = {"store": False, "include": ["reasoning.encrypted_content"], "stream": True}
    body = body_of(params=params)
    assert {name: value for name, value in body.items() if name not in {"model", "input"}} == {**always, **sent}


@pytest.mark.parametrize("model", ["gpt-4o", "openai/gpt-4.1-mini", "chatgpt-4o-latest", "gpt-3.5-turbo"])
def test_a_model_that_does_not_think_is_not_asked_for_its_thoughts(model: str) -> None:
    assert "include" not in body_of(model=model)


def test_quirks_remove_and_add_members() -> None:
    quirks = Quirks(thinking=None, unsupported=frozenset({"include"}), extra={"top_k": 1})
    body = body_of(quirks=quirks, params={"output_config": {"effort": "low"}})
    assert body.keys() == {"model", "input", "store", "stream", "top_k"}
    assert "reasoning" not in body_of(quirks=QUIRKS["compatible"], params={"thinking": {"type": "disabled"}})


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ({"type": "auto", "disable_parallel_tool_use": True}, {"tool_choice": "auto", "parallel_tool_calls": False}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "tool", "name": "look"}, {"tool_choice": {"type": "function", "name": "look"}}),
        ("none", {"tool_choice": "none"}),
        ({"type": "web_search"}, {"tool_choice": {"type": "web_search"}}),
    ],
)
def test_a_choice_of_tools_is_translated_for_this_api(choice: Any, sent: Json) -> None:
    body = body_of(tools=(TOOL,), params={"tool_choice": choice})
    assert {name: body[name] for name in ("tool_choice", "parallel_tool_calls") if name in body} == sent
    assert body_of(tools=(TOOL,), may_use_tools=False, params={"tool_choice": choice})["tool_choice"] == "none"


# --- the user's parts ----------------------------------------------------------------------------------------


def shown(type: str, source: Json | None, **members: Any) -> Block:
    return Block(0, 1, 1, type, data=json.dumps({"type": type, "source": source, **members}))


def test_texts_are_joined_and_files_keep_their_place_among_them() -> None:
    image = {"type": "base64", "media_type": "image/png", "data": "iVBO"}
    pdf = {**image, "media_type": "application/pdf"}
    (asked,) = input_of(
        human(
            "a",
            "b",
            shown("image", image),
            shown("document", pdf, title="x.pdf"),
            shown("document", pdf),
            shown("image", {"type": "url", "url": "u"}),
            shown("document", {"type": "url", "url": "u"}),
            shown("document", {"type": "text", "data": "c"}),
            shown("document", None),
        )
    )
    assert asked["content"] == [
        {"type": "input_text", "text": "a\n\nb"},
        {"type": "input_image", "image_url": "data:image/png;base64,iVBO"},
        {"type": "input_file", "filename": "x.pdf", "file_data": "data:application/pdf;base64,iVBO"},
        {"type": "input_file", "filename": "document.pdf", "file_data": "data:application/pdf;base64,iVBO"},
        {"type": "input_image", "image_url": "u"},
        {"type": "input_file", "file_url": "u"},
        {
            "type": "input_text",
            "text": "c\n\n(An attachment of the type document was left out: it cannot be shown here.)",
        },
    ]


def test_after_a_final_answer_the_model_gets_a_prompt_to_continue() -> None:
    assert input_of(human("a"), reply("Hi"))[-1] == {"role": "user", "content": GO_ON}


# --- the model's items ---------------------------------------------------------------------------------------


def test_a_text_is_an_answer_without_its_sources() -> None:
    assert answer_of("H", own("text", words="i")) == [SAID]


@pytest.mark.parametrize("blocks", [(" ",), (mused(), " "), (redacted(),)])
def test_an_answer_of_which_nothing_is_left_divides_nothing(blocks: tuple[Block | str, ...]) -> None:
    assert input_of(human("a"), reply(*blocks), human("b")) == [{"role": "user", "content": "a\n\nb"}]


def test_texts_of_two_phases_are_two_answers() -> None:
    comment, final = own("text", words="a", phase="commentary"), own("text", words="b", phase="final_answer")
    assert answer_of(comment, comment, final) == [
        {"role": "assistant", "content": "aa", "phase": "commentary"},
        {"role": "assistant", "content": "b", "phase": "final_answer"},
    ]


def test_an_opaque_item_goes_back_byte_for_byte() -> None:
    raw = '{"type":"reasoning", "id":"rs_1","encrypted_content":"e","n": 1e2}'
    data = '{"type":"thinking","signature":"s","provider":"openai-responses","item":' + raw + "}"
    block = Block(0, 1, 1, "thinking", "", data)
    body = render(ModelRequest("gpt-6-sol", (human("a"), reply(block, "Hi"), human("b"))))
    assert b"," + raw.encode() + b"," in body


def test_a_thought_goes_back_before_its_item_and_never_alone() -> None:
    assert answer_of(mused(), "Hi") == [THOUGHT, SAID]
    assert answer_of(mused(), mused(), "Hi") == [THOUGHT, SAID]
    assert answer_of("Hi", mused()) == [SAID]


@pytest.mark.parametrize(
    ("item", "stored", "goes"),
    [
        ({**THOUGHT, "encrypted_content": None}, False, False),
        ({**THOUGHT, "encrypted_content": None}, True, True),
        ({"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text"}]}, False, True),
    ],
)
def test_a_thought_that_only_its_providers_store_knows_goes_back_where_it_stores(
    item: Json, stored: bool, goes: bool
) -> None:
    assert answer_of(mused(item), "Hi", params={"store": stored}) == ([item] if goes else []) + [SAID]


def test_thoughts_and_server_tools_of_others_are_left_out() -> None:
    others = thinking("a"), redacted(), thought("reasoning", "b"), server_call("s"), server_result("s")
    assert answer_of(*others, "Hi") == [SAID]
    assert answer_of("a", *others, "b") == [{"role": "assistant", "content": "a\n\nb"}]


def test_a_tool_of_the_provider_goes_back_with_the_thought_that_led_to_it_or_not_at_all() -> None:
    asked = own("server_tool_use", words="{}", tool_use_id="ws_1", name="web_search")
    bound = own("web_search_tool_result", SEARCH, tool_use_id="ws_1", thought="rs_1")
    free = own("web_search_tool_result", SEARCH, tool_use_id="ws_1")
    assert answer_of(asked, free, "Hi") == [SEARCH, SAID]
    assert answer_of(mused(), asked, bound, "Hi") == [THOUGHT, SEARCH, SAID]
    assert answer_of(asked, bound, "Hi") == [SAID]


def test_a_call_of_the_provider_goes_back_with_its_output_or_not_at_all_and_so_does_the_output() -> None:
    shell: Json = {"type": "shell_call", "id": "sh_1", "call_id": "c"}
    printed: Json = {"type": "shell_call_output", "id": "so_1", "call_id": "c"}
    call = own("server_tool_use", shell, "{}", tool_use_id="c", name="shell")
    output = own("shell_tool_result", printed, tool_use_id="c")
    assert answer_of(call, output, "Hi") == [shell, printed, SAID]
    assert answer_of(call, "Hi") == [SAID]
    assert answer_of(output, "Hi") == [SAID]


def test_calls_and_their_results_keep_their_ids_and_arguments() -> None:
    calls = called("a", '{"q": 1}'), called("b", "")
    items = input_of(human("x"), reply("Hi", *calls), human(result("a"), result("b", "no", is_error=True)))
    assert items[2:] == [
        {"type": "function_call", "call_id": "a", "name": "look", "arguments": '{"q": 1}'},
        {"type": "function_call", "call_id": "b", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "seen"},
        {"type": "function_call_output", "call_id": "b", "output": "Error: no"},
    ]


def test_ids_and_names_that_this_api_refuses_are_changed_in_call_and_result() -> None:
    long = "x" * 65
    once = reply(called(long, name="look at!")), human(result(long))
    items = input_of(human("x"), *once, *once)
    calls = [item for item in items if item.get("type") == "function_call"]
    assert len({call["call_id"] for call in calls}) == 2
    assert {call["name"] for call in calls} == {"look_at_"}


def test_the_caller_of_a_tool_is_sent_with_the_call_and_with_its_result() -> None:
    caller = {"type": "program", "caller_id": "p"}
    program = {"type": "program", "id": "cm_1", "call_id": "p", "code": "…"}
    asked = own("server_tool_use", program, "{}", tool_use_id="p", name="program")
    call = own("tool_use", {"caller": caller}, '{"q":1}', tool_use_id="a", name="look")
    items = input_of(human("x"), reply(asked, call), human(result("a")))
    assert items[1:] == [
        program,
        {"type": "function_call", "call_id": "a", "name": "look", "caller": caller, "arguments": '{"q":1}'},
        {"type": "function_call_output", "call_id": "a", "output": "seen", "caller": caller},
    ]


def test_a_program_goes_back_with_the_calls_of_all_its_rounds_until_its_turn_is_over() -> None:
    program = {"type": "program", "id": "cm_1", "call_id": "p", "code": "…"}
    asked = own("server_tool_use", program, "{}", tool_use_id="p", name="program")
    calls = [
        own("tool_use", {"caller": {"type": "program", "caller_id": "p"}}, "{}", tool_use_id=id, name="look")
        for id in "ab"
    ]
    rounds = [asked, calls[0], result("a")], [calls[1], result("b")]
    turn = assistant(*rounds, stops=["tool_use"] * 2)
    items = input_of(*build_messages([user(text("x")), turn]))
    assert [item.get("type") for item in items[1:]] == ["program", *["function_call", "function_call_output"] * 2]
    assert {item["caller"]["caller_id"] for item in items[2:]} == {"p"}
    later = input_of(*build_messages([user(text("x")), turn, user(text("And?")), assistant()]))
    assert [item.get("type") for item in later] == [None]
    assert later[0]["content"].startswith("x\n\nA program of yours was stopped before its end.")


def test_a_call_whose_program_is_not_sent_is_one_of_the_model() -> None:
    """A program can be sent only with its thought, and another system prompt makes the thought invalid."""
    program = {"type": "program", "id": "cm_1", "call_id": "p", "code": "…"}
    asked = own("server_tool_use", program, "{}", tool_use_id="p", name="program", thought="rs_1")
    call = own("tool_use", {"caller": {"type": "program", "caller_id": "p"}}, "{}", tool_use_id="a", name="look")
    said = own("program_tool_result", {"type": "program_output", "id": "po_1", "call_id": "p"}, tool_use_id="p")
    items = input_of(human("x"), reply(asked, call), human(result("a")), reply(said, "Hi"))
    assert items[1:-1] == [
        {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "seen"},
        SAID,
    ]


def test_a_custom_call_goes_back_with_its_words() -> None:
    words = '{"input":"select \\"a\\""}'
    call = own("tool_use", {"type": "custom_tool_call"}, words, tool_use_id="a", name="sql")
    assert input_of(human("x"), reply(call), human(result("a")))[1:] == [
        {"type": "custom_tool_call", "call_id": "a", "name": "sql", "input": 'select "a"'},
        {"type": "custom_tool_call_output", "call_id": "a", "output": "seen"},
    ]


PICTURE: Json = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}
PAPER: Json = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "eA=="}}


@pytest.mark.parametrize("is_error", [False, True])
def test_files_of_a_result_are_in_their_places(is_error: bool) -> None:
    shown = result("a", "one\ntwo", is_error=is_error, data=layout_of(["one", PICTURE, "two", PAPER]))
    output = input_of(human("x"), reply(called("a")), human(shown))[2]["output"]
    assert output == [
        *([{"type": "input_text", "text": "Error:"}] if is_error else []),
        {"type": "input_text", "text": "one"},
        {"type": "input_image", "image_url": "data:image/png;base64,eA=="},
        {"type": "input_text", "text": "two"},
        {"type": "input_file", "filename": "document.pdf", "file_data": "data:application/pdf;base64,eA=="},
    ]


def test_a_result_of_several_texts_is_one_of_words() -> None:
    told = result("a", "one\ntwo", data=layout_of(["one", "two"]))
    assert input_of(human("x"), reply(called("a")), human(told))[2]["output"] == "one\ntwo"


def test_items_that_ended_late_go_back_in_their_places() -> None:
    lists: list[Json] = [{"type": "mcp_list_tools", "id": f"mcpl_{number}", "tools": []} for number in range(3)]
    late = [own("openai_mcp_list_tools", each, ahead=2) for each in lists[:2]]
    items = answer_of(own("openai_mcp_list_tools", lists[2]), text("Hi"), *late)
    assert items == [*lists, SAID]


def test_a_call_that_the_server_ran_by_itself_is_left_out() -> None:
    call = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "xs_1", "name": "x_search", "input": "tides"}
    asked = own("server_tool_use", None, "{}", tool_use_id="xs_1", name="x_search")
    items = answer_of(asked, own("x_search_tool_result", call, tool_use_id="xs_1"), text("Hi"))
    assert items == [SAID]
