"""A server that embeds turnstream: a hotel's front desk with tools that need an approval. Run it with `python -m`."""

import re
from collections.abc import Sequence
from typing import Annotated
from uuid import uuid4

import uvicorn

from turnstream.config import Settings
from turnstream.domain.kinds import TEXT, TOOL_RESULT
from turnstream.llm.models.catalog import Models, ProviderModels
from turnstream.llm.provider import Message, ModelRequest
from turnstream.main import create_app
from turnstream.scripted import Reply, ScriptedProvider, message_of, text, thinking, tool_use
from turnstream.tools.tool import ToolContext, tool
from turnstream.tools.toolset import Toolset

MODEL = "clerk"
BOTH = "Book a room for two nights and send me the invoice."
OUTLOOK = "What do you see from your window?"


@tool(approval="always", approval_expiry=900)
async def book_room(room: str, nights: Annotated[int, "how many"], breakfast: bool = False) -> str:
    """Book a room of the hotel."""
    return f"Room {room} is booked for {nights} nights, {'with' if breakfast else 'without'} breakfast."


@tool(approval="always")
async def send_invoice(to: str, context: ToolContext) -> str:
    """Send the invoice."""
    context.progress("the mail is on its way")
    return f"The invoice was sent to {to}."


@tool(read_only=True, max_result_chars=40)
async def free_rooms() -> str:
    """List the rooms that are free."""
    return "Rooms 7, 12, 21 and 40 are free, and all of them look at the sea."


def answer(request: ModelRequest) -> Reply:
    """Returns an answer that depends only on the request, so that another process can continue a turn."""
    question, results = _since_the_question(request.messages)
    if results:
        return message_of(text("The desk says:\n\n", *(f"- {result}\n" for result in results)))
    if question == OUTLOOK:
        return message_of(tool_use("look_out", {"window": "north"}, _id()))
    number = re.search(r"\d+", question)
    room = {"room": number[0] if number else "12", "nights": 2}
    invoice = [tool_use("send_invoice", {"to": "ada@example.org"}, _id())] if question == BOTH else []
    return message_of(
        thinking("A room is wanted."),
        text("I ask ", "the desk."),
        tool_use("free_rooms", {}, _id()),
        tool_use("book_room", room, _id()),
        *invoice,
    )


def _since_the_question(messages: Sequence[Message]) -> tuple[str, list[str]]:
    question, results = "", list[str]()
    for block in (block for message in messages if message.role == "user" for block in message.blocks):
        if block.type == TEXT:
            question, results = block.text, []
        if block.type == TOOL_RESULT:
            results.append(block.text)
    return question, results


def _id() -> str:
    return f"toolu_{uuid4().hex}"


def main() -> None:
    settings = Settings(_env_file=None, model=MODEL)
    models = Models([ProviderModels(ScriptedProvider(answer), [MODEL])])
    app = create_app(settings, models, Toolset([book_room, send_invoice, free_rooms]))
    uvicorn.run(app, port=settings.port, log_level="warning", timeout_graceful_shutdown=1)


if __name__ == "__main__":
    main()
