"""Failures of a provider in each of their forms: the type of the error, and whether a retry can help."""

import json
import socket
import ssl
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import aiohttp
import anthropic
import httpx2
import pytest
import yarl
from multidict import CIMultiDict, CIMultiDictProxy
from structlog.testing import capture_logs

from turnstream.domain.errors import AccountRefused, PermanentError, ProviderError, TooLong, TransientError
from turnstream.libraries.dialects.failures import failure_class
from turnstream.libraries.providers.transport.failures import (
    connection_error,
    provider_error,
    retry_after,
)
from turnstream.llm.provider import report_account


def openai(code: str | None = None, type: str | None = "invalid_request_error", message: str = "No.") -> dict[str, Any]:
    return {"error": {"message": message, "type": type, "param": None, "code": code}}


@pytest.mark.parametrize(
    ("said", "status", "kind", "type"),
    [
        (openai("invalid_api_key"), 401, AccountRefused, "invalid_api_key"),
        (openai("model_not_found"), 404, PermanentError, "model_not_found"),
        (openai(), 400, PermanentError, "invalid_request_error"),
        (openai("rate_limit_exceeded", "tokens"), 429, TransientError, "rate_limit_exceeded"),
        (openai("insufficient_quota", "insufficient_quota"), 429, AccountRefused, "insufficient_quota"),
        (openai(None, "server_error"), 500, TransientError, "server_error"),
        (openai("context_length_exceeded"), 400, TooLong, "context_length_exceeded"),
        (openai("tool_use_failed"), 400, TransientError, "tool_use_failed"),
        ({"message": "No.", "type": "internal_server_error", "code": "1000"}, 500, TransientError, None),
        ({"error": {"message": "No.", "code": 401}}, 401, AccountRefused, "http_401"),
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
    headers = httpx2.Headers({"retry-after": "2"})
    error = provider_error(said, status, request_id="req_1", headers=headers)
    assert error.__class__ is kind
    assert (error.message, error.request_id, error.retry_after) == ("No.", "req_1", 2.0)
    if type is None:
        assert isinstance(said, dict)
        type = said.get("type") or said["error"]["type"]
    assert error.type == type


@pytest.mark.parametrize(
    ("status", "request_id", "expected"), [(200, "of the answer", "own"), (500, "header", "header"), (500, None, "own")]
)
def test_the_id_of_the_call_is_the_headers_or_in_mid_stream_the_failures_own(
    status: int, request_id: str | None, expected: str
) -> None:
    failure = {"error": {"message": "No."}, "request_id": "own"}
    assert provider_error(failure, status, request_id=request_id).request_id == expected


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
    assert provider_error(said, status, headers=httpx2.Headers({"x-should-retry": word})).__class__ is kind


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"error": {"reason": "x"}}, '{"error":{"reason":"x"}}'),
        ([1], "[1]"),
        ("", "The provider gave no reason (status 500)."),
        (None, "The provider gave no reason (status 500)."),
    ],
)
def test_a_failure_without_a_message_is_quoted_as_it_came(said: object, words: str) -> None:
    assert provider_error(said, 500).message == words


def test_an_endless_message_is_cut() -> None:
    assert len(provider_error("x" * 100_000, 500).message) == 1_000


def test_a_page_of_a_proxy_is_named_by_its_title() -> None:
    page = "<html>\n<head><title>502 Bad Gateway</title></head>\n<body><center>nginx</center></body></html>"
    assert provider_error(page, 502).message == "The server answered with a page of HTML: 502 Bad Gateway."
    assert provider_error("<!DOCTYPE html>", 502).message == "The server answered with a page of HTML."


# --- failures that a gateway passes on -------------------------------------------------------------------------------

OVERFLOW = "prompt is too long: 209303 tokens > 200000 maximum"
ANTHROPIC = {"type": "error", "error": {"type": "invalid_request_error", "message": OVERFLOW}}


def wrapped(raw: object, code: int = 400, provider: str | None = "Anthropic") -> dict[str, Any]:
    """Returns an error in the form that OpenRouter uses."""
    metadata = {"raw": raw if isinstance(raw, str) else json.dumps(raw), "provider_name": provider}
    return {"error": {"message": "Provider returned error", "code": code, "metadata": metadata}, "user_id": "u"}


