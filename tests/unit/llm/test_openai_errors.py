"""Failures in every shape: their types, and whether a retry can help."""

from typing import Any

import pytest

from app.domain.errors import PermanentError, ProviderError, TooLong, TransientError
from app.llm.openai.provider import provider_error


def openai(code: str | None = None, type: str | None = "invalid_request_error", message: str = "No.") -> dict[str, Any]:
    return {"error": {"message": message, "type": type, "param": None, "code": code}}


@pytest.mark.parametrize(
    ("said", "status", "kind", "type"),
    [
        (openai("invalid_api_key"), 401, PermanentError, "invalid_api_key"),
        (openai("model_not_found"), 404, PermanentError, "model_not_found"),
        (openai(), 400, PermanentError, "invalid_request_error"),
        (openai("rate_limit_exceeded", "tokens"), 429, TransientError, "rate_limit_exceeded"),
        (openai("insufficient_quota", "insufficient_quota"), 429, PermanentError, "insufficient_quota"),
        (openai(None, "server_error"), 500, TransientError, "server_error"),
        (openai("context_length_exceeded"), 400, TooLong, "context_length_exceeded"),
        (openai("tool_use_failed"), 400, TransientError, "tool_use_failed"),
        ({"message": "No.", "type": "internal_server_error", "code": "1000"}, 500, TransientError, None),
        ({"error": {"message": "No.", "code": 401}}, 401, PermanentError, "http_401"),
        ({"error": {"message": "No.", "code": 502}}, 200, TransientError, "http_502"),
        ({"error": {"message": "No.", "code": "429"}}, 200, TransientError, "http_429"),
        ({"error": {"message": "No.", "code": 400}}, 200, PermanentError, "http_400"),
        ({"error": {"message": "No.", "status_code": 503}}, 200, TransientError, "http_503"),
        ({"object": "error", "message": "No.", "type": "BadRequestError", "code": 400}, 200, PermanentError, None),
        ({"error": {"message": "No.", "type": "invalid_request_error"}}, 200, PermanentError, None),
        ({"error": {"message": "No.", "type": "server_error"}}, 200, TransientError, None),
        ({"error": {"message": "No."}}, 200, TransientError, "provider_error"),
        ({"error": {"message": "No.", "code": 7}}, 200, TransientError, "provider_error"),
        ({"code": "The service is unavailable", "error": "No."}, 503, TransientError, "http_503"),
        ({"detail": "No."}, 422, PermanentError, "http_422"),
        ({"msg": " No. "}, 404, PermanentError, "http_404"),
        ("No.", 408, TransientError, "http_408"),
        ("No.", 400, PermanentError, "http_400"),
    ],
)
def test_a_failure_has_a_class_a_name_and_the_words_of_the_provider(
    said: object, status: int, kind: type[ProviderError], type: str | None
) -> None:
    error = provider_error(said, status, request_id="req_1", retry_after=2.0)
    assert error.__class__ is kind
    assert (error.message, error.request_id, error.retry_after) == ("No.", "req_1", 2.0)
    if type is None:
        assert isinstance(said, dict)
        type = said.get("type") or said["error"]["type"]
    assert error.type == type


@pytest.mark.parametrize(
    "message",
    [
        "This endpoint's maximum context length is 200000 tokens. However, you requested about 2500021 tokens.",
        "Your input exceeds the context window of this model.",
        "the request exceeds the available context size, try increasing it",
        "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
        "This model's maximum prompt length is 131072 but the request contains 200000 tokens.",
        "Please reduce the length of the messages or completion.",
    ],
)
@pytest.mark.parametrize("status", [400, 413, 422, 200])
def test_a_prompt_that_is_too_long_has_one_type_for_all_servers(message: str, status: int) -> None:
    error = provider_error({"error": {"message": message, "code": 400}}, status)
    assert (error.__class__, error.type) == (TooLong, "context_length_exceeded")


def test_too_long_for_a_minute_may_fit_the_next_one_unless_it_never_can() -> None:
    later = provider_error(openai("rate_limit_exceeded", "tokens", "Rate limit reached on tokens per min"), 429)
    never = provider_error(openai("rate_limit_exceeded", "tokens", "Request too large for m on tokens per min"), 429)
    assert (later.__class__, never.__class__) == (TransientError, PermanentError)
    assert later.type == never.type


@pytest.mark.parametrize(
    ("word", "said", "status", "kind"),
    [
        ("true", openai(), 400, TransientError),
        ("false", openai("rate_limit_exceeded"), 429, PermanentError),
        ("perhaps", openai("rate_limit_exceeded"), 429, TransientError),
        ("true", openai("context_length_exceeded"), 400, TooLong),
    ],
)
def test_the_servers_own_word_on_trying_again_goes_first(
    word: str, said: object, status: int, kind: type[ProviderError]
) -> None:
    assert provider_error(said, status, should_retry=word).__class__ is kind


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"error": {"reason": "x"}}, '{"error":{"reason":"x"}}'),
        ([1], "[1]"),
        ("", "(the provider gave no reason)"),
        (None, "(the provider gave no reason)"),
    ],
)
def test_a_failure_without_a_message_is_quoted_as_it_came(said: object, words: str) -> None:
    assert provider_error(said, 500).message == words


def test_an_endless_message_is_cut() -> None:
    assert len(provider_error("x" * 100_000, 500).message) == 1_000
