"""Every reader of foreign data, against an endless sender. The table in docs/security.md lists these readers."""

import pytest

from tests.support.endless import ANSWERS, check_documented, documented_bounds, read_answer, read_count
from tests.support.pages import ROOT
from turnstream.libraries.providers.anthropic.provider import AnthropicProvider
from turnstream.libraries.providers.transport.http import MAX_COUNT_BYTES

LARGE = "tests/integration/api/test_refusals.py::test_a_body_that_is_too_large_is_refused"
MCP = "tests/extensions/mcp/test_bounded_readers.py::"
ISSUER = "tests/extensions/jwt/test_bounded_readers.py::"

# The test of each reader. The tests of readers in extensions are in the folders of the extensions.
READERS = {
    **dict.fromkeys(ANSWERS, "tests/integration/test_bounded_readers.py::test_an_answer_is_read_up_to_its_bound"),
    "token count of a provider": "tests/integration/test_bounded_readers.py::test_a_count_is_read_up_to_its_bound",
    "HTTP tool": "tests/extensions/http_tools/test_bounded_readers.py::test_an_answer_is_read_up_to_its_bound",
    "MCP server over HTTP: JSON": f"{MCP}test_a_message_over_http_is_read_up_to_its_bound",
    "MCP server over HTTP: events": f"{MCP}test_a_message_over_http_is_read_up_to_its_bound",
    "MCP server over stdio": f"{MCP}test_a_message_over_stdio_is_read_up_to_its_bound",
    "list of the tools of an MCP server": f"{MCP}test_a_list_of_tools_is_read_up_to_its_bound",
    "receiver of webhooks": "tests/extensions/webhooks/test_bounded_readers.py::test_only_the_status_is_read",
    "keys and configuration of an issuer": f"{ISSUER}test_keys_are_read_up_to_their_bound",
    "compressed keys of an issuer": f"{ISSUER}test_keys_are_read_up_to_their_bound",
    "archive of an owner": "tests/extensions/archives/test_bounded_readers.py::test_a_file_is_read_up_to_its_bound",
    "body of a request": LARGE,
    "upload": LARGE,
}


@pytest.mark.parametrize("answer", ANSWERS)
async def test_an_answer_is_read_up_to_its_bound(answer: str) -> None:
    check_documented(answer, ANSWERS[answer][0])
    await read_answer(AnthropicProvider, answer)


async def test_a_count_is_read_up_to_its_bound() -> None:
    check_documented("token count of a provider", MAX_COUNT_BYTES)
    await read_count(AnthropicProvider)


def test_the_table_in_the_docs_has_every_reader_and_each_has_a_test() -> None:
    assert [*documented_bounds()] == [*READERS]
    for test in READERS.values():
        path, _, function = test.partition("::")
        assert f"def {function}(" in (ROOT / path).read_text(encoding="utf-8")
