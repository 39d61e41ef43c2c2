"""Requests of the Gemini API: parts from Gemini are sent back unchanged, and other blocks are sent in forms that the
API accepts.
"""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from google.genai import types

from tests.extensions.gemini.streams import FIRST, MODEL, SECOND, STREAMS, blocks_of
from turnstream.domain.blocks import Block
from turnstream.domain.results import layout_of
from turnstream.domain.turns import ToolSpec
from turnstream.extensions.gemini.render import render, render_count
from turnstream.extensions.gemini.schema import subset_of
from turnstream.llm.provider import Message, ModelRequest

Json = dict[str, Any]
TOOLS = (
    ToolSpec("doc_search", "Searches.", '{"type":"object","properties":{"query":{"type":"string","pattern":"a"}}}'),
)


def user(text: str) -> Message:
    return Message("user", (Block(0, 0, 0, "text", text),))


def asked(*messages: Message, model: str = MODEL, **members: Any) -> ModelRequest:
    return ModelRequest(model, messages or (user("Hello"),), **members)


def body_of(request: ModelRequest) -> Json:
    body: Json = json.loads(render(request))
    types.GenerateContentConfig.model_validate(
        {**body.get("generationConfig", {}), "tools": body.get("tools"), "toolConfig": body.get("toolConfig")}
    )
    for content in body["contents"]:
        types.Content.model_validate(content)
    return body


def parts_after(reply: tuple[Block, ...], *, model: str = MODEL, results: tuple[Block, ...] = ()) -> list[Json]:
    """Sends the reply back in a new request. Returns the parts into which the request renders the reply."""
    next = Message("user", results) if results else user("And now?")
    contents = body_of(asked(user("Hello"), Message("assistant", reply), next, model=model))["contents"]
    assert [content["role"] for content in contents][:2] == ["user", "model"]
    parts: list[Json] = contents[1]["parts"]
    return parts


def received(name: str) -> list[Json]:
    """Returns the parts as the provider sent them, except that pieces of unsigned text are joined."""
    joined: list[Json] = []
    for line in STREAMS[name].decode().splitlines():
        for part in json.loads(line[6:])["candidates"][0]["content"]["parts"] if line else ():
            unsigned = "text" in part and "thoughtSignature" not in part
            if unsigned and not part["text"]:
                continue
            last = joined[-1] if joined else {}
            if unsigned and last.keys() == part.keys() and last.get("thought") == part.get("thought"):
                last["text"] += part["text"]
            else:
                joined.append(part)
    return joined


@pytest.mark.parametrize("name", STREAMS)
def test_the_parts_of_a_reply_return_to_their_model_as_they_came(name: str) -> None:
    assert parts_after(tuple(blocks_of(STREAMS[name]))) == received(name)


def test_the_content_of_a_part_is_sent_back_byte_for_byte() -> None:
    part = rb'{"toolResponse":{"id":"t","toolType":"URL_CONTEXT","response":{"n":1.0,"s":"\u00e9\/"}}}'
    body = b'data: {"candidates":[{"content":{"parts":[' + part + b']},"finishReason":"STOP"}]}\n\n'
    reply = Message("assistant", tuple(blocks_of(body)))
    assert part in render(asked(user("Hello"), reply, user("And now?")))


@pytest.mark.parametrize("name", STREAMS)
def test_no_signature_goes_to_another_model(name: str) -> None:
    parts = parts_after(tuple(blocks_of(STREAMS[name])), model="gemini-3.1-pro-preview")
    assert FIRST not in json.dumps(parts)
    assert SECOND not in json.dumps(parts)
    assert not any(part.get("thought") and "text" in part for part in parts)
    calls = [part for part in parts if "functionCall" in part]
    expected = ["skip_thought_signature_validator", *([None] * (len(calls) - 1))] if calls else []
    assert [part.get("thoughtSignature") for part in calls] == expected
    older = parts_after(tuple(blocks_of(STREAMS[name])), model="gemini-2.5-flash")
    assert not any("thoughtSignature" in part for part in older)


def test_calls_of_another_provider_need_no_signature_of_theirs() -> None:
    foreign = (
        '{"type":"tool_use","id":"toolu_1","name":"doc_search","input":{},"provider":"openai-responses","item":{}}'
    )
    call = Block(0, 0, 0, "tool_use", '{"query":"a"}', data=foreign, tool_use_id="toolu_1", name="doc_search")
    thought = Block(1, 0, 0, "thinking", "Hm.", data='{"type":"thinking","thinking":"","signature":"Ep"}')
    search = Block(
        2, 0, 0, "server_tool_use", "{}", data='{"type":"server_tool_use"}', tool_use_id="s", name="web_search"
    )
    (part,) = parts_after((thought, search, call))
    signature = "skip_thought_signature_validator"
    assert part == {"functionCall": {"name": "doc_search", "args": {"query": "a"}}, "thoughtSignature": signature}


