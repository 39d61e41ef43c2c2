"""The toolset runs what a model asks for. Whatever happens, the model is told one outcome."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from time import perf_counter

import structlog
from pydantic_core import from_json
from structlog.contextvars import bound_contextvars

from app.domain.text import storable
from app.domain.turns import ToolSpec
from app.tools.tool import Outcome, Tool, ToolContext, ToolError

log = structlog.get_logger(__name__)

_SHOWN_OF_A_NAME = 100


class Toolset:
    """`max_parallel` calls run at once, over all turns. A tool that was told to stop is waited for `patience`
    seconds and then left to itself. Results are cut to `max_result_chars` characters.
    """

    def __init__(
        self,
        tools: Iterable[Tool],
        max_parallel: int = 16,
        max_result_chars: int = 100_000,
        *,
        patience: float = 2.0,
    ) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.spec.name in self._tools:
                raise ValueError(f"two tools are called {tool.spec.name}")
            self._tools[tool.spec.name] = tool
        self._slots = asyncio.Semaphore(max_parallel)
        self._max_result_chars = max_result_chars
        self._patience = patience
        self._abandoned: set[asyncio.Task[Outcome]] = set()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    def specs(self, names: Sequence[str] | None = None) -> tuple[ToolSpec, ...]:
        """The named tools in the order named, or all. Raises ValueError for one that does not exist."""
        wanted = self.names if names is None else tuple(dict.fromkeys(names))
        for name in wanted:
            if name not in self._tools:
                raise ValueError(_unknown(name, self._tools))
        return tuple(self._tools[name].spec for name in wanted)

    async def run(
        self, name: str, input_json: str, context: ToolContext, *, offered: Sequence[ToolSpec] | None = None
    ) -> Outcome:
        """The outcome of one call. Raises only CancelledError, after the tool has stopped or was abandoned.

        `offered` are the tools this model was told of; without it, all are.
        """
        start = perf_counter()
        with bound_contextvars(tool=name[:_SHOWN_OF_A_NAME], tool_use_id=context.tool_use_id):
            outcome = await self._settle(name, storable(input_json).strip() or "{}", context, offered)
            seconds = round(perf_counter() - start, 4)
            log.info("tool.settled", kind=outcome.kind, seconds=seconds, characters=len(outcome.text))
        return outcome

    async def _settle(
        self, name: str, input_json: str, context: ToolContext, offered: Sequence[ToolSpec] | None
    ) -> Outcome:
        known = list(self._tools) if offered is None else [spec.name for spec in offered if spec.name in self._tools]
        if name not in known:
            return Outcome(_unknown(name, known), kind="unknown")
        if problem := _problem(input_json):
            return Outcome(f"The input of {name} {problem}; send one JSON object.", kind="bad_input")
        async with self._slots:
            return await self._run(self._tools[name], context, input_json)

    async def _run(self, tool: Tool, context: ToolContext, input_json: str) -> Outcome:
        task = asyncio.create_task(self._call(tool, context, input_json), name=f"tool {tool.spec.name}")
        try:
            await asyncio.wait({task}, timeout=tool.policy.timeout)
            in_time = task.done()
        finally:
            await self._stop(task)
        if not in_time:
            return _timed_out(tool)
        if task.cancelled():  # by the tool itself: a cancellation of ours has left through the await above
            return _failed(tool, asyncio.CancelledError())
        error = task.exception()
        return task.result() if error is None else _failed(tool, error)

    async def _stop(self, task: asyncio.Task[Outcome]) -> None:
        if task.done():
            return
        task.cancel()
        try:
            await asyncio.wait({task}, timeout=self._patience)
        finally:
            if not task.done():
                log.error("tool.abandoned", patience=self._patience)
                self._abandoned.add(task)
                task.add_done_callback(self._abandoned.discard)

    async def _call(self, tool: Tool, context: ToolContext, input_json: str) -> Outcome:
        try:
            return self._fit(await tool(context, input_json))
        except ToolError as error:
            return self._fit(Outcome(str(error) or f"The tool {tool.spec.name} failed.", is_error=True))
        except (Exception, SystemExit) as error:  # noqa: BLE001, SystemExit would end the process
            return _failed(tool, error)

    def _fit(self, outcome: Outcome) -> Outcome:
        text, most = storable(outcome.text), self._max_result_chars
        if len(text) > most:
            cut = f"{len(text) - most:,} of its {len(text):,} characters are missing"
            text = f"{text[:most]}\n\n[The result was cut here: {cut}.]"
        return replace(outcome, text=text)


def _unknown(name: str, known: Iterable[str]) -> str:
    tools = ", ".join(known)
    return f"There is no tool {name[:_SHOWN_OF_A_NAME]!r}; the tools are: {tools or 'none'}."


def _failed(tool: Tool, error: BaseException) -> Outcome:
    """Only the class is told: a message may hold what the model must not see."""
    log.error("tool.failed", exc_info=error)
    return Outcome(f"The tool {tool.spec.name} failed ({type(error).__name__}).", is_error=True)


def _timed_out(tool: Tool) -> Outcome:
    text = f"The tool {tool.spec.name} was stopped: it did not finish within {tool.policy.timeout:g} s."
    if not tool.spec.read_only:
        text += " What it had done by then is not known."
    return Outcome(text, kind="timeout")


def _problem(input_json: str) -> str | None:
    try:
        value = from_json(input_json)
    except ValueError as error:
        return f"is not valid JSON ({error})"
    return None if isinstance(value, dict) else "is not a JSON object"
