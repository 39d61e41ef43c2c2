"""`python -m tests.faults.replica`: `turnstream serve` with tools that wait and whose effects a test can count."""

import os
from functools import partial

import httpx2
import structlog

from turnstream.cli import serve
from turnstream.main import running
from turnstream.setup.parts import Given
from turnstream.tools.tool import ToolContext, tool
from turnstream.tools.toolset import Toolset


@tool(timeout=600)
async def act(word: str, context: ToolContext) -> str:
    """Has an effect, and must never run twice. Logs and prints as many characters as FAULTS_NOISE demands."""
    for _ in range(int(os.environ.get("FAULTS_NOISE", "0")) // 2_000):
        print("noise" * 200)
        structlog.get_logger().warning("noise", text="noise" * 200)
    return await effect_of(word, context)


async def effect_of(word: str, context: ToolContext) -> str:
    async with httpx2.AsyncClient(timeout=None, verify=False) as client:
        body = {"word": word, "key": context.idempotency_key}
        response = await client.post(f"{os.environ['ANTHROPIC_BASE_URL']}/effect", json=body)
    return response.text


@tool(background=True, reports=True)
async def dig(word: str, context: ToolContext) -> str:
    """Has a slow effect, and reports its outcome."""
    return await effect_of(word, context)


@tool(approval="always", approval_expiry=300)
async def ask() -> str:
    """Is allowed by a person."""
    return "ok"


if __name__ == "__main__":
    # A previous version does not have `dig`, so it declines the turns of a replica with this tool.
    tools = [act, ask, dig] if "FAULTS_DIG" in os.environ else [act, ask]
    vars(serve)["running"] = partial(running, given=Given(toolset=Toolset(tools, max_parallel=500)))
    serve.serve()