def in_words(failure: object, code: str = "400") -> dict[str, Any]:
    """Returns an error in the form that LiteLLM uses."""
    bytes_of_python = json.dumps(failure).replace("'", "\\'")
    words = (
        f"litellm.BadRequestError: AnthropicException - b'{bytes_of_python}'. Received Model Group=m\nFallbacks=None"
    )
    return {"error": {"message": words, "type": "None", "param": "None", "code": code}}


@pytest.mark.parametrize(
    "said",
    [
        wrapped(ANTHROPIC),
        wrapped("data: " + json.dumps(ANTHROPIC) + "\n\n"),
        wrapped(wrapped(ANTHROPIC, provider=None)),
        in_words(ANTHROPIC),
        in_words(in_words(ANTHROPIC)),
        {"error": {"message": f"Error code: 400 - {ANTHROPIC}", "type": None, "code": "400"}},
        {"error": {"message": json.dumps(ANTHROPIC)}},
        {"error": json.dumps(ANTHROPIC)},
        {"detail": ANTHROPIC},
        {"success": False, "errors": [{"code": 2001, "message": OVERFLOW}]},
        [ANTHROPIC],
        {"metadata": {"raw": ANTHROPIC}, "message": "Provider returned error"},
        wrapped("x", code=400) | {"error": {"message": OVERFLOW, "metadata": {"raw": "ERROR"}}},
    ],
)
@pytest.mark.parametrize("status", [400, 500, 502, 200])
def test_a_wrapped_overflow_is_too_long_and_says_so(said: object, status: int) -> None:
    error = provider_error(said, status)
    assert (error.__class__, error.type) == (TooLong, "context_length_exceeded")
    assert error.message.removeprefix("Anthropic: ") == OVERFLOW


@pytest.mark.parametrize(
    ("said", "status", "kind", "type", "message"),
    [
        (
            wrapped({"error": {"type": "overloaded_error", "message": "Overloaded"}}),
            400,
            TransientError,
            "overloaded_error",
            "Anthropic: Overloaded",
        ),
        (
            wrapped({"error": {"code": 429, "message": "Slow down."}}, provider="Mistral"),
            400,
            TransientError,
            "http_429",
            "Mistral: Slow down.",
        ),
        (
            wrapped("m is temporarily rate-limited upstream by BaseTen.", 429, "BaseTen"),
            200,
            TransientError,
            "http_429",
            "m is temporarily rate-limited upstream by BaseTen.",
        ),
        (
            wrapped({"error": {"message": "Wrong key.", "code": "invalid_api_key"}}, 502, "OpenAI"),
            502,
            AccountRefused,
            "invalid_api_key",
            "OpenAI: Wrong key.",
        ),
        (wrapped("ERROR", 502, None), 502, TransientError, "http_502", "Provider returned error"),
        (wrapped({}, 502), 200, TransientError, "http_502", "Provider returned error"),
        (
            in_words({"error": {"code": 503, "message": "Full.", "status": "UNAVAILABLE"}}),
            400,
            TransientError,
            "UNAVAILABLE",
            "Full.",
        ),
        (
            {"message": 'BedrockException - {"__type": "com.amazon#ThrottlingException", "message": "Too many."}'},
            400,
            TransientError,
            "ThrottlingException",
            "Too many.",
        ),
        ({"error": [{"code": 401, "message": "No."}]}, 200, AccountRefused, "http_401", "No."),
        ({"error": True, "message": "No {brackets}."}, 400, PermanentError, "http_400", "No {brackets}."),
        ({"message": "No {'a': b'}."}, 400, PermanentError, "http_400", "No {'a': b'}."),
        ({"message": "No {" + "x" * 20_000 + "}"}, 400, PermanentError, "http_400", "No {" + "x" * 996),
        ({"message": "No.", "status": "9" * 5000}, 200, TransientError, "provider_error", "No."),
        ({"errors": []}, 500, TransientError, "http_500", '{"errors":[]}'),
        ([], 500, TransientError, "http_500", "The provider gave no reason (status 500)."),
    ],
)
def test_a_wrapped_failure_is_sorted_by_its_own_name_and_status(
    said: object, status: int, kind: type[ProviderError], type: str, message: str
) -> None:
    error = provider_error(said, status)
    assert (error.__class__, error.type, error.message) == (kind, type, message)


def test_wrappers_without_an_end_are_taken_off_up_to_a_depth() -> None:
    said: object = {"error": {"message": "deep"}}
    for _ in range(9):
        said = wrapped(said)
    assert provider_error(said, 400).message.startswith("Anthropic: ")
    packed: object = {"message": "deep"}
    for _ in range(50):
        packed = {"error": packed}
    assert provider_error(packed, 400).__class__ is PermanentError


