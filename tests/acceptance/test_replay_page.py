"""The commands of docs/replay.md, run as they are written, with the demo: they print what the page says."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.conftest import StartServer
from tests.support.server_process import TURNSTREAM, clean_environment

ROOT = Path(__file__).parents[2]
ADDRESS = "http://127.0.0.1:8000"


@pytest.mark.timeout(200)  # each replay makes a database
@pytest.mark.needs("curl")
async def test_the_commands_of_the_page_print_what_it_says(
    server: StartServer, database_url: str, tmp_path: Path
) -> None:
    page = (ROOT / "docs/replay.md").read_text(encoding="utf-8")
    start, *blocks = re.findall(r"^```(sh|text)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert start == ("sh", "echo TURNSTREAM_RECORD=recordings >> .env\nmake run\n")
    running = await server(TURNSTREAM_RECORD="recordings")
    script = "\n".join(["set -eu", *(block for kind, block in blocks if kind == "sh")])
    script = script.replace(ADDRESS, running.url).replace(".venv/bin/turnstream", str(TURNSTREAM))
    environment = {**clean_environment(), "DATABASE_URL": database_url, "TURNSTREAM_RECORD": "recordings"}
    shell = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=190, check=False
    )
    assert (shell.returncode, shell.stderr) == (0, "")
    assert _figures_hidden(shell.stdout) == _figures_hidden("".join(block for kind, block in blocks if kind == "text"))


def _figures_hidden(printed: str) -> str:
    """Without the tokens, which depend on the tools of the server."""
    return re.sub(r'"input_tokens":\d+', '"input_tokens":…', printed)
