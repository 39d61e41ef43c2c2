"""Features that only Anthropic's adapter has, on a real socket through the real SDK. test_adapters.py tests the
features of all adapters.
"""

import json
from collections.abc import AsyncIterator

import pytest

from tests.integration.adapters import JSON, REQUEST, Talk, event, talking
from turnstream.domain.errors import PermanentError, ProviderError, TransientError
from turnstream.llm.provider import (
    BlockClosed,
    BlockOpened,
    MessageDelta,
    MessageEnded,
    MessageStarted,
    ModelRequest,
    Part,
)


@pytest.fixture
async def talk() -> AsyncIterator[Talk]:
    async with talking("anthropic") as talk:
        yield talk


async def test_a_request_names_the_version_of_the_api(talk: Talk) -> None:
    talk.answers(talk.api.begun + talk.api.end)
    await talk.heard()
    (asked,) = talk.server.requests
    assert asked.headers["anthropic-version"]
    assert "anthropic-beta" not in asked.headers


async def test_beta_features_are_named_in_their_header(talk: Talk) -> None:
    talk.answers(talk.api.begun + talk.api.end)
    request = ModelRequest("m", REQUEST.messages, params={"betas": ["a-1", "b-2"]})
    async for _ in talk.provider.stream(request):
        pass
    assert talk.server.requests[0].target == "/v1/messages?beta=true"
    assert talk.server.requests[0].headers["anthropic-beta"] == "a-1,b-2"


@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p"])
async def test_sampling_is_requested_by_the_version_of_the_api_that_has_it(talk: Talk, name: str) -> None:
    talk.answers(talk.api.begun + talk.api.end)
    for params in ({"max_tokens": 5}, {name: 0.5}, {"max_tokens": 5}):
        async for _ in talk.provider.stream(ModelRequest("claude-sonnet-4-6", REQUEST.messages, params=params)):
            pass
    versions = [asked.headers["anthropic-version"] for asked in talk.server.requests]
    assert versions[1] == "2023-06-01"
    assert versions[0] == versions[2] != "2023-06-01"
    assert [json.loads(asked.body).get(name) for asked in talk.server.requests] == [None, 0.5, None]


async def test_an_answer_that_was_not_streamed_is_read(talk: Talk) -> None:
    said = {"type": "message", "content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn", "usage": {}}
    talk.answers(json.dumps(said).encode(), headers=JSON, sizes=[9])
    assert await talk.heard() == [
        MessageStarted({}),
        BlockOpened(-1, "text", None, "Hi"),
        BlockClosed(-1),
        MessageDelta("end_turn", {}),
        MessageEnded(),
    ]


async def test_an_answer_that_was_not_streamed_may_begin_with_a_byte_order_mark(talk: Talk) -> None:
    said = {"type": "message", "content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn", "usage": {}}
    talk.answers(b"\xef\xbb\xbf" + json.dumps(said).encode(), headers=JSON)
    assert BlockOpened(-1, "text", None, "Hi") in await talk.heard()


async def test_an_error_without_its_last_blank_line_is_raised(talk: Talk) -> None:
    talk.answers(talk.api.begun + event(type="error", error={"type": "overloaded_error", "message": "m"}).rstrip())
    assert (await talk.failure()).type == "overloaded_error"


@pytest.mark.parametrize(
    ("type", "kind"),
    [
        ("overloaded_error", TransientError),
        ("api_error", TransientError),
        ("rate_limit_error", TransientError),
        ("brand_new_error", TransientError),
        ("invalid_request_error", PermanentError),
        ("billing_error", PermanentError),
    ],
)
@pytest.mark.parametrize("own_id", ["req_2", None])
async def test_an_error_in_mid_stream_is_sorted_by_its_name_since_its_status_is_200(
    type: str, kind: type[ProviderError], own_id: str | None, talk: Talk
) -> None:
    body = talk.api.begun + event(type="error", error={"type": type, "message": "No."}, request_id=own_id)
    talk.answers(body, headers={"request-id": "req_1"})
    told: list[Part] = []
    error = await talk.failure(told)
    assert isinstance(error, kind)
    assert (error.type, error.message, error.request_id) == (type, "No.", own_id or "req_1")
    assert len(told) == 1


async def test_a_refusal_of_another_shape_is_quoted_as_it_came(talk: Talk) -> None:
    talk.answers(b'{"reason":"no"}', status=404, headers=JSON)
    assert (await talk.failure()).message == '{"reason":"no"}'


@pytest.mark.parametrize(
    ("name", "status", "word", "kind"),
    [
        ("invalid_request_error", 529, None, PermanentError),
        ("overloaded_error", 400, None, TransientError),
        ("rate_limit_error", 429, "false", PermanentError),
        ("invalid_request_error", 400, "true", TransientError),
        ("rate_limit_error", 429, "perhaps", TransientError),
    ],
)
async def test_the_servers_own_word_goes_before_the_name_and_the_name_before_the_status(
    name: str, status: int, word: str | None, kind: type[ProviderError], talk: Talk
) -> None:
    body = json.dumps({"error": {"type": name, "message": "No."}, "request_id": "req_1"}).encode()
    talk.answers(body, status=status, headers={**JSON, **({"x-should-retry": word} if word else {})})
    error = await talk.failure()
    assert type(error) is kind
    assert (error.type, error.message, error.request_id) == (name, "No.", "req_1")
