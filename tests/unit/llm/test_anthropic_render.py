import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.legal.anthropic import request_problems
from tests.support.model_requests import call, redacted, result, server_call, server_result, text, thinking
from turnstream.domain.blocks import Block
from turnstream.domain.results import layout_of
from turnstream.domain.rounds import Round
from turnstream.domain.turns import ToolSpec
from turnstream.libraries.providers.anthropic.render import render, render_block
from turnstream.libraries.providers.anthropic.rhythm import hour_pays
from turnstream.libraries.providers.translation import SILENT_FAILURE
from turnstream.llm.provider import Message, ModelRequest

TOOL = ToolSpec("look", "Looks.", '{"type":"object", "properties":{"n":{"maximum":1e2}}}')
HELLO = Message("user", (text("Hello"),))
CALLING = Message("assistant", (thinking("Hm."), text("I look."), call("a", '{"b": 1e2, "a": "\\u00e9"}')))
RESULTS = Message("user", (result("a"),))


def body(**fields: Any) -> dict[str, Any]:
    request = ModelRequest("claude-opus-5-5", **{"messages": (HELLO,), **fields})
    found: dict[str, Any] = json.loads(render(request))
    return found


# --- blocks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "json"),
    [
        (text("Hi"), '{"type":"text","text":"Hi"}'),
        (
            text("Hi", data='{"citations":[{"n": 1e2}],"type":"text","text":""}'),
            '{"citations":[{"n": 1e2}],"type":"text","text":"Hi"}',
        ),
        (thinking("Hm."), '{"type":"thinking","thinking":"Hm.","signature":"sig"}'),
        (thinking(""), '{"type":"thinking","thinking":"","signature":"sig"}'),
        (redacted(), '{"type":"redacted_thinking","data":"x"}'),
        (call("a", '{"b": 1e2}'), '{"type":"tool_use","id":"a","name":"look","input":{"b": 1e2}}'),
        (call("a", ""), '{"type":"tool_use","id":"a","name":"look","input":{}}'),
        (replace(call("a", ""), data=None), '{"type":"tool_use","id":"a","name":"look","input":{}}'),
        (replace(call("a", '{"n":1}'), data=None), '{"type":"tool_use","id":"a","name":"look","input":{"n":1}}'),
        (server_result("a"), '{"type":"web_search_tool_result","tool_use_id":"a","content":[]}'),
        (Block(0, 0, 0, "image", data='{"type":"image","source":{"x":1}}'), '{"type":"image","source":{"x":1}}'),
        (Block(0, 0, 0, "brand_new"), '{"type":"brand_new"}'),
        (Block(0, 0, 0, "text", data='{"type":"text","text":"","cache_control":{}}'), '{"type":"text","text":""}'),
        (
            Block(0, 0, 0, "compaction", data='{"type":"compaction","content":null}'),
            '{"type":"compaction","content":null}',
        ),
        (
            Block(0, 0, 0, "compaction", "c", '{"type":"compaction","content":null}'),
            '{"type":"compaction","content":"c"}',
        ),
        (result("a"), '{"type":"tool_result","tool_use_id":"a","content":"seen"}'),
        (result("a", ""), '{"type":"tool_result","tool_use_id":"a"}'),
        (result("a", is_error=True), '{"type":"tool_result","tool_use_id":"a","content":"seen","is_error":true}'),
        (
            result("a", "", is_error=True),
            f'{{"type":"tool_result","tool_use_id":"a","content":"{SILENT_FAILURE}","is_error":true}}',
        ),
        (
            result("a", "one\ntwo", data=layout_of(["one", {"type": "image", "source": {}}, "two"])),
            (
                '{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"one"},'
                '{"type":"image","source":{}},{"type":"text","text":"two"}]}'
            ),
        ),
        (
            result("a", "", data=layout_of([{"type": "image"}])),
            '{"type":"tool_result","tool_use_id":"a","content":[{"type":"image"}]}',
        ),
    ],
)
def test_a_block_goes_back_as_the_provider_gave_it(block: Block, json: str) -> None:
    assert render_block(block).decode() == json


