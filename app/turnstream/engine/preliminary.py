"""Preliminary outputs of one call: sent to readers while the call runs. The latest output is stored."""

import asyncio
from time import monotonic

import structlog

from turnstream.domain.blocks import Block, PreliminaryOutput
from turnstream.engine.recorder import Recorder
from turnstream.kit.text import storable
from turnstream.tools.running.fit import Sizes, fit
from turnstream.tools.serialize import serialize
from turnstream.tools.tool import Outcome, ToolResult

log = structlog.get_logger(__name__)

_SHOWN = 0.1  # seconds between two outputs to readers
_STORED = 1.0  # seconds between two writes of the row
_SIZES = Sizes(shown=20_000, kept=20_000)  # characters


def fitted_output(content: object) -> Outcome | None:
    """Returns the preliminary output of a tool, cut to size. Returns None if the tool passed an invalid value."""
    result = content if isinstance(content, ToolResult) else ToolResult(content)
    try:
        text = result.content if isinstance(result.content, str) else serialize(result.content, "json")
    except ValueError as error:
        log.error("tool.failed", exc_info=error)
        return None
    return fit(Outcome(storable(text), data=result.data), _SIZES, "", ())


class PreliminaryOutputs:
    """Shows and stores the latest preliminary output of a call at intervals. `close` stops the task that writes."""

    def __init__(self, recorder: Recorder, call: Block) -> None:
        self._recorder = recorder
        self._call = call
        self._latest: PreliminaryOutput | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def show(self, content: object) -> None:
        """Shows `content`: a text, a value as JSON, or a ToolResult that adds data to a text or a value. Any other
        value is an error of the tool, and is logged.
        """
        if (fitted := fitted_output(content)) is None:
            return
        call = self._call
        self._latest = PreliminaryOutput(call.round, call.tool_use_id or "", call.name or "", fitted.text, fitted.data)
        self._changed.set()
        if self._task is None:
            self._task = asyncio.create_task(self._keep(), name=f"output of {call.name}")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            if not self._task.cancelled():
                self._task.exception()  # ignored: after a failed write, the next write of the run fails, too

    async def _keep(self) -> None:
        shown: PreliminaryOutput | None = None
        stored: PreliminaryOutput | None = None
        stored_at = -_STORED
        while True:
            if self._latest is stored:
                await self._changed.wait()
            self._changed.clear()
            latest = self._latest
            assert latest is not None
            if latest is not shown:
                self._recorder.show_preliminary(latest)
                shown = latest
            if latest is not stored and monotonic() - stored_at >= _STORED:
                await self._recorder.store_preliminary(latest)
                stored, stored_at = latest, monotonic()
            await asyncio.sleep(_SHOWN)
