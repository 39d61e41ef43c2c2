"""The tools that the file of TURNSTREAM_TOOLS_FILE declares."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.tools.policy import Policy


@dataclass(frozen=True, slots=True)
class McpServer:
    """An MCP server that is started by `command`, or reached at `url`.

    `prefix` goes before the names of its tools. `tools` (None: all) are offered. In `tools`, `read_only` and `policies`
    are the server's own names. A server that is `trusted` is believed when it says that a tool is read-only or
    idempotent. Environment variables are filled in already: `env` and `headers` hold secrets.
    """

    name: str
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    tools: tuple[str, ...] | None = None
    read_only: frozenset[str] = frozenset()
    trusted: bool = False
    policy: Policy = field(default_factory=Policy)
    policies: Mapping[str, Policy] = field(default_factory=dict)

    def policy_of(self, tool: str) -> Policy:
        return self.policies.get(tool, self.policy)
