"""Checks for authors of providers, which test the contract between a provider and the engine.

Each check gets a provider and a request. The provider must answer with text, or with a call of a tool in the request.
If the provider breaks a promise, the check raises AssertionError with a sentence.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from turnstream import Provider
from turnstream.domain.blocks import Block
from turnstream.domain.errors import ProviderError
from turnstream.llm.accumulator import Accumulator
from turnstream.llm.provider import ModelRequest

_AT_ONCE = 10  # answers


async def answer_of(provider: Provider, request: ModelRequest) -> tuple[Accumulator, list[Block]]:
    """Calls the provider. Returns the accumulated answer, and its blocks."""
    accumulator = Accumulator(round=1, attempt=1, first_index=0)
    return accumulator, await _read(provider, request, accumulator)


async def answers_start_and_end(provider: Provider, request: ModelRequest) -> None:
    answer, blocks = await answer_of(provider, request)
    _hold(answer.started, "The answer must begin with MessageStarted.")
    _hold(answer.ended, "The answer must end with MessageEnded.")
    _hold(answer.stop_reason is not None, "A MessageDelta must name the reason of the stop.")
    _hold("output_tokens" in answer.usage, "The usage must have `output_tokens`.")
    _hold(bool(blocks), "The answer must have a block.")
    _hold(not any(block.interrupted for block in blocks), "Each block must be closed before the answer ends.")


async def calls_are_whole(provider: Provider, request: ModelRequest) -> None:
    """Checks that the name, the id and the input of each tool call are complete."""
    _, blocks = await answer_of(provider, request)
    calls = [block for block in blocks if block.is_call]
    names = {tool.name for tool in request.tools}
    for call in calls:
        _hold(call.name in names, f"The call names `{call.name}`, which is no tool of the request.")
        _hold(_is_object(call.text), f"The input of the call of `{call.name}` must be a JSON object.")
    ids = {call.tool_use_id for call in calls}
    _hold(None not in ids and len(ids) == len(calls), "Each call must have an id of its own.")


async def answers_do_not_mix(provider: Provider, request: ModelRequest) -> None:
    """Checks that simultaneous answers have the same blocks as an answer that is read alone."""
    answers = await asyncio.gather(*(answer_of(provider, request) for _ in range(_AT_ONCE)))
    _, alone = await answer_of(provider, request)
    for _, blocks in answers:
        same = [(block.type, block.name) for block in blocks] == [(block.type, block.name) for block in alone]
        _hold(same, "Answers that are read at once must not mix.")


async def an_answer_can_be_left(provider: Provider, request: ModelRequest) -> None:
    """Checks that a reader may leave an answer in the middle, and that the next answer is complete."""
    async with aclosing(provider.stream(request)) as batches:
        async for _ in batches:
            break
    answer, _ = await answer_of(provider, request)
    _hold(answer.ended, "The answer after one that was left must be whole.")


async def fails_with(provider: Provider, request: ModelRequest, error: ProviderError, *, late: bool) -> None:
    """Checks that the next call raises an error with the class, type and message of `error`. With `late`, the error
    comes after the first parts of the answer.
    """
    answer = Accumulator(round=1, attempt=1, first_index=0)
    try:
        await _read(provider, request, answer)
    except ProviderError as raised:
        _hold(
            isinstance(raised, type(error)), f"The error must be {type(error).__name__}, not {type(raised).__name__}."
        )
        _hold((raised.type, raised.message) == (error.type, error.message), "The error must have type and message.")
    else:
        _hold(False, "The call must fail.")
    _hold(answer.started == late, "The parts that came before the error must be there, and no others.")
    _hold(not answer.ended, "A failed answer must not have MessageEnded.")


CHECKS: tuple[Callable[[Provider, ModelRequest], Awaitable[None]], ...] = (
    answers_start_and_end,
    calls_are_whole,
    answers_do_not_mix,
    an_answer_can_be_left,
)


async def _read(provider: Provider, request: ModelRequest, accumulator: Accumulator) -> list[Block]:
    blocks: list[Block] = []
    async with aclosing(provider.stream(request)) as batches:
        async for parts in batches:
            _hold(bool(parts), "A batch of parts must not be empty.")
            blocks += [change for change in accumulator.feed(parts) if isinstance(change, Block)]
    return blocks


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _hold(holds: bool, promise: str) -> None:
    if not holds:
        raise AssertionError(promise)
