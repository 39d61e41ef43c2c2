"""A provider that plays scripted replies, for tests and demonstrations: no clock, no randomness, no network."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnstream.domain.errors import PermanentError, ProviderError
from turnstream.llm.provider import (
    BlockClosed,
    BlockData,
    BlockOpened,
    BlockText,
    MessageDelta,
    MessageEnded,
    MessageStarted,
    ModelRequest,
    Part,
)
from turnstream.llm.raw_json import to_json


@dataclass(frozen=True, slots=True)
class Pause:
    """A stop in a script: the provider sets `reached` and continues when `go` is set."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)


Step = Sequence[Part] | Pause | ProviderError
Reply = Iterable[Step]


class ScriptedProvider:
    """Answers the n-th call with the n-th reply of a script, or every call by a function of the request."""

    name = "scripted"

    def __init__(self, script: Iterable[Reply] | Callable[[ModelRequest], Reply]) -> None:
        self.requests: list[ModelRequest] = []
        self._replies = None if callable(script) else iter(script)
        self._answer = script if callable(script) else self._next_reply

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Part], None]:
        self.requests.append(request)
        for step in self._answer(request):
            if isinstance(step, ProviderError):
                raise step
            if isinstance(step, Pause):
                step.reached.set()
                await step.go.wait()
            else:
                yield step

    def _next_reply(self, _request: ModelRequest) -> Reply:
        assert self._replies is not None
        for reply in self._replies:
            return reply
        raise PermanentError("end_of_script", f"the script has no reply for call {len(self.requests)}")


def message_of(
    *blocks: Sequence[Part], stop_reason: str | None = None, usage: Mapping[str, Any] | None = None
) -> Iterator[Sequence[Part]]:
    """Yields a complete message, one part in each batch. By default, its stop reason is `tool_use` if it has calls."""
    calls = any(isinstance(part, BlockOpened) and part.type == "tool_use" for block in blocks for part in block)
    yield (MessageStarted({"input_tokens": 10, "output_tokens": 1}),)
    yield from message_blocks(*blocks)
    reason = stop_reason or ("tool_use" if calls else "end_turn")
    yield (MessageDelta(reason, usage or {"output_tokens": 5}), MessageEnded())


def message_blocks(*blocks: Sequence[Part]) -> Iterator[Sequence[Part]]:
    """Yields the numbered blocks of a message, one part in each batch."""
    for key, block in enumerate(blocks):
        for part in block:
            yield (part._replace(key=key),)  # type: ignore[call-arg]


def text(*pieces: str) -> list[Part]:
    return _streamed(BlockOpened(0, "text"), pieces)


def thinking(*pieces: str, signature: str = "scripted") -> list[Part]:
    opened = BlockOpened(0, "thinking", to_json({"type": "thinking", "thinking": "", "signature": ""}))
    *streamed, closed = _streamed(opened, pieces)
    return [*streamed, BlockData(0, "signature", signature), closed]


def tool_use(name: str, input: Mapping[str, Any], id: str) -> list[Part]:
    """Returns a call whose input is streamed in two pieces."""
    shell = to_json({"type": "tool_use", "id": id, "name": name, "input": {}})
    whole = to_json(input)
    middle = len(whole) // 2
    return _streamed(BlockOpened(0, "tool_use", shell, "", id, name), (whole[:middle], whole[middle:]))


def _streamed(opened: BlockOpened, pieces: Sequence[str]) -> list[Part]:
    return [opened, *(BlockText(0, piece) for piece in pieces), BlockClosed(0)]
