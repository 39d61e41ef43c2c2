"""Decodes Gemini's streams into blocks, for every split into pieces and for each way in which a stream can end."""

import json
from typing import Any

import pytest

from tests.extensions.gemini.streams import (
    FIRST,
    GROUNDING,
    MODEL,
    SECOND,
    STOP,
    STREAMS,
    accumulated,
    blocks_of,
    call,
    chunk,
    event,
    read,
)
from turnstream.domain.errors import PermanentError, TransientError
from turnstream.libraries.providers.transport.failures import provider_error
from turnstream.llm.provider import MessageEnded, MessageStarted, Unknown


def data_of(block: Any) -> dict[str, Any]:
    members: dict[str, Any] = json.loads(block.data)
    return members


@pytest.mark.parametrize("name", STREAMS)
def test_a_cut_at_every_byte_changes_nothing(name: str) -> None:
    body = STREAMS[name]
    expected = accumulated(read(body)[0])
    for size in range(1, len(body)):
        assert accumulated(read(body, size=size)[0])[0] == expected[0], size


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_that_ends_early_has_no_end_and_a_prefix_of_the_texts(name: str) -> None:
    body = STREAMS[name]
    whole = "".join(block.text for block in blocks_of(body) if block.type == "text")
    for place in range(len(body) - len(body.split(b"data: ")[-1]) - 6):
        parts, wire = read(body[:place], size=7)
        if not wire.finished:
            assert not any(isinstance(part, MessageEnded) for part in parts)
        blocks, accumulator = accumulated(parts)
        blocks += [each for each in accumulator.interrupt() if hasattr(each, "interrupted")]  # type: ignore[misc]
        assert whole.startswith("".join(block.text for block in blocks if block.type == "text"))


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("as_list", [False, True])
def test_a_reply_that_came_as_one_value_is_read_too(name: str, as_list: bool) -> None:
    chunks = [json.loads(line) for line in STREAMS[name].decode().replace("data: ", "").splitlines() if line]
    if not as_list:
        parts = [part for each in chunks for part in each["candidates"][0]["content"]["parts"]]
        chunks[-1]["candidates"][0]["content"]["parts"] = parts
    body = json.dumps(chunks if as_list else chunks[-1]).encode()
    blocks, accumulator = accumulated(read(body, whole=True)[0])
    assert accumulator.ended
    expected = blocks_of(STREAMS[name])
    assert [(block.type, block.text, block.name) for block in blocks] == [
        (block.type, block.text, block.name) for block in expected
    ]


def test_a_text_keeps_the_signature_and_the_place_of_its_part() -> None:
    first, thought, signed, rest = (
        *blocks_of(STREAMS["text with a signature at its end"]),
        *blocks_of(STREAMS["a thought, then a signed text"]),
    )
    assert (first.text, data_of(first)["thoughtSignature"], data_of(first)["signed_from"]) == (
        "Größe zählt 🌊",
        FIRST,
        13,
    )
    assert (thought.type, thought.text) == ("thinking", "**Thinking**\nof tides.")
    assert data_of(thought)["signature"] == "gemini"
    assert (signed.text, data_of(signed)["signed_from"], data_of(signed)["model"]) == ("It is high.", 6, MODEL)
    assert (rest.text, rest.data) == (" Very high.", None)


def test_calls_have_ids_of_ours_or_of_the_provider() -> None:
    _, first, second = blocks_of(STREAMS["parallel calls, of which the first is signed"])
    assert (first.name, json.loads(first.text), data_of(first)["thoughtSignature"]) == (
        "doc_search",
        {"query": "rule"},
        FIRST,
    )
    assert "thoughtSignature" not in data_of(second)
    assert first.tool_use_id != second.tool_use_id
    assert (first.tool_use_id or "").startswith("call_")
    _, one, two = blocks_of(STREAMS["calls with ids"])
    assert [(each.tool_use_id, data_of(each)["call_id"]) for each in (one, two)] == [("fc_1", "fc_1"), ("fc_2", "fc_2")]
    repeated = blocks_of(chunk(call("a", {}, None, "x"), call("b", {}, None, "x"), **STOP))
    assert len({block.tool_use_id for block in repeated}) == 2


