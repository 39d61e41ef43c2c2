"""`python -m tests.faults.replica`: `turnstream serve`, with one tool that has effects, which a test can count."""

import os

import httpx2
from starlette.applications import Starlette

from app.cli import serve
from app.config import Settings
from app.main import create_app
from app.tools.tool import ToolContext, tool
from app.tools.toolset import Toolset


@tool(timeout=600)
async def act(word: str, context: ToolContext) -> str:
    """Has an effect, and must never run twice."""
    async with httpx2.AsyncClient(timeout=None, verify=False) as client:
        body = {"word": word, "key": context.idempotency_key}
        response = await client.post(f"{os.environ['ANTHROPIC_BASE_URL']}/effect", json=body)
    return response.text


def create(settings: Settings) -> Starlette:
    return create_app(settings, toolset=Toolset([act], settings.parallel_tools, settings.max_result_chars))


if __name__ == "__main__":
    vars(serve)["create_app"] = create
    serve.serve()
