"""The examples in docs/anthropic.md work."""

import asyncio
import re
from pathlib import Path

import pytest

from tests.support.http_server import Server

pytestmark = pytest.mark.asyncio(loop_scope="session")

PAGE = (Path(__file__).parents[3] / "docs/anthropic.md").read_text(encoding="utf-8")


async def test_the_first_program_prints_an_answer(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    monkeypatch.setenv("TURNSTREAM_TOKEN", await server.token("reader of the page"))
    program = program.replace("http://127.0.0.1:8000", server.url).replace('"demo"', '"plain"')
    await asyncio.to_thread(exec, program, {})
    assert "Hello." in capsys.readouterr().out  # the output also contains log lines