def test_tools_of_the_provider_are_calls_with_results() -> None:
    code, result, text = blocks_of(STREAMS["code that ran"])
    assert (code.type, code.name, json.loads(code.text)["code"]) == ("server_tool_use", "code_execution", "print(1)\n")
    assert (result.type, result.tool_use_id) == ("code_execution_tool_result", code.tool_use_id)
    assert data_of(result)["item"]["codeExecutionResult"]["output"] == "1\n"
    assert text.text == "It is 1."
    search, found, ours = blocks_of(STREAMS["tools of the provider beside ours"])
    assert (search.name, json.loads(search.text)) == ("google_search_web", {"queries": ["x"]})
    assert (found.type, found.tool_use_id) == ("google_search_web_tool_result", "t1")
    assert data_of(found)["item"]["thoughtSignature"] == SECOND
    assert ours.type == "tool_use"


def test_sources_belong_to_the_text_that_they_support() -> None:
    (text,) = blocks_of(STREAMS["grounding"])
    assert text.text == "The tide. Low at 06:14."
    data = data_of(text)
    assert data["groundingMetadata"] == GROUNDING
    urls = [each["url"] for each in data["annotations"]]
    assert urls == ["https://example.org/a", "https://example.org/b", "https://example.org/a", "gs://files/c"]
    first = data["annotations"][0]
    assert text.text[first["start_index"] : first["end_index"]] == "Low at 06:14."
    assert "start_index" not in data["annotations"][2]
    citations = {
        "citationSources": [{"startIndex": 0, "endIndex": 4, "uri": "https://example.org/c"}, {"license": "mit"}]
    }
    (quoted,) = blocks_of(chunk({"text": "Quote"}, citationMetadata=citations, **STOP))
    assert [each["url"] for each in data_of(quoted)["annotations"]] == ["https://example.org/c"]
    fetched = {
        "urlMetadata": [{"retrievedUrl": "https://example.org", "urlRetrievalStatus": "URL_RETRIEVAL_STATUS_SUCCESS"}]
    }
    (call_first, sources) = blocks_of(chunk(call("a", {}), urlContextMetadata=fetched, **STOP))
    assert (call_first.type, data_of(sources)["urlContextMetadata"]) == ("tool_use", fetched)


def test_other_parts_are_kept_whole() -> None:
    (image,) = blocks_of(STREAMS["an image"])
    assert image.type == "gemini_inlineData"
    assert data_of(image)["item"]["thoughtSignature"] == FIRST
    _, signature = blocks_of(STREAMS["a signature without a text"])
    assert (signature.type, data_of(signature)["item"]) == (
        "gemini_signature",
        {"text": "", "thoughtSignature": SECOND},
    )
    assert blocks_of(chunk({}, {"thought": True}, **STOP)) == []
    (text,) = blocks_of(chunk({"text": "So"}) + chunk({"text": " it is.", "partMetadata": {"a": 1}}, **STOP))
    assert (text.type, text.text) == ("text", "So it is.")
    (later,) = blocks_of(chunk({"somethingNew": {"a": 1}}, **STOP))
    assert later.type == "gemini_somethingNew"


@pytest.mark.parametrize(
    ("reason", "stop_reason"),
    [
        ("STOP", "end_turn"),
        ("MAX_TOKENS", "max_tokens"),
        *(
            (reason, "refusal")
            for reason in ("SAFETY", "RECITATION", "PROHIBITED_CONTENT", "SPII", "BLOCKLIST", "LANGUAGE")
        ),
        ("OTHER", "OTHER"),
    ],
)
def test_a_finish_reason_is_a_stop_reason(reason: str, stop_reason: str) -> None:
    _, accumulator = accumulated(read(chunk({"text": "So"}, finishReason=reason))[0])
    assert (accumulator.stop_reason, accumulator.ended) == (stop_reason, True)


