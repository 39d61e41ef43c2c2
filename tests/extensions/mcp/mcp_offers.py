"""An MCP server with prompts and resources, over stdio, or over HTTP at http://127.0.0.1:PORT/mcp.

`python -m tests.extensions.mcp.mcp_offers [PORT]` starts the server. With `--old`, it speaks a protocol from before
2026-07-28. The description of the prompt `count` has the number of `prompts/list` requests so far.
"""

import asyncio
import sys
from base64 import b64encode

import uvicorn
from mcp import stdio_server, types
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.prompts.base import AssistantMessage, Message, UserMessage
from mcp.server.runner import serve_loop

from tests.extensions.mcp.mcp_time_over_http import old
from tests.support.pictures import PIXEL

PDF = b"%PDF-1.4\n%%EOF\n"


class Counting(MCPServer):
    def __init__(self) -> None:
        super().__init__("offers")
        self.lists = 0

    async def list_prompts(self) -> list[types.Prompt]:
        self.lists += 1
        counted = types.Prompt(name="count", description=f"list {self.lists}")
        return [*await super().list_prompts(), counted]


server = Counting()


@server.prompt(title="Review a text")
def review(text: str, tone: str = "kind") -> str:
    """Asks for a review."""
    return f"Review this in a {tone} tone:\n\n{text}"


@server.prompt()
def rehearse() -> list[Message]:
    """A talk of a user and an assistant."""
    link = types.ResourceLink(uri="notes://today", name="today", type="resource_link")
    return [
        UserMessage("Who are you?"),
        AssistantMessage("A lighthouse keeper."),
        UserMessage(link),
    ]


@server.prompt()
def look() -> list[Message]:
    """A picture with a question."""
    picture = types.ImageContent(data=b64encode(PIXEL).decode(), mime_type="image/png", type="image")
    return [UserMessage("What is this?"), UserMessage(picture)]


@server.completion()  # type: ignore[no-untyped-call, untyped-decorator]
async def complete(
    ref: types.PromptReference | types.ResourceTemplateReference,
    argument: types.CompletionArgument,
    context: types.CompletionContext | None,
) -> types.Completion | None:
    """Completes the tone of the prompt `review`, in capitals if the argument `text` is in capitals."""
    if not isinstance(ref, types.PromptReference) or (ref.name, argument.name) != ("review", "tone"):
        return None
    given = (context.arguments if context else None) or {}
    tones = [each.upper() if given.get("text", "").isupper() else each for each in ("kind", "harsh", "humorous")]
    return types.Completion(values=[each for each in tones if each.lower().startswith(argument.value.lower())])


@server.resource("notes://today", title="Notes of today", mime_type="text/markdown")
def today() -> str:
    """What happened."""
    return "# Today\n\nThe ferry was late."


@server.resource("files://manual.pdf", mime_type="application/pdf")
def manual() -> bytes:
    """The manual of the light."""
    return PDF


@server.resource("files://song.ogg", mime_type="audio/ogg")
def song() -> bytes:
    """A sound."""
    return b"OggS\0\0\0"


@server.resource("notes://{day}", mime_type="text/plain")
def notes(day: str) -> str:
    """The notes of a day."""
    return f"Nothing on {day}."


@server.tool(structured_output=False)
async def add_prompt(context: Context) -> str:
    """Has one more prompt."""
    server.prompt(name="fresh")(review)
    await context.notify_prompts_changed()
    if "--old" in sys.argv:
        await context.session.send_prompt_list_changed()
    return "added"


async def speak_as_before() -> None:
    inner = server._lowlevel_server
    options = inner.create_initialization_options(NotificationOptions(tools_changed=True, prompts_changed=True))
    async with stdio_server() as (read, write), inner.lifespan(inner) as state:
        await serve_loop(inner, read, write, lifespan_state=state, init_options=options)


if __name__ == "__main__":
    port = next((int(each) for each in sys.argv[1:] if each.isdigit()), None)
    if port is not None:
        app = server.streamable_http_app()
        uvicorn.run(old(app) if "--old" in sys.argv else app, host="127.0.0.1", port=port)
    elif "--old" in sys.argv:
        asyncio.run(speak_as_before())
    else:
        server.run()
