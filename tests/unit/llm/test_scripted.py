import asyncio

import pytest

from turnstream.domain.blocks import Block
from turnstream.domain.errors import PermanentError, TransientError
from turnstream.llm import scripted as former
from turnstream.llm.accumulator import Accumulator
from turnstream.llm.provider import BlockText, Message, ModelRequest
from turnstream.scripted import Pause, ScriptedProvider, message_of, text, thinking, tool_use

REQUEST = ModelRequest("m", (Message("user", (Block(0, 0, 0, "text", "Hello"),)),))


async def reply_of(provider: ScriptedProvider, request: ModelRequest = REQUEST) -> list[Block]:
    accumulator = Accumulator(1, 1, 0)
    changes = [change async for parts in provider.stream(request) for change in accumulator.feed(parts)]
    return [change for change in changes if isinstance(change, Block)]


def test_programs_find_it_by_its_former_name() -> None:
    assert former.ScriptedProvider is ScriptedProvider
    assert former.message_of is message_of


async def test_replies_come_in_their_order_and_requests_are_kept() -> None:
    provider = ScriptedProvider([message_of(text("a", "b")), message_of(thinking("c"), text("d"))])
    assert [block.text for block in await reply_of(provider)] == ["ab"]
    assert [block.text for block in await reply_of(provider)] == ["c", "d"]
    assert provider.requests == [REQUEST, REQUEST]


async def test_a_script_that_is_over_fails_for_good() -> None:
    with pytest.raises(PermanentError, match="no reply for call 1"):
        await reply_of(ScriptedProvider([]))


async def test_a_function_may_answer_by_the_request() -> None:
    provider = ScriptedProvider(lambda request: message_of(text(request.messages[0].blocks[0].text)))
    assert [block.text for block in await reply_of(provider)] == ["Hello"]


async def test_a_message_with_calls_stops_for_its_tools_unless_the_script_has_a_reason() -> None:
    call = tool_use("look", {"n": 1}, "a")
    for stop_reason, told in [(None, "tool_use"), ("max_tokens", "max_tokens")]:
        accumulator = Accumulator(1, 1, 0)
        for parts in message_of(call, stop_reason=stop_reason, usage={"output_tokens": 9}):
            accumulator.feed(parts)
        assert (accumulator.stop_reason, accumulator.usage["output_tokens"]) == (told, 9)


async def test_a_pause_holds_the_answer_until_it_is_let_go() -> None:
    pause = Pause()
    provider = ScriptedProvider([[pause, [BlockText(0, "a")]]])
    stream = provider.stream(REQUEST)
    first = asyncio.ensure_future(anext(stream))
    await pause.reached.wait()
    assert not first.done()
    pause.go.set()
    assert await first == [BlockText(0, "a")]
    await stream.aclose()


async def test_an_error_in_the_script_is_raised_at_its_position() -> None:
    provider = ScriptedProvider([[[BlockText(0, "a")], TransientError("overloaded_error", "Overloaded")]])
    stream = provider.stream(REQUEST)
    assert await anext(stream) == [BlockText(0, "a")]
    with pytest.raises(TransientError, match="Overloaded"):
        await anext(stream)
