"""Tools and answers that cover every part of the page."""

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.support.pictures import PIXEL
from turnstream.scripted import Pause, Reply, Step, message_of, text, thinking, tool_use
from turnstream.tools.tool import File, PersonQuestion, ToolContext, ToolError, tool, tools_of
from turnstream.tools.toolset import Toolset

CREW = {
    "type": "object",
    "properties": {
        "captain": {"type": "string", "title": "Captain", "minLength": 2},
        "crew": {"type": "integer", "title": "Crew", "minimum": 1},
        "flag": {"type": "string", "title": "Flag", "enum": ["red", "blue"]},
        "cargo": {"type": "boolean", "title": "Carries cargo"},
    },
    "required": ["captain", "crew", "flag"],
}


@dataclass
class Harbour:
    """Tools of a harbour: one waits for the test, one returns at once, one fails, one needs an approval."""

    open: asyncio.Event = field(default_factory=asyncio.Event)
    booked: list[str] = field(default_factory=list)

    @tool(read_only=True)
    async def tide_table(self, context: ToolContext, port: str) -> str:
        """High and low water of a port today."""
        while not self.open.is_set():
            context.progress(f"asking the gauge of {port}")  # repeated, for a page that is opened later
            with suppress(TimeoutError):
                await asyncio.wait_for(self.open.wait(), 0.1)
        return f"{port}: high water 04:12 and 16:37, low water 10:21 and 22:48"

    @tool(read_only=True)
    async def weather(self, port: str) -> str:
        """The weather of a port."""
        return f"{port}: wind 4 from the south-west, 14 degrees"

    @tool(read_only=True)
    async def ferries(self, port: str) -> str:
        """The ferries of a port."""
        raise ToolError(f"{port} has no ferries in winter.")

    @tool(read_only=True)
    async def logbook(self, day: int) -> str:
        """All that was written down on a day."""
        return f"Day {day}. " + "The pilot went out at high water and came back at dusk. " * 70

    @tool(read_only=True)
    async def chart(self, port: str) -> list[str | File]:
        """The chart of a port."""
        return [f"{port}, from above:", File(PIXEL), File(b"%PDF-1.7 all of it")]

    @tool(approval="always")
    async def book_berth(self, port: str, nights: int) -> str:
        """Books a berth."""
        self.booked.append(f"{port} {nights}")
        return f"Berth 14 in {port}, {nights} nights"

    @tool(timeout=60)
    async def register(self, context: ToolContext, ship: str) -> str:
        """Registers a ship, after asking its owner."""
        assert context.ask is not None
        answer = await context.ask(PersonQuestion(f"Who sails the {ship}?", 60, json.dumps(CREW)))
        return json.dumps(answer.content if answer and answer.action == "accept" else None)

    def toolset(self) -> Toolset:
        return Toolset(tools_of(self))


def paused(pause: Pause, *pieces: str, after: int = 1) -> Reply:
    """Returns a text with a pause after the first `after` pieces."""
    steps: list[Step] = list(message_of(text(*pieces)))
    return [*steps[: 2 + after], pause, *steps[2 + after :]]


def three_calls() -> Reply:
    return message_of(
        thinking("The harbour has a gauge, ", "and the weather matters for the crossing."),
        text("I look at the tide, ", "the weather and the ferries."),
        tool_use("tide_table", {"port": "Cuxhaven"}, "call-tide"),
        tool_use("weather", {"port": "Cuxhaven"}, "call-weather"),
        tool_use("ferries", {"port": "Cuxhaven"}, "call-ferries"),
    )


def one_call(name: str, sent: dict[str, Any], id: str = "call-1") -> Reply:
    return message_of(tool_use(name, sent, id))