# --- when to try again -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ([("retry-after-ms", "0"), ("retry-after", "1")], 1.0),
        ([("retry-after-ms", "1500"), ("retry-after", "1")], 1.5),
        ([("retry-after", "1"), ("retry-after", "4")], 4.0),
        ([("retry-after", "4")], 4.0),
        ([("retry-after-ms", "soon"), ("retry-after", "0.5")], 0.5),
        ([("retry-after-ms", "-20"), ("retry-after", "-3")], 0.0),
        ([("retry-after", "Wed, 21 Oct 2015 07:28:00 GMT")], 0.0),
        ([("retry-after", "Wed, 21 Oct 2015 07:28:00"), ("retry-after-ms", "100")], 0.1),
        ([("retry-after", "Wed, 21 Oct 99999 07:28:00 GMT")], None),
        ([("retry-after", "1e300")], 1e300),
        ([("retry-after", "nan")], None),
        ([("retry-after", "inf")], None),
        ([("retry-after", "soon")], None),
        ([], None),
    ],
)
def test_when_to_try_again_is_the_longest_wait_that_is_given(
    headers: list[tuple[str, str]], seconds: float | None
) -> None:
    assert retry_after(httpx2.Headers(headers)) == seconds


def test_when_to_try_again_may_be_a_date() -> None:
    until = datetime.now(UTC) + timedelta(hours=1)
    seconds = retry_after(httpx2.Headers({"retry-after": format_datetime(until, usegmt=True)}))
    assert seconds is not None
    assert 3000 < seconds <= 3600


RETRY_INFO = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "37.5s"}


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ([{"error": {"code": 429, "message": "No.", "details": [{"@type": "other"}, RETRY_INFO, "x"]}}], 37.5),
        (wrapped({"error": {"message": "No.", "details": [RETRY_INFO]}}), 37.5),
        ({"error": {"message": "No.", "metadata": {"retry_after_seconds": 40}}}, 40.0),
        ({"error": {"message": "No."}, "retry_after": 50}, 50.0),
        ({"error": {"message": "No.", "retry_after_ms": 100}}, 5.0),
        ({"error": {"message": "No.", "retry_after": True, "retryAfter": {}, "details": {}}}, 5.0),
        ({"error": {"message": "No.", "retry_after": 10**400}}, 5.0),
    ],
)
def test_a_body_may_ask_for_a_wait_too(said: object, seconds: float) -> None:
    assert provider_error(said, 429, headers=httpx2.Headers({"retry-after": "5"})).retry_after == seconds


@pytest.mark.parametrize(
    ("said", "status", "busy"),
    [
        ("No.", 429, True),
        ("No.", 503, True),
        ("No.", 529, True),
        ("No.", 500, False),
        (openai("insufficient_quota"), 429, False),
        ({"error": {"type": "overloaded_error", "message": "No."}}, 200, True),
        (wrapped("m is rate-limited upstream.", 429), 200, True),
    ],
)
def test_a_provider_without_capacity_is_distinguished_from_a_broken_one(said: object, status: int, busy: bool) -> None:
    assert provider_error(said, status).busy is busy


# --- lost connections ------------------------------------------------------------------------------------------------

NOT_IN_TIME = "The connection to the provider could not be made in time."
CUT = "The provider closed the connection in the middle of its answer."
URL = yarl.URL("http://internal.example/v1")
ASKED = aiohttp.RequestInfo(URL, "POST", CIMultiDictProxy(CIMultiDict()), URL)
REQUEST = httpx2.Request("POST", "http://internal.example/v1")


def because(error: Exception, *causes: BaseException) -> Exception:
    """Chains the exceptions to the error as its causes, as `raise … from` does."""
    inner: BaseException = error
    for cause in causes:
        inner.__cause__ = cause
        inner = cause
    return error