@pytest.mark.parametrize(
    ("input", "sent"),
    [
        ('{"a":', {"INVALID_JSON": '{"a":'}),
        ("[1]", {"INVALID_JSON": "[1]"}),
        ("{'a': 1}", {"INVALID_JSON": "{'a': 1}"}),
        ('{"a":NaN}', {"INVALID_JSON": '{"a":NaN}'}),
        ('{"a":"\\ud83d b"}', {"a": "\ufffd b"}),
    ],
)
def test_an_input_that_is_no_json_object_does_not_break_the_request(input: str, sent: dict[str, Any]) -> None:
    assert json.loads(render_block(call("a", input)))["input"] == sent


def test_an_input_that_is_nested_too_deep_goes_back_as_a_string() -> None:
    deep = '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"
    assert json.loads(render_block(call("a", deep)))["input"] == {"INVALID_JSON": deep}


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_for_any_streamed_input_the_block_is_json(input: str) -> None:
    assert isinstance(json.loads(render_block(call("a", input)))["input"], dict)


# --- the request ---------------------------------------------------------------------------------------------


def test_a_request_has_only_members_that_were_given() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    assert body() == {
        "model": "claude-opus-5-5",
        "max_tokens": 16_000,
        "stream": True,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello", **mark}]}],
    }


def test_known_parameters_are_passed_on() -> None:
    params = {
        "max_tokens": 100,
        "thinking": {"type": "adaptive"},
        "stop_sequences": ["END"],
        "temperature": 0.5,
        "top_p": 1,
        "made_up": 1,
        "metadata": None,
    }
    sent = body(params=params)
    assert sent["max_tokens"] == 100
    assert sent["thinking"] == {"type": "adaptive"}
    assert sent["stop_sequences"] == ["END"]
    assert (sent["temperature"], sent["top_p"]) == (0.5, 1)
    assert not {"made_up", "metadata"} & sent.keys()


def test_a_budget_of_thinking_leaves_room_for_the_answer() -> None:
    thinking = {"type": "enabled", "budget_tokens": 20_000}
    assert body(params={"thinking": thinking})["max_tokens"] == 36_000
    assert body(params={"thinking": thinking, "max_tokens": 21_000})["max_tokens"] == 21_000


def test_tools_are_listed_with_their_schema_as_it_was_written() -> None:
    assert b'"input_schema":{"type":"object", "properties":{"n":{"maximum":1e2}}}' in render(
        ModelRequest("m", (HELLO,), tools=(TOOL,))
    )


def test_a_model_that_may_not_use_tools_still_sees_them() -> None:
    sent = body(tools=(TOOL,), may_use_tools=False, params={"tool_choice": {"type": "any"}})
    assert sent["tool_choice"] == {"type": "none"}
    assert [tool["name"] for tool in sent["tools"]] == ["look"]


def test_the_choice_of_tools_is_passed_on_only_where_there_are_tools() -> None:
    choice = {"tool_choice": {"type": "any"}}
    assert body(tools=(TOOL,), params=choice)["tool_choice"] == {"type": "any"}
    assert "tool_choice" not in body(params=choice)
    assert "tool_choice" not in body(may_use_tools=False)


def test_tools_of_the_provider_follow_ours() -> None:
    search = '{"type":"web_search_20260318","name":"web_search"}'
    assert body(tools=(TOOL,), system="Be kind.", provider_tools=(search,))["tools"][1] == json.loads(search)
    names: list[Any] = [[], {}, ["search"], 5, None]
    for name in names:
        odd = json.dumps({"type": "web_search_20250305", "name": name})
        assert body(tools=(TOOL,), system="Be kind.", provider_tools=(odd,))["tools"][1] == json.loads(odd)


