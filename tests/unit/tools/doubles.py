"""Tools that a test controls step by step, and a clock that only the test advances."""

import asyncio
from collections.abc import MutableMapping, Sequence
from typing import Any

from prometheus_client import REGISTRY

from turnstream.domain.turns import ToolSpec
from turnstream.tools.policy import Policy
from turnstream.tools.tool import Outcome, ToolContext

SCHEMA = '{"type":"object"}'
DEFAULT = Policy()
Logged = list[MutableMapping[str, Any]]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Script:
    """A tool with a script: each call raises or returns the next step. After the last step, every call succeeds."""

    def __init__(
        self,
        spec: ToolSpec,
        policy: Policy = DEFAULT,
        script: Sequence[type[BaseException] | BaseException | Outcome] = (),
    ) -> None:
        self.spec = spec
        self.policy = policy
        self.script = list(script)
        self.calls: list[tuple[ToolContext, str]] = []

    async def __call__(self, context: ToolContext, input_json: str) -> Outcome:
        self.calls.append((context, input_json))
        step = self.script.pop(0) if self.script else Outcome("well")
        if isinstance(step, Outcome):
            return step
        raise step


class Gate:
    """A tool whose calls wait until the gate is opened."""

    def __init__(self, name: str = "gate", policy: Policy = DEFAULT) -> None:
        self.spec = ToolSpec(name, "Wait.", SCHEMA)
        self.policy = policy
        self.inside = 0
        self.changed = asyncio.Condition()
        self.open = asyncio.Event()

    async def __call__(self, context: ToolContext, input_json: str) -> Outcome:
        await self._add(1)
        try:
            await self.open.wait()
        finally:
            await self._add(-1)
        return Outcome(input_json)

    async def _add(self, change: int) -> None:
        async with self.changed:
            self.inside += change
            self.changed.notify_all()

    async def reached(self, inside: int) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: self.inside == inside)


def counted(tool: str, policy: str) -> float:
    labels = {"tool": tool, "policy": policy}
    return REGISTRY.get_sample_value("turnstream_tool_policies_total", labels) or 0.0
