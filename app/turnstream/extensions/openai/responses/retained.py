"""Reads an answer that the provider retains (`background`). If the connection is lost, a new connection continues after
the last event that was read.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Self

import structlog

from turnstream.domain.errors import PermanentError, TransientError
from turnstream.extensions.openai.responses.wire import ResponsesWire
from turnstream.libraries.providers.transport.failures import LOST
from turnstream.libraries.providers.transport.response import ModelResponse

log = structlog.get_logger(__name__)

# Opens a stream of the answer with the given id, which starts after the event with the given number.
OpenAfter = Callable[[str, int | None], AbstractAsyncContextManager[ModelResponse]]


class RetainedAnswer:
    """Reads one answer. `response` reads from the current connection. A lost connection is replaced; but if the new
    connection is lost before a new event, the call fails.
    """

    response: ModelResponse

    def __init__(self, wire: ResponsesWire, open_after: OpenAfter) -> None:
        self._wire = wire
        self._open_after = open_after
        self._stack = AsyncExitStack()
        self._lost_after: int | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    async def open(self, opening: AbstractAsyncContextManager[ModelResponse]) -> None:
        self._present = await self._stack.enter_async_context(opening)
        self.response = ModelResponse(self._present.status, self._present.headers, self._read)

    async def _read(self) -> bytes:
        try:
            chunk = await self._present.read()
        except LOST as error:
            if not self._may_reopen():
                raise
            log.info("answer.reopened", id=self._wire.retained, after=self._wire.sequence, error=type(error).__name__)
        else:
            if chunk or not self._may_reopen():
                return chunk
            log.info("answer.reopened", id=self._wire.retained, after=self._wire.sequence, error="end")
        self._lost_after = self._wire.sequence
        await self._reopen()
        return await self._read()

    def _may_reopen(self) -> bool:
        wire = self._wire
        return wire.retained is not None and not wire.over and self._lost_after != wire.sequence

    async def _reopen(self) -> None:
        assert self._wire.retained is not None
        lost, self._stack = self._stack, AsyncExitStack()
        await lost.aclose()
        self._wire.read_again()
        try:
            self._present = await self._stack.enter_async_context(
                self._open_after(self._wire.retained, self._wire.sequence)
            )
        except PermanentError as error:  # the provider has lost the answer, so the next call requests a new answer
            raise TransientError(error.type, error.message, request_id=error.request_id) from error
