"""`python -m tests.node.server` runs the real server with a model that obeys the last user message."""

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import uvicorn

from turnstream.domain.errors import PermanentError, TransientError
from turnstream.domain.kinds import TEXT, TOOL_RESULT, USER_TEXT
from turnstream.extension import read_settings
from turnstream.llm.models.catalog import Models, ProviderModels
from turnstream.llm.provider import ModelRequest, Part
from turnstream.main import create_app
from turnstream.scripted import Reply, ScriptedProvider, message_of, text, thinking, tool_use
from turnstream.tools.tool import tool
from turnstream.tools.toolset import Toolset

# The environment variable that names a folder of marks. A mark is a file. It is named for a word after which the model
# has already hung or broken once.
HUNG = "TEST_HUNG"


@tool(read_only=True)
async def weather(city: str) -> str:
    """The weather of a city."""
    return f'{{"city":"{city}","degrees":12}}'


@tool(read_only=True)
async def explode() -> str:
    """Breaks."""
    raise ValueError


@tool(approval="always")
async def send_mail(to: str) -> str:
    """Sends a mail."""
    return f"sent to {to}"


def _replies(word: str) -> Sequence[Reply]:
    """Returns the model's replies in one turn. If the word has a comma, the part after the comma selects the reply to
    the tool results.
    """
    end = message_of(text("That ", "is ", "it."))
    match word.partition(",")[0]:
        case "tools":
            calls = [tool_use("weather", {"city": "Zürich"}, "w1"), tool_use("explode", {}, "e1")]
            return [message_of(thinking("Let me ", "look."), text("One moment."), *calls), end]
        case "mail":
            return [message_of(text("May I?"), tool_use("send_mail", {"to": "ada"}, "m1")), end]
        case "where":
            calls = [tool_use("getLocation", {"precise": True}, "l1"), tool_use("weather", {"city": "?"}, "w1")]
            return [message_of(*calls), end]
        case "both":
            first = message_of(tool_use("getLocation", {}, "l1"))
            return [first, message_of(text("And now?"), tool_use("send_mail", {"to": "bob"}, "m1")), end]
        case "long":
            words = text(*(f"word {number} " for number in range(80)))
            call = tool_use("weather", {"city": "Saint-Malo at the sea"}, "w1")
            return [message_of(thinking("Let me look at the tide, ", "and the wind."), words, call), end]
        case _:
            return [end]


def reply_to(request: ModelRequest) -> Reply:
    """Returns the reply for the n-th model call of the turn. The last word of the user selects the replies."""
    if word_of(request) == "recall":
        said = [f"{each.type} {each.text}" for message in request.messages for each in message.blocks]
        return message_of(text(" / ".join(said)))
    if word_of(request) == "structured":
        return message_of(tool_use(request.tools[-1].name, {"sea": "North"}, "o1"))
    replies, rounds = _replies(word_of(request)), 0
    for message in reversed(request.messages):
        if message.role == "user" and message.blocks[0].type in {TEXT, USER_TEXT}:
            break
        rounds += message.blocks[0].type == TOOL_RESULT
    return replies[rounds]


class Model(ScriptedProvider):
    def __init__(self) -> None:
        super().__init__(reply_to)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Part], None]:
        first, _, word = word_of(request).rpartition(", ")
        if first and request.messages[-1].blocks[0].type != TOOL_RESULT:
            word = first
        hung = Path(os.environ[HUNG], word.rpartition(" ")[2])
        hangs = word == "hang" or (word.startswith("hang once ") and not hung.exists())
        breaks = word.startswith("break once ") and not hung.exists()
        async for number, batch in _numbered(super().stream(request)):
            if (hangs or breaks) and number == 3:
                hung.touch()  # written before the batch is sent, because a page with the batch may end this process
            yield batch
            if hangs and number == 3:
                await asyncio.Event().wait()
            if breaks and number == 3:
                raise TransientError("overloaded_error", "The engine is overloaded.")
            if word == "fail" and number == 3:
                raise PermanentError("invalid_request_error", "It cannot be done.")


def word_of(request: ModelRequest) -> str:
    users = [message for message in request.messages if message.role == "user"]
    return [block.text for message in users for block in message.blocks if block.type == TEXT][-1]


async def _numbered(batches: AsyncGenerator[Sequence[Part], None]) -> AsyncGenerator[tuple[int, Sequence[Part]], None]:
    number = 0
    async for batch in batches:
        number += 1
        yield number, batch


def main() -> None:
    settings = read_settings()
    toolset = Toolset([weather, explode, send_mail], max_result_chars=1000)
    app = create_app(settings, Models([ProviderModels(Model(), ["script"])]), toolset)
    options: dict[str, Any] = {"log_config": None, "timeout_graceful_shutdown": 1}
    uvicorn.run(app, host="127.0.0.1", port=settings.port, **options)


if __name__ == "__main__":
    main()
