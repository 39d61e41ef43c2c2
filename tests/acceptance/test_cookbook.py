"""The program of docs/cookbook.md, run as a whole against a server like that of `make run` without a key."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.pages import BLOCKS
from tests.support.server_process import Server, clean_environment

COOKBOOK = [block for block in BLOCKS if block.page == "docs/cookbook.md"]
PRINTED = "".join(block.code for block in COOKBOOK if block.language == "text")

pytestmark = [pytest.mark.timeout(180), pytest.mark.extensions("search")]


async def test_every_recipe_prints_what_the_page_shows(server: Callable[[], Awaitable[Server]], tmp_path: Path) -> None:
    running = await server()
    program = "\n".join(block.code for block in COOKBOOK if block.language == "python")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program.replace("http://127.0.0.1:8000", running.url)),
        cwd=tmp_path,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    printed, errors = await asyncio.wait_for(process.communicate(), 100)
    assert (printed.decode(), errors.decode()) == (PRINTED, "")
