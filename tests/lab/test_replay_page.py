"""The commands of the lab's README, run verbatim with the demo. Their output equals the text of the page."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.conftest import StartServer
from tests.support.server_process import TURNSTREAM, clean_environment

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "app/turnstream_lab/README.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8000"


@pytest.mark.timeout(200)  # each replay creates a database
@pytest.mark.needs("curl")
async def test_the_commands_of_the_page_print_its_output(
    server: StartServer, database_url: str, tmp_path: Path
) -> None:
    page = PAGE.split("\n## The demo\n")[1].split("\n## Compare\n")[0]
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
    """Hides numbers of tokens, because they depend on the tools of the server."""
    return re.sub(r'"input_tokens":\d+', '"input_tokens":…', printed)


@pytest.mark.timeout(200)
@pytest.mark.needs("curl")
async def test_the_comparisons_of_the_page_print_its_output(server: StartServer, tmp_path: Path) -> None:
    part = PAGE.split("\n## Compare\n")[1]
    blocks = re.findall(r"^```(sh|text|python)\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)
    (judge,) = (block for kind, block in blocks if kind == "python")
    (tmp_path / "judges.py").write_text(judge, encoding="utf-8")
    running = await server(TURNSTREAM_DEMO_DELAY="0")
    script = "\n".join(["set -eu", *(block for kind, block in blocks if kind == "sh")])
    script = script.replace(ADDRESS, running.url).replace(".venv/bin/turnstream", str(TURNSTREAM))
    shell = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=190,
        check=False,
    )
    assert (shell.returncode, shell.stderr) == (0, "")
    *printed, options = (block for kind, block in blocks if kind == "text")
    assert _compared(shell.stdout) == _compared("".join(printed))
    known = subprocess.run([TURNSTREAM, "compare", "--help"], capture_output=True, text=True, check=True).stdout
    assert [word for word in options.split() if word.startswith("--") and word not in known] == []


def _compared(printed: str) -> list[list[str]]:
    """Returns the cells of each line. Seconds and tokens are hidden."""
    lines = [re.split("[┃│]", line) for line in printed.splitlines()]
    return [[re.sub(r"^[\d,]+ \(\d+\) / [\d,]+$|^\d+\.\d$", "…", cell.strip()) for cell in cells] for cells in lines]
