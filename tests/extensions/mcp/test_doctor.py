"""`turnstream doctor` checks MCP servers."""

import json
from pathlib import Path

from tests.extensions.mcp.mcp_servers import TIME
from turnstream.config import Settings
from turnstream.extensions.doctor.command import examine


async def test_ping_connects_each_mcp_server_and_nothing_else_does(database_url: str, tmp_path: Path) -> None:
    file = tmp_path / "tools.toml"
    file.write_text(
        f'[mcp.time]\ncommand = "{TIME.command}"\nargs = {json.dumps(TIME.args)}\n'
        '[mcp.gone]\ncommand = "/no/such/program"\n'
    )
    settings = Settings(_env_file=None, database_url=database_url, tools_file=file, model="demo", port=0)

    async def found(ping: bool) -> dict[str, str]:
        every = [*await examine(settings, ping)]
        return {each.check: each.status for each in every if each.check == "tools" or each.check.startswith("MCP")}

    assert await found(ping=False) == {"tools": "ok"}
    assert await found(ping=True) == {"tools": "ok", "MCP time": "ok", "MCP gone": "fault"}