@pytest.mark.parametrize(
    ("resume_data", "params", "sent"),
    [
        ('{"container":{"id":"c","expires_at":"…"}}', {}, "c"),
        ('{"container":{"id":"c"}}', {"container": {"id": "old", "skills": [1]}}, {"id": "c", "skills": [1]}),
        ('{"stop_details":{}}', {"container": "mine"}, "mine"),
        ('{"container":{}}', {}, None),
        (None, {}, None),
    ],
)
def test_a_container_is_used_again(resume_data: str | None, params: dict[str, Any], sent: Any) -> None:
    assert body(resume_data=resume_data, params=params).get("container") == sent


# --- cache marks ---------------------------------------------------------------------------------------------


def marked(sent: dict[str, Any]) -> list[Any]:
    """Returns the places that carry a cache mark: `tools`, `system`, or the numbers of a message and of its block."""
    found: list[Any] = [
        name for name in ("tools", "system") for thing in sent.get(name, ()) if "cache_control" in thing
    ]
    for number, message in enumerate(sent["messages"]):
        found += [(number, place) for place, block in enumerate(message["content"]) if "cache_control" in block]
    return found


def test_the_constant_part_has_a_cache_mark_at_its_end() -> None:
    assert marked(body(system="Be kind.", tools=(TOOL, TOOL))) == ["system", (0, 0)]
    assert marked(body(tools=(TOOL, replace(TOOL, name="b")))) == ["tools", (0, 0)]
    assert "cache_control" in body(tools=(TOOL, replace(TOOL, name="b")))["tools"][1]


def test_this_request_and_the_one_before_are_marked_where_they_end() -> None:
    assert marked(body(messages=(HELLO, CALLING, RESULTS))) == [(0, 0), (2, 0)]
    last = Message("assistant", (text("Done."),))
    assert marked(body(messages=(HELLO, CALLING, RESULTS, last, HELLO))) == [(2, 0), (4, 0)]


def test_marks_are_of_an_hour_if_the_model_says_so() -> None:
    asked = ModelRequest("m", (HELLO,), "Be kind.", options={"cache": "1h"})
    sent = json.loads(render(asked))
    hour = {"type": "ephemeral", "ttl": "1h"}
    assert sent["system"][0]["cache_control"] == sent["messages"][0]["content"][0]["cache_control"] == hour
    assert json.loads(render(replace(asked, options={})))["system"][0]["cache_control"] == {"type": "ephemeral"}


def test_marks_of_automatic_length_follow_the_rhythm_of_the_path() -> None:
    """By the documented prices, a cache that lasts an hour saves 1.15 for each cached token, and costs 0.75 more for
    each written token.
    """

    def pays(*requests: tuple[float, int]) -> bool:
        past = [
            Round(
                number,
                0,
                usage={"input_tokens": 100, "cache_read_input_tokens": tokens - 100, "output_tokens": 900},
                started_at=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minute),
            )
            for number, (minute, tokens) in enumerate(requests)
        ]
        asked = ModelRequest("m", (HELLO,), "Be kind.", options={"cache": "auto"}, past=past)
        return "ttl" in json.loads(render(asked))["system"][0]["cache_control"]

    assert not pays()
    assert not pays((0, 10_000))
    assert not pays((0, 10_000), (1, 11_000), (2, 12_000))  # Calls of tools, each soon after the previous call.
    assert pays((0, 10_000), (1, 11_000), (21, 12_000))  # The user reads for twenty minutes.
    assert not pays((0, 10_000), (90, 11_000))  # After 90 minutes, a cache entry of either length has expired.
    # Writing the long path costs more than the cached tokens save.
    assert not pays((0, 10_000), (20, 10_500), (21, 40_000))
    slow = [(20.0 * number, 10_000) for number in range(10)]
    assert pays(*slow)
    # only the last requests count
    assert not pays(*slow, *((200.0 + number, 10_000 + 500 * number) for number in range(30)))


