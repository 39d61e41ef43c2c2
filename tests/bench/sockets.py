"""Measures the wall time of a turn with many tool calls by the Responses API, over HTTP and in WebSocket mode.

    .venv/bin/python -m tests.bench.sockets [calls] [kilobytes of history]

The server is a local process with the delays of a distant server: half a round trip before and after each message, the
time in which an uplink transfers the bytes, and a processing time for input bytes that are new to the server. The model
and the tools take no time.
"""

import asyncio
import sys
from contextlib import aclosing
from dataclasses import replace
from time import perf_counter
from uuid import uuid4

from tests.support.responses_server import PaidAnswer, ResponsesServer, responses_server
from turnstream.domain.blocks import Block
from turnstream.domain.turns import ToolSpec
from turnstream.extensions.direct_calls.calls import DirectCalls
from turnstream.extensions.openai.provider import OpenAIResponsesProvider
from turnstream.llm.provider import Message, ModelCall, ModelRequest

ROUND_TRIP = 0.06  # seconds
UPLINK = 2_500_000  # bytes per second
INTAKE = 2_000_000  # bytes of new input per second, which the server decodes, validates and tokenizes
RESULT = "x" * 2_000


def _calls(answer: PaidAnswer, id: str) -> None:
    answer.begin()
    answer.call(id)
    answer.finish(output=[{"type": "function_call", "call_id": id, "name": "look", "arguments": "{}"}])


async def _model(server: ResponsesServer) -> int:
    """Answers each call with the delay of a distant provider. Returns the bytes of all requests."""
    total = number = 0
    try:
        while True:
            answer = await server.asked.get()
            size = len(str(answer.request))
            total += size
            await asyncio.sleep(ROUND_TRIP + size / UPLINK + size / INTAKE)
            _calls(answer, f"call_{number}")
            number += 1
    except asyncio.CancelledError:
        return total


async def measured(transport: str, calls: int, kilobytes: int) -> tuple[float, int]:
    """Returns the seconds that a turn took, and the bytes that it sent."""
    async with (
        responses_server() as server,
        OpenAIResponsesProvider("a key", server.url, make_calls=DirectCalls) as provider,
    ):
        model = asyncio.create_task(_model(server))
        words = Message("user", (Block(0, 0, 0, "text", "y" * 1000 * kilobytes),))
        tools = (ToolSpec("look", "Looks.", '{"type": "object"}'),)
        options = {"transport": transport}
        request = ModelRequest("a-model", (words,), tools=tools, options=options, call=ModelCall(uuid4(), 1, 1, "m"))
        start = perf_counter()
        for number in range(calls + 1):
            async with aclosing(provider.stream(request)) as stream:
                async for _ in stream:
                    pass
            id = f"call_{number}"
            call = Block(1, number, 1, "tool_use", "{}", tool_use_id=id, name="look")
            result = Block(2, number, 1, "tool_result", RESULT, tool_use_id=id, name="look")
            said = (Message("assistant", (call,)), Message("user", (result,)))
            request = replace(request, messages=(*request.messages, *said))
        seconds = perf_counter() - start
        model.cancel()
        return seconds, await model


async def main(calls: int = 20, kilobytes: int = 100) -> None:
    for transport in ("http", "websocket"):
        seconds, size = await measured(transport, calls, kilobytes)
        print(f"{transport}: {seconds:.2f} s, {size / 1e6:.2f} MB sent")


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:3])))