def test_results_name_their_calls_and_have_the_ids_that_the_provider_gave() -> None:
    blocks = blocks_of(STREAMS["calls with ids"])
    files = ("Found:", {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}})
    results = (
        Block(0, 0, 0, "tool_result", "Found:", data=layout_of(files), tool_use_id="fc_1", name="doc_search"),
        Block(0, 0, 0, "tool_result", "No.", tool_use_id="fc_2", name="doc_search", is_error=True),
        Block(0, 0, 0, "text", "Hurry."),
    )
    contents = body_of(asked(user("Hello"), Message("assistant", tuple(blocks)), Message("user", results)))["contents"]
    assert contents[2]["parts"] == [
        {"functionResponse": {"id": "fc_1", "name": "doc_search", "response": {"output": "Found:"}}},
        {"functionResponse": {"id": "fc_2", "name": "doc_search", "response": {"error": "No."}}},
    ]
    assert contents[3]["parts"] == [
        {"text": "Returned by doc_search:"},
        {"inlineData": {"mimeType": "image/png", "data": "iVBO"}},
        {"text": "Hurry."},
    ]
    own = blocks_of(STREAMS["parallel calls, of which the first is signed"])
    answers = tuple(
        Block(0, 0, 0, "tool_result", "", tool_use_id=block.tool_use_id, name=block.name)
        for block in own
        if block.type == "tool_use"
    )
    contents = body_of(asked(user("Hello"), Message("assistant", tuple(own)), Message("user", answers)))["contents"]
    assert [part["functionResponse"] for part in contents[2]["parts"]] == [
        {"name": "doc_search", "response": {"output": ""}},
        {"name": "doc_tree", "response": {"output": ""}},
    ]


def test_files_are_inline_or_addresses() -> None:
    sources: list[tuple[str, Json]] = [
        ("document", {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}),
        ("image", {"type": "url", "url": "https://example.org/a.png"}),
        ("document", {"type": "url", "url": "https://example.org/a.pdf"}),
        ("document", {"type": "text", "media_type": "text/plain", "data": "Tide"}),
        ("image", {"type": "file", "file_id": "f"}),
    ]
    blocks = tuple(Block(0, 0, 0, type, data=json.dumps({"type": type, "source": source})) for type, source in sources)
    (content,) = body_of(asked(Message("user", blocks)))["contents"]
    assert content["parts"][:4] == [
        {"inlineData": {"mimeType": "application/pdf", "data": "JVBE"}},
        {"fileData": {"fileUri": "https://example.org/a.png", "mimeType": "image/*"}},
        {"fileData": {"fileUri": "https://example.org/a.pdf", "mimeType": "application/pdf"}},
        {"text": "Tide"},
    ]
    assert content["parts"][4]["text"]


def test_a_conversation_ends_with_the_user() -> None:
    contents = body_of(asked(user("Hello"), Message("assistant", (Block(0, 0, 0, "text", "Hi"),))))["contents"]
    assert [content["role"] for content in contents] == ["user", "model", "user"]


@pytest.mark.parametrize(
    ("model", "params", "thinking"),
    [
        (MODEL, {}, None),
        (MODEL, {"thinking": {"type": "adaptive"}}, {"includeThoughts": True}),
        (MODEL, {"thinking": {"type": "adaptive", "display": "omitted"}}, None),
        (MODEL, {"thinking": {"type": "disabled"}}, {"thinkingLevel": "LOW"}),
        (MODEL, {"output_config": {"effort": "max"}}, {"thinkingLevel": "HIGH"}),
        (
            MODEL,
            {"thinking": {"type": "enabled", "budget_tokens": 2_000}},
            {"thinkingBudget": 2_000, "includeThoughts": True},
        ),
        ("gemini-2.5-flash", {"thinking": {"type": "disabled"}}, {"thinkingBudget": 0}),
        ("gemini-2.5-flash", {"output_config": {"effort": "medium"}}, {"thinkingBudget": 8_192}),
    ],
)
def test_thinking_is_a_level_or_a_budget(model: str, params: Json, thinking: Json | None) -> None:
    assert body_of(asked(model=model, params=params)).get("generationConfig", {}).get("thinkingConfig") == thinking


