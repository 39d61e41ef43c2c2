"""The model's replies and the tools of a turn of three rounds with parallel tools."""

import os
from collections.abc import Iterator, Sequence

from tests.faults.effects import take_effect
from turnstream.domain.kinds import TOOL_RESULT
from turnstream.llm.conversation.messages import GO_ON
from turnstream.llm.provider import BlockOpened, ModelRequest, Part
from turnstream.scripted import message_of, text, thinking, tool_use
from turnstream.tools.tool import Tool, ToolContext, tool

MODEL = "script"


def reply_to(request: ModelRequest) -> Iterator[Sequence[Part]]:
    """Returns a reply that depends on the number of rounds so far, and differs from process to process."""
    rounds = sum(message.blocks[0].type == TOOL_RESULT for message in request.messages)
    mark = f"{os.getpid()}.{len(request.messages)}"
    said = text(f"Round {rounds + 1} of {mark}: ", "æ long 🚢 ", "story.")
    match rounds:
        case 0:
            thoughts = [] if request.messages[-1].blocks[-1].text == GO_ON else [thinking("Hm ", f"({mark}).")]
            calls = [_call("look", mark), _call("note", mark), _call("book", mark)]
            reply = message_of(*thoughts, said, *calls)
        case 1:
            reply = message_of(said, _call("note", mark), _call("look", mark))
        case _:
            reply = message_of(said)
    return _together(reply)


def _call(name: str, mark: str) -> list[Part]:
    return tool_use(name, {"word": mark}, f"{name}-{mark}")


def _together(batches: Iterator[Sequence[Part]]) -> Iterator[Sequence[Part]]:
    """Joins the begin of a block with its first piece, as if the network had delivered both at once."""
    for batch in batches:
        yield (*batch, *next(batches)) if isinstance(batch[0], BlockOpened) else batch


def tools(effects: int) -> list[Tool]:
    """Returns the tools. `effects` is the port of the service that counts the effects of calls."""

    async def had_effect(context: ToolContext) -> str:
        return f"Done by {await take_effect(effects, context.idempotency_key, str(os.getpid()))}."

    @tool(read_only=True)
    async def look(word: str) -> str:
        """Has no effect."""
        return f"{os.getpid()} sees {word}."

    @tool()
    async def note(word: str, context: ToolContext) -> str:
        """Must never be run twice."""
        return await had_effect(context)

    @tool(retry_safe=True)
    async def book(word: str, context: ToolContext) -> str:
        """May be run twice."""
        await context.checkpoint({"by": os.getpid()})
        return await had_effect(context)

    return [look, note, book]