def sdk(*causes: BaseException) -> Exception:
    return because(anthropic.APIConnectionError(request=REQUEST), *causes)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            sdk(httpx2.ConnectError("x"), OSError("x"), socket.gaierror(-2, "Name or service not known")),
            "The name of the provider's server was not found.",
        ),
        (sdk(httpx2.ProxyError("x")), "The proxy made no connection to the provider."),
        (
            sdk(httpx2.ConnectError("x"), ssl.SSLCertVerificationError()),
            "The TLS certificate of the provider is not valid.",
        ),
        (sdk(httpx2.ConnectError("x"), ssl.SSLError()), "No TLS connection to the provider could be made."),
        (sdk(httpx2.ConnectTimeout("x"), ConnectionRefusedError()), "The provider refused the connection."),
        (sdk(httpx2.UnsupportedProtocol("x")), "The address of the provider is not valid."),
        (sdk(httpx2.TooManyRedirects("x")), "The provider redirected the request too often."),
        (httpx2.DecodingError("x"), "The provider's answer could not be decompressed."),
        (aiohttp.ClientResponseError(ASKED, (), status=400), "The provider's answer is not valid HTTP."),
        (
            sdk(httpx2.ConnectTimeout("x"), aiohttp.ConnectionTimeoutError()),
            "The connection to the provider could not be made in time.",
        ),
        (sdk(httpx2.PoolTimeout("x")), "No connection to the provider was free in time."),
        (sdk(httpx2.WriteTimeout("x")), "The provider did not read the request in time."),
        (sdk(httpx2.ConnectError("x")), "No connection to the provider could be made."),
        (
            because(
                anthropic.APITimeoutError(request=REQUEST),
                httpx2.ConnectTimeout("x"),
                aiohttp.ServerDisconnectedError(),
            ),
            "The provider closed the connection before it answered.",
        ),
        (sdk(httpx2.RemoteProtocolError("x")), "The provider closed the connection before it answered."),
        (
            because(httpx2.ReadError("Response payload is not completed"), aiohttp.ClientPayloadError()),
            CUT,
        ),
        (httpx2.RemoteProtocolError("stream reset"), CUT),
        (ConnectionResetError(), CUT),
        (sdk(RuntimeError("x")), "The connection to the provider failed before it answered."),
        (OSError("x"), "The connection to the provider failed in the middle of its answer."),
    ],
)
def test_a_lost_connection_is_described_in_a_sentence_without_the_text_of_the_transport(
    error: Exception, sentence: str
) -> None:
    lost = connection_error(error)
    assert (lost.__class__, lost.type, lost.message) == (TransientError, "connection_error", sentence)


@pytest.mark.parametrize(
    "error", [httpx2.ReadTimeout("x"), sdk(httpx2.TimeoutException("x"), aiohttp.SocketTimeoutError())]
)
def test_a_silence_is_reported_as_a_silence(error: Exception) -> None:
    lost = connection_error(error)
    assert (lost.type, lost.message) == ("timeout_error", "The provider sent nothing for too long.")


def test_an_endless_chain_of_causes_is_followed_for_a_while() -> None:
    first, second = OSError("first"), OSError("second")
    first.__cause__, second.__cause__ = second, first
    assert connection_error(first).type == "connection_error"


def test_every_exception_of_the_http_client_has_a_sentence() -> None:
    """No exception falls through to the last sentence, which names no cause."""
    kinds = [
        kind for kind in vars(httpx2).values() if isinstance(kind, type) and issubclass(kind, httpx2.TransportError)
    ]
    assert len(kinds) > 10
    kinds.remove(httpx2.SSEError)  # this exception belongs to a reader of events that the server does not use
    for kind in kinds:
        if kind not in {httpx2.TransportError, httpx2.NetworkError}:
            assert "failed" not in connection_error(sdk(kind("x"))).message, kind


@pytest.mark.parametrize(
    ("type", "expected"),
    [
        ("invalid_api_key", "account"),
        ("http_401", "account"),
        ("rate_limit_error", "rate_limit"),
        ("http_429", "rate_limit"),
        ("overloaded_error", "overloaded"),
        ("http_529", "overloaded"),
        ("overloaded", "overloaded"),
        ("context_length_exceeded", "too_long"),
        ("invalid_request_error", "refused"),
        ("http_404", "refused"),
        ("http_500", "server"),
        ("stall_timeout", "server"),
    ],
)
def test_the_type_of_a_failure_has_a_class(type: str, expected: str) -> None:
    assert failure_class(type) == expected


def test_a_failure_of_the_account_is_in_the_log_of_the_operator() -> None:
    with capture_logs() as logs:
        report_account(TransientError("overloaded", "Busy."))
        report_account(AccountRefused("invalid_api_key", "Wrong key."))
    assert [(line["event"], line["message"]) for line in logs] == [("provider.account", "Wrong key.")]