def test_rounds_without_a_time_have_no_rhythm() -> None:
    usage = {"input_tokens": 100, "cache_read_input_tokens": 9_900, "output_tokens": 900}
    past = [Round(number, 0, usage=usage) for number in range(3)]
    assert not hour_pays(past)
    begun = datetime(2026, 1, 1, tzinfo=UTC)
    timed = [replace(round, started_at=begun + timedelta(minutes=20 * round.number)) for round in past]
    assert hour_pays(timed)
    assert not hour_pays([timed[0], past[1], timed[2]])


def test_blocks_that_take_no_mark_are_passed_over() -> None:
    paused = Message("assistant", (text("I search."), server_call("s"), server_result("s"), thinking("Hm.")))
    assert marked(body(messages=(HELLO, paused))) == [(0, 0), (1, 1)]
    assert marked(body(messages=(HELLO, Message("assistant", (thinking("Hm."),))))) == [(0, 0)]


def test_a_request_with_everything_is_one_the_provider_accepts() -> None:
    messages = (HELLO, CALLING, RESULTS)
    assert request_problems(body(messages=messages, system="Be kind.", tools=(TOOL,), may_use_tools=False)) == []


def test_messages_are_the_same_bytes_in_every_request_but_for_the_marks() -> None:
    def bare(*messages: Message) -> bytes:
        return render(ModelRequest("m", messages)).replace(b',"cache_control":{"type":"ephemeral"}', b"")

    assert bare(HELLO, CALLING, RESULTS).startswith(bare(HELLO).removesuffix(b"]}"))


def test_thinking_is_not_enabled_for_calls_that_began_without_a_thought() -> None:
    enabled = {"thinking": {"type": "enabled", "budget_tokens": 2000}}
    bare, thought = (Message("assistant", blocks) for blocks in ((call("a"),), (thinking("Hm."), call("a"))))
    answered = Message("user", (result("a"),))
    assert "thinking" not in body(messages=(HELLO, bare, answered), params=enabled)
    assert "thinking" not in body(messages=(HELLO, bare, answered, bare, answered), params=enabled)
    assert "thinking" in body(messages=(HELLO, thought, answered, bare, answered), params=enabled)
    assert "thinking" in body(messages=(HELLO, bare, answered, bare, HELLO), params=enabled)
    adaptive = {"thinking": {"type": "adaptive"}}
    assert "thinking" in body(messages=(HELLO, bare, answered), params=adaptive)


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}


def test_all_documents_of_a_request_are_cited_or_none_is() -> None:
    """The provider refuses a request in which only some documents have citations, and members that it does not know."""
    source = {"type": "text", "media_type": "text/plain", "data": "Words."}
    plain = {"type": "document", "source": source}
    first, second = (
        Message("user", (Block(0, 0, 0, "document", data=json.dumps({**plain, **more}, separators=(",", ":"))),))
        for more in ({}, {"cite": True})
    )
    found = Message("user", (result("a", "", data=layout_of([{**plain, "cite": True}])), *first.blocks))
    called = (HELLO, Message("assistant", (call("a"),)))

    def documents(*messages: Message) -> list[dict[str, Any]]:
        blocks = [block for message in body(messages=messages)["messages"] for block in message["content"]]
        parts = [part for block in blocks for part in (block["content"] if block["type"] == "tool_result" else [block])]
        return [
            {name: value for name, value in part.items() if name != "cache_control"}
            for part in parts
            if part["type"] == "document"
        ]

    assert documents(first, first) == [plain, plain]
    cited = {**plain, "citations": {"enabled": True}}
    assert documents(first, second) == [cited, cited]
    assert documents(*called, found) == [cited, cited]


def test_an_error_with_files_is_one_in_words() -> None:
    """The API refuses `is_error` for a result with files, because all content of an error must be text."""
    broke = result("a", "it broke", is_error=True, data=layout_of(["it broke", IMAGE]))
    said = [{"type": "text", "text": "The tool failed:"}, {"type": "text", "text": "it broke"}, IMAGE]
    assert json.loads(render_block(broke)) == {"type": "tool_result", "tool_use_id": "a", "content": said}
