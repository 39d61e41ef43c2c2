"""The toolset runs what a model asks for. Whatever happens, the model is told one outcome."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any

import structlog
from pydantic_core import from_json
from structlog.contextvars import bound_contextvars

from app.domain.turns import ToolSpec
from app.kit.text import storable
from app.tools.outputs import Outputs
from app.tools.policy import Policy
from app.tools.running.attempts import Backoff, short_backoff
from app.tools.running.fallback import HELPS, both, unfit
from app.tools.running.fit import Sizes, fit
from app.tools.running.runner import Runner
from app.tools.tool import Outcome, Tool, ToolContext, ToolSource
from app.tools.uses import count_uses

log = structlog.get_logger(__name__)

_SHOWN_OF_A_NAME = 100


class Toolset:
    """`max_parallel` calls run at once, over all turns. A tool that was told to stop is waited for `patience` seconds
    and then left to itself. Results are cut to `max_result_chars`, and `max_whole_chars` of them are kept; their files
    have up to `max_file_bytes`. `declared` makes the tool of a spec that came with a request; `sources` have more
    tools, which come and go.
    """

    def __init__(
        self,
        tools: Iterable[Tool],
        max_parallel: int = 16,
        max_result_chars: int = 100_000,
        *,
        outputs: Outputs | None = None,
        sources: Sequence[ToolSource] = (),
        declared: Callable[[ToolSpec], Tool] | None = None,
        max_whole_chars: int = 5_000_000,
        max_file_bytes: int = 5_000_000,
        patience: float = 2.0,
        backoff: Backoff = short_backoff,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own: dict[str, Tool] = {}
        for tool in tools:
            if tool.spec.name in self._own:
                raise ValueError(f"two tools are called {tool.spec.name}")
            self._own[tool.spec.name] = tool
        self.outputs = outputs or Outputs()
        self._sources = sources
        self._declared = declared
        self._sizes = Sizes(max_result_chars, max_whole_chars, max_file_bytes)
        self._runner = Runner(max_parallel, patience, backoff, clock)
        known = self._tools
        for tool in self._own.values():
            if problem := unfit(tool, known):
                raise ValueError(problem)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    def specs(self, names: Sequence[str] | None = None) -> tuple[ToolSpec, ...]:
        """The named tools in the order named, or all. Raises ValueError for one that does not exist."""
        tools = self._tools
        wanted = tools if names is None else dict.fromkeys(names)
        for name in wanted:
            if name not in tools:
                raise ValueError(_unknown(name, tools))
        return tuple(tools[name].spec for name in wanted)

    def check(self, spec: ToolSpec) -> None:
        """Raises ValueError for a tool that came with a request and cannot be called from here."""
        if spec.http is None:
            return
        if self._declared is None:
            raise ValueError(f"{spec.name}: this server calls no tools by URL")
        self._declared(spec)

    def policy(self, name: str, offered: Sequence[ToolSpec] | None = None) -> Policy:
        """The policy that a call is run by; the default one for a tool that does not exist."""
        tool = self._find(name, offered)
        return Policy() if tool is None else tool.policy

    def needs_approval(self, name: str, input_json: str, offered: Sequence[ToolSpec] | None = None) -> bool:
        """Whether a person must allow this call. What cannot be decided needs one."""
        approval = self.policy(name, offered).approval
        if not callable(approval):
            return approval == "always"
        try:
            return bool(approval(_parsed(input_json)))
        except Exception as error:
            log.error("tool.approval_undecided", tool=name, exc_info=error)
            return True

    async def run(
        self, name: str, input_json: str, context: ToolContext, *, offered: Sequence[ToolSpec] | None = None
    ) -> Outcome:
        """The outcome of one call. Raises only CancelledError, after the tool has stopped or was abandoned.

        `offered` are the tools this model was told of; without it, all are.
        """
        start = perf_counter()
        with bound_contextvars(tool=name[:_SHOWN_OF_A_NAME], tool_use_id=context.tool_use_id):
            outcome = await self._settle(name, input_json, context, offered)
            seconds = round(perf_counter() - start, 4)
            texts = [part for part in outcome.parts if isinstance(part, str)]
            sizes = {"characters": sum(map(len, texts)), "files": len(outcome.parts) - len(texts)}
            log.info("tool.settled", kind=outcome.kind, seconds=seconds, **sizes)
        return outcome

    def fitted(self, name: str, outcome: Outcome, tool_use_id: str, offered: Sequence[ToolSpec]) -> Outcome:
        """What the model is told of an outcome that comes from elsewhere: cut like one of ours."""
        sizes = self._sizes.of(self.policy(name, offered))
        outcome = fit(outcome, sizes, tool_use_id, [spec.name for spec in offered])
        count_uses("(client)", outcome.notes)
        return outcome

    async def _settle(
        self, name: str, input_json: str, context: ToolContext, offered: Sequence[ToolSpec] | None
    ) -> Outcome:
        known = list(self._tools) if offered is None else [spec.name for spec in offered]
        if name not in known:
            return Outcome(_unknown(name, known), kind="unknown")
        try:
            _parsed(input_json)
        except ValueError as error:
            return Outcome(f"The input of {name} {error}; send one JSON object.", kind="bad_input")
        tool = self._find(name, offered)
        if tool is None:
            return Outcome(f"The tool {name} is not available at the moment.", kind="unavailable")
        outcome = await self._run(tool, _clean(input_json), context)
        outcome = fit(outcome, self._sizes.of(tool.policy), context.tool_use_id, known)
        count_uses(_label(tool.spec), outcome.notes)
        return outcome

    async def _run(self, tool: Tool, input_json: str, context: ToolContext) -> Outcome:
        outcome = await self._runner.run(tool, input_json, context)
        if outcome.kind not in HELPS or (stand_in := self._fallback(tool)) is None:
            return outcome
        log.warning("tool.fallback", fallback=stand_in.spec.name, kind=outcome.kind)
        with bound_contextvars(tool=stand_in.spec.name):
            return both(outcome, stand_in, await self._runner.run(stand_in, input_json, context))

    def _fallback(self, tool: Tool) -> Tool | None:
        """Looked at again for every call: a tool of a source, or its fallback, may have come later."""
        tools = self._tools
        if problem := unfit(tool, tools):
            log.error("tool.no_fallback", problem=problem)
            return None
        return tools.get(tool.policy.fallback or "")

    def _find(self, name: str, offered: Sequence[ToolSpec] | None) -> Tool | None:
        """Never a tool of this server in the place of one that was declared under its name."""
        spec = next((spec for spec in offered or () if spec.name == name), None)
        if offered is not None and (spec is None or spec.client):
            return None
        return self._tools.get(name) if spec is None or spec.http is None else self._make(spec)

    def _make(self, spec: ToolSpec) -> Tool | None:
        try:
            return None if self._declared is None else self._declared(spec)
        except Exception as error:
            log.error("tool.failed", exc_info=error)
            return None

    @property
    def _tools(self) -> Mapping[str, Tool]:
        """All there are at present; of two with one name the first counts."""
        tools = dict(self._own)
        for source in self._sources:
            tools |= {name: tool for name, tool in source.tools().items() if name not in tools}
        return tools


def _unknown(name: str, known: Iterable[str]) -> str:
    tools = ", ".join(known)
    return f"There is no tool {name[:_SHOWN_OF_A_NAME]!r}; the tools are: {tools or 'none'}."


def _label(spec: ToolSpec) -> str:
    """The names of tools that come with requests are anybody's: each would be a metric for ever."""
    return spec.name if spec.http is None else "(declared)"


def _clean(input_json: str) -> str:
    return storable(input_json).strip() or "{}"


def _parsed(input_json: str) -> dict[str, Any]:
    """Raises ValueError for anything but a JSON object, or nothing at all, which stands for an empty one."""
    try:
        value = from_json(_clean(input_json))
    except ValueError as error:
        raise ValueError(f"is not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise ValueError("is not a JSON object")
    return value