def test_an_answer_with_calls_stops_for_them() -> None:
    _, accumulator = accumulated(read(STREAMS["calls with ids"])[0])
    assert accumulator.stop_reason == "tool_use"


@pytest.mark.parametrize("reason", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE"])
def test_a_reply_that_broke_off_is_retried(reason: str) -> None:
    parts, wire = read(chunk({"text": "So"}, finishReason=reason, finishMessage="No such function."))
    assert not any(isinstance(part, MessageEnded) for part in parts)
    error = provider_error(wire.failure)
    assert isinstance(error, TransientError)
    assert (error.type, error.message) == (reason, "No such function.")


def test_a_missing_signature_is_not_retried() -> None:
    _, wire = read(chunk(finishReason="MISSING_THOUGHT_SIGNATURE"))
    assert isinstance(provider_error(wire.failure), PermanentError)


def test_a_blocked_prompt_is_a_refusal_with_its_reason() -> None:
    feedback = {"blockReason": "PROHIBITED_CONTENT"}
    parts, _ = read(event({"promptFeedback": feedback, "usageMetadata": {"promptTokenCount": 9}, "responseId": "r"}))
    _, accumulator = accumulated(parts)
    assert (accumulator.stop_reason, accumulator.ended, accumulator.usage) == ("refusal", True, {"input_tokens": 9})
    assert [json.loads(each.raw) for each in accumulator.unknown] == [{"promptFeedback": feedback}]


def test_a_failure_in_mid_stream_has_the_name_of_google() -> None:
    failure = {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}
    parts, wire = read(chunk({"text": "So"}) + event(failure))
    assert isinstance(parts[0], MessageStarted)
    error = provider_error(wire.failure)
    assert (error.type, error.busy) == ("UNAVAILABLE", True)


def test_usage_counts_cached_prompts_thoughts_and_tools() -> None:
    usage = {
        "promptTokenCount": 5_000,
        "cachedContentTokenCount": 4_000,
        "toolUsePromptTokenCount": 308,
        "candidatesTokenCount": 37,
        "thoughtsTokenCount": 333,
        "serviceTier": "standard",
    }
    early = {**usage, "candidatesTokenCount": 20}
    _, accumulator = accumulated(read(chunk({"text": "a"}, usage=early) + chunk({"text": "b"}, usage=usage, **STOP))[0])
    assert accumulator.usage == {
        "input_tokens": 1_308,
        "cache_read_input_tokens": 4_000,
        "output_tokens": 370,
        "output_tokens_details": {"thinking_tokens": 333},
    }
    (started, *_) = read(chunk({"text": "a"}, usage={"promptTokenCount": "many"}, **STOP))[0]
    assert isinstance(started, MessageStarted)
    assert started.request_id == "resp-1"


def test_unknown_data_is_kept_and_ends_no_stream() -> None:
    odd = event({"created": 1}) + event("odd") + event({"candidates": "none"})
    parts, _ = read(odd + chunk({"text": "So"}, **STOP))
    _, accumulator = accumulated(parts)
    assert accumulator.ended
    assert len(accumulator.unknown) == 3
    pieces = {"functionCall": {"partialArgs": [{"jsonPath": "$.a", "stringValue": "b"}], "willContinue": True}}
    assert [type(part) for part in read(chunk(pieces, **STOP))[0]].count(Unknown) == 1


def test_a_gateway_may_send_done_and_further_candidates() -> None:
    other = event({"candidates": [{"content": {"parts": [{"text": "Other"}]}, "index": 1}]})
    parts, wire = read(chunk({"text": "So"}, **STOP) + other + b"data: [DONE]\n\n" + chunk({"text": "late"}))
    assert wire.ended
    (block,) = accumulated(parts)[0]
    assert block.text == "So"
