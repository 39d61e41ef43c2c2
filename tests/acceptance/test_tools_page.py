"""The examples of the pages about tools that need a server with special settings. Files and commands are used
verbatim.
"""

import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from tests.acceptance.conftest import StartServer
from tests.support.pages import blocks
from tests.support.server_process import clean_environment

ADDRESS = "http://127.0.0.1:8000"


@pytest.mark.needs("curl")
@pytest.mark.extensions("mcp")
async def test_tools_in_process_and_of_an_mcp_server_are_called_without_a_key(
    server: StartServer, tmp_path: Path
) -> None:
    (tmp_path / "shopping.py").write_text(blocks("docs/tools.md", "A complete example", "python")[0], encoding="utf-8")
    (tmp_path / "clock.py").write_text(blocks("docs/mcp.md", "MCP servers", "python")[0], encoding="utf-8")
    (tmp_path / "tools.toml").write_text(blocks("docs/mcp.md", "MCP servers", "toml")[0], encoding="utf-8")
    (tmp_path / ".venv").symlink_to(sys.prefix)  # the page uses `.venv/bin/python`
    running = await server(TURNSTREAM_TOOLSET="shopping:toolset", TURNSTREAM_TOOLS_FILE="tools.toml")
    async with httpx2.AsyncClient(base_url=running.url) as client:
        # On a busy machine the MCP server may miss the limit of five seconds for its start.
        while "clock__now" not in (await client.get("/api/tools")).text:
            assert "mcp.failed" not in running.logs
    printed = [
        commands_of(page, heading, running.url, tmp_path)
        for page, heading in (("docs/tools.md", "A complete example"), ("docs/mcp.md", "MCP servers"))
    ]
    assert printed == [
        blocks("docs/tools.md", "A complete example", "text")[1],
        blocks("docs/mcp.md", "MCP servers", "text")[0],
    ]


def commands_of(page: str, heading: str, address: str, folder: Path) -> str:
    script = "\n".join(["set -eu", *blocks(page, heading, "sh")]).replace(ADDRESS, address)
    shell = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (shell.returncode, shell.stderr) == (0, "")
    return shell.stdout
