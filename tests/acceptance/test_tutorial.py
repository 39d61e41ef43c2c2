"""docs/tutorial.md from its first to its last step, in one shell, as a reader types it."""

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.issuer import issuing
from tests.support.pages import BLOCKS
from tests.support.server_process import DEFAULTS, clean_environment, free_port

TUTORIAL = [block for block in BLOCKS if block.page == "docs/tutorial.md"]

pytestmark = [pytest.mark.needs("curl"), pytest.mark.timeout(180), pytest.mark.extensions("jwt")]


def of_language(language: str) -> list[str]:
    return [block.code for block in TUTORIAL if block.language == language]


async def test_every_step_of_the_tutorial_prints_what_the_page_shows(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "desk.py").write_text(of_language("python")[0], encoding="utf-8")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    ports = [free_port(), free_port()]
    async with issuing() as issuer:
        issuer.add_key("first")
        script = "\n".join(["set -eu", *of_language("sh")])
        for written, real in {
            "127.0.0.1:8000": f"127.0.0.1:{ports[0]}",
            "127.0.0.1:8001": f"127.0.0.1:{ports[1]}",
            "TURNSTREAM_PORT=8001": f"TURNSTREAM_PORT={ports[1]}",
            "https://login.example.com": issuer.url,
        }.items():
            assert written in script
            script = script.replace(written, real)
        environment = clean_environment() | {
            "TURNSTREAM_LEASE": DEFAULTS["TURNSTREAM_LEASE"],
            "TURNSTREAM_PORT": str(ports[0]),
            "DATABASE_URL": database_url,
            "jwt": issuer.token("first"),
        }
        printed = await run(script, tmp_path, environment)
    assert printed == "".join(of_language("text"))
    second = (tmp_path / "second.log").read_text(encoding="utf-8")
    assert '"event":"turn.claimed"' in second, "the killed replica had answered already"


async def run(script: str, folder: Path, environment: dict[str, str]) -> str:
    """Returns the script's output. If the script fails, no server process is left behind."""
    shell = await asyncio.create_subprocess_exec(
        "bash",
        "-c",
        script,
        cwd=folder,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        printed, errors = await shell.communicate()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
    assert shell.returncode == 0, errors.decode()
    return printed.decode()