def test_parameters_have_the_names_of_the_provider() -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": False}
    params = {
        "max_tokens": 9,
        "stop_sequences": ["x"],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "seed": 7,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "output_config": {"format": {"type": "json_schema", "schema": schema}},
        "safety_settings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
    }
    body = body_of(asked(params=params, system="Be brief."))
    assert body["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
    assert body["safetySettings"] == params["safety_settings"]
    assert body["generationConfig"] == {
        "maxOutputTokens": 9,
        "stopSequences": ["x"],
        "temperature": 0.5,
        "topP": 0.9,
        "topK": 3,
        "seed": 7,
        "presencePenalty": 1,
        "frequencyPenalty": -1,
        "responseMimeType": "application/json",
        "responseJsonSchema": {
            "type": "object",
            "properties": {"a": {"enum": [1]}},
            "additionalProperties": False,
        },
    }


@pytest.mark.parametrize(
    ("choice", "may_use", "expected"),
    [
        (None, True, None),
        ({"type": "any"}, True, {"mode": "ANY"}),
        ({"type": "tool", "name": "doc_search"}, True, {"mode": "ANY", "allowedFunctionNames": ["doc_search"]}),
        ({"type": "auto"}, False, {"mode": "NONE"}),
    ],
)
def test_the_choice_of_tools(choice: Json | None, may_use: bool, expected: Json | None) -> None:
    body = body_of(asked(tools=TOOLS, params={"tool_choice": choice} if choice else {}, may_use_tools=may_use))
    (tool,) = body["tools"]
    (function,) = tool["functionDeclarations"]
    assert function["parametersJsonSchema"] == {"type": "object", "properties": {"query": {"type": "string"}}}
    assert body.get("toolConfig", {}).get("functionCallingConfig") == expected


def test_tools_of_the_provider_have_its_names_and_may_be_combined_with_ours() -> None:
    definitions = ('{"type":"google_search"}', '{"type":"file_search","fileSearchStoreNames":["s"]}')
    body = body_of(asked(tools=TOOLS, provider_tools=definitions))
    assert body["tools"][1:] == [{"googleSearch": {}}, {"fileSearch": {"fileSearchStoreNames": ["s"]}}]
    assert body["toolConfig"] == {"includeServerSideToolInvocations": True}
    alone = body_of(asked(provider_tools=('{"type":"code_execution"}',)))
    assert alone["tools"] == [{"codeExecution": {}}]
    assert "toolConfig" not in alone
    assert "toolConfig" not in body_of(asked(tools=TOOLS, provider_tools=definitions, model="gemini-2.5-pro"))


def test_a_named_cache_holds_system_prompt_and_tools() -> None:
    request = asked(tools=TOOLS, system="Be brief.", params={"cached_content": "cachedContents/1"})
    assert body_of(request).keys() == {"contents", "cachedContent"}


def test_a_count_covers_the_whole_request_or_the_part_that_vertex_accepts() -> None:
    request = asked(tools=TOOLS, system="Be brief.", params={"temperature": 1})
    whole = msgspec.json.decode(render_count(request, vertex=False))["generateContentRequest"]
    assert whole == {"model": f"models/{MODEL}", **body_of(request)}
    assert msgspec.json.decode(render_count(request, vertex=True)).keys() == {"contents", "systemInstruction", "tools"}


def test_a_request_begins_with_the_bytes_of_the_one_before_it() -> None:
    first = asked(user("Hello"))
    reply = Message("assistant", tuple(blocks_of(STREAMS["a thought, then a signed text"])))
    second = replace(first, messages=(*first.messages, reply, user("And now?")))
    assert render(second).startswith(render(first)[: -len("]}")])


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"$schema": "x", "type": "string", "pattern": "^a$", "minLength": 1}, {"type": "string"}),
        ({"type": "string", "format": "uri"}, {"type": "string"}),
        ({"type": "string", "format": "date-time"}, {"type": "string", "format": "date-time"}),
        ({"allOf": [{"type": "integer"}], "default": 1}, {"type": "integer"}),
        ({"anyOf": [{"type": "null"}, {"const": "a"}]}, {"anyOf": [{"type": "null"}, {"enum": ["a"]}]}),
        (
            {"properties": {"pattern": {"$ref": "#/definitions/a"}}, "definitions": {"a": {"not": {}}}},
            {"properties": {"pattern": {"$ref": "#/$defs/a"}}, "$defs": {"a": {}}},
        ),
        (
            {"type": "array", "items": {"type": "number", "multipleOf": 2}},
            {"type": "array", "items": {"type": "number"}},
        ),
        ({"additionalProperties": {"examples": [1]}}, {"additionalProperties": {}}),
        (True, True),
    ],
)
def test_a_schema_is_reduced_to_the_keywords_of_the_provider(schema: Any, expected: Any) -> None:
    assert subset_of(schema) == expected
