"""The live test passes against a local server that implements the provider's API. A default run deselects the live
test.
"""

import asyncio
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.assistants.model import Conversation, Said, Silence, Use, model_api
from tests.support.server_process import clean_environment

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(300)


def answers(conversation: Conversation) -> Iterable[Said]:
    match conversation.question.split()[0]:
        case "Call" if not conversation.answered:
            return ["I look it up.", Use("high_water", {"port": "Dover"})]
        case "Call":
            return [f"It is at {conversation.answered[0].text[-6:]}"]
        case "Which":
            return ["Dover"]
        case "Count":
            return ["one two three ", Silence()]
        case _:
            return ["Ready."]


async def pytest_of(*arguments: str, **environment: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", "-q", "-n", "0", "--no-cov", "-p", "no:cacheprovider", *arguments),
        cwd=ROOT,
        env=clean_environment() | environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await process.communicate()
    return process.returncode, printed.decode()


async def test_the_live_test_passes_against_a_server_with_the_api_of_a_provider(postgres_server: str) -> None:
    async with model_api(answers) as model:
        there = {"ANTHROPIC_API_KEY": "sk-ant-0", "ANTHROPIC_BASE_URL": model.url, "LIVE_MODELS": "claude-live"}
        there |= {"LIVE_TESTS": "1", "DATABASE_URL": postgres_server}
        code, printed = await pytest_of("tests/live", **there, LIVE_CEILING="0.01")
        assert (code, model.requests) == (1, [])
        assert "claude-live: at most 6 calls, 0.3150 by assumed prices" in printed
        assert "Nothing was called: 0.3150 is above LIVE_CEILING (0.01)." in printed
        code, printed = await pytest_of("tests/live", **there)
    assert code == 0, printed
    assert "together at most 0.3150; the ceiling is 1 (LIVE_CEILING)" in printed
    assert len(model.requests) == 5


async def test_without_being_asked_for_no_live_test_is_selected(postgres_server: str) -> None:
    code, printed = await pytest_of("tests/live", "--collect-only", ANTHROPIC_API_KEY="sk-ant-0")
    assert code == 5
    assert "no tests collected (1 deselected)" in printed
    code, printed = await pytest_of("tests/live", LIVE_TESTS="1", DATABASE_URL=postgres_server)
    assert code == 1
    assert "No key is set" in printed
