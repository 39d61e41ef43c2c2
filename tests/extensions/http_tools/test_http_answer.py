import pytest

from tests.support.pictures import PIXEL
from turnstream.extensions.http_tools.client import HttpResponse
from turnstream.extensions.http_tools.tool import outcome_of
from turnstream.tools.tool import File, Outcome

NOTHING = "The call succeeded and returned nothing."


def read(body: str | bytes, status: int = 200, charset: str | None = None, **secrets: str) -> Outcome:
    sent = body.encode() if isinstance(body, str) else body
    return outcome_of("weather", HttpResponse(status, sent, charset), "json", secrets)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("sunny", Outcome("sunny")),
        ('{"text": "sunny"}', Outcome("sunny")),
        ('{"text": "no such city", "is_error": true}', Outcome("no such city", is_error=True)),
        ('{"output": {"sky": ["blue"]}}', Outcome('{"sky":["blue"]}')),
        ('{"output": "sunny", "is_error": false}', Outcome("sunny")),
        ('{"output": {"code": 7}, "is_error": true}', Outcome('{"code":7}', is_error=True)),
        ('{"output": null}', Outcome(NOTHING)),
        ('{"text": "sunny", "data": {"uv": [1]}}', Outcome("sunny", data={"uv": [1]})),
        ('{"output": null, "data": 7, "is_error": false}', Outcome(NOTHING, data=7)),
        ('{"is_error": true, "output": null}', Outcome("The call failed, and nothing is said of why.", is_error=True)),
        ('{"text": 5}', Outcome('{"text": 5}')),
        ('{"sky": "blue", "is_error": true}', Outcome('{"sky": "blue", "is_error": true}')),
        ('[1, 2]', Outcome("[1, 2]")),
        ('{"text": "cut off', Outcome('{"text": "cut off')),
        ("", Outcome(NOTHING)),
        ("[" * 100_000, Outcome("[" * 100_000)),
        ("\ufeffsunny", Outcome("sunny")),
    ],
)  # fmt: skip
def test_an_answer_is_translated_into_an_outcome(body: str, expected: Outcome) -> None:
    assert read(body) == expected


def test_an_output_is_written_as_the_tool_wants_it() -> None:
    answer = HttpResponse(200, b'{"output": {"sky": "blue"}}', None)
    assert outcome_of("weather", answer, "text", {}).text == "sky: blue"


def test_the_data_of_a_refusal_is_kept_without_secrets() -> None:
    found = read('{"text": "No.", "data": {"sent": "pass\\"word"}}', 403, key='Bearer pass"word')
    assert (found.is_error, found.data) == (True, {"sent": "[hidden]"})


def test_an_answer_that_is_not_text_is_an_error() -> None:
    assert read(b"\x89PNG\xff") == Outcome("The answer is not text.", is_error=True)


@pytest.mark.parametrize(
    ("content", "media_type", "is_file"),
    [
        (PIXEL, None, True),
        (PIXEL, "image/jpeg", True),
        (PIXEL, "text/plain", False),
        (b"%PDF-1.7 \xff", "application/octet-stream", True),
        (b"%PDF-1.7", "application/pdf", True),
        (b"%PDF-1.7 begins every file, says the manual.", None, False),
        (b"GIF89a is the version of 1989.", "text/plain", False),
        (b"PK\xff", "image/png", False),
    ],
)
def test_an_image_or_a_pdf_is_a_file(content: bytes, media_type: str | None, is_file: bool) -> None:
    outcome = outcome_of("weather", HttpResponse(200, content, None, media_type), "json", {})
    assert (outcome == Outcome("", more=(File(content),))) is is_file


def test_an_error_with_content_is_still_an_error() -> None:
    assert read(PIXEL, status=404) == Outcome("weather answered 404 Not Found: The answer is not text.", is_error=True)


def test_a_charset_counts_where_it_is_a_usual_one() -> None:
    assert read("Grüße".encode("latin-1"), charset="ISO-8859-1").text == "Grüße"
    assert read("Grüße", charset="punycode").text == "Grüße"
    assert read("Grüße", charset="zip").text == "Grüße"


def test_a_failure_status_is_reported_with_its_text_cut() -> None:
    assert read("no such city", 404) == Outcome("weather answered 404 Not Found: no such city", is_error=True)
    assert read('{"text": "no such city"}', 499).text == "weather answered 499: no such city"
    assert read("", 304).text == "weather answered 304 Not Modified."
    assert len(read("x" * 10_000, 400).text) < 2100


@pytest.mark.parametrize("status", [200, 401])
def test_a_secret_that_is_repeated_is_hidden(status: int) -> None:
    text = read("bad token tok-123456 in Bearer tok-123456", status, authorization="Bearer tok-123456", short="1").text
    assert "123456" not in text
    assert "[hidden]" in text
