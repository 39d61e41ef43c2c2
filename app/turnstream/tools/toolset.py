"""The toolset: finds, validates and runs the calls of a model. Every call gets one outcome."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import structlog
from pydantic_core import from_json
from structlog.contextvars import bound_contextvars

from turnstream.domain.errors import CannotOpen
from turnstream.domain.turns import Preset, ToolSpec, TurnRequest
from turnstream.kit.json_values import MOST_VALUES, has_too_many_values
from turnstream.kit.text import storable
from turnstream.tools.grants import digest_of_tool
from turnstream.tools.outputs import Outputs
from turnstream.tools.policy import Policy, count_policies
from turnstream.tools.running.fallback import FAILURES, fallback_problem, input_of, with_fallback
from turnstream.tools.running.fit import Sizes, fit
from turnstream.tools.running.limiter import Limiter
from turnstream.tools.running.slots import Slots
from turnstream.tools.running.tries import Backoff, short_backoff
from turnstream.tools.secrets import ToolSecrets
from turnstream.tools.serialize import serialize
from turnstream.tools.tool import Offer, Outcome, Stopped, Tool, ToolContext, ToolSource

log = structlog.get_logger(__name__)

_MAX_NAME_CHARS = 100  # that a text shows of a name that the model invented


class Toolset:
    """The tools of a server.

    At most `max_parallel` calls of all turns run at once, and in addition `max_request_tools` calls of tools that
    requests declared. With `reserved`, no owner gets all of these slots. A cancelled tool has `patience` seconds to
    stop; then the server abandons it. The model gets up to `max_result_chars` characters of a result, and the rows keep
    up to `max_whole_chars`; a file has up to `max_file_bytes`. `sources` list additional tools, which may appear and
    disappear. `declared` makes a tool from a spec that a request declared. `offers` change the tools of a request.
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
        offers: Sequence[Offer] = (),
        max_request_tools: int = 16,
        reserved: bool = False,
        max_whole_chars: int = 5_000_000,
        max_file_bytes: int = 5_000_000,
        patience: float = 2.0,
        backoff: Backoff = short_backoff,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own: dict[str, Tool] = {}
        for tool in tools:
            if tool.spec.name in self._own:
                raise ValueError(f"two tools have the name {tool.spec.name}: rename one of them")
            self._own[tool.spec.name] = tool
        self.outputs = outputs or Outputs()
        self.sources = sources
        self._declared = declared
        self._offers = offers
        # Whether a runner executes the calls of background tools.
        self.runs_jobs = True
        self.secrets = ToolSecrets()
        self._sizes = Sizes(max_result_chars, max_whole_chars, max_file_bytes)
        self._limiter = Limiter(
            Slots(max_parallel, reserved=reserved),
            Slots(max_request_tools, reserved=reserved),
            patience,
            backoff,
            clock,
        )
        known = self._tools
        for tool in self._own.values():
            if problem := fallback_problem(tool, known):
                raise ValueError(problem)

    @property
    def own(self) -> Sequence[Tool]:
        """The tools that do not come from sources."""
        return tuple(self._own.values())

    @property
    def tools(self) -> Sequence[Tool]:
        """All tools that a turn may name, with the present tools of sources. Tools that are `hidden` are omitted."""
        return tuple(tool for tool in self._tools.values() if not getattr(tool, "hidden", False))

    @property
    def presets(self) -> Mapping[str, Preset]:
        """The presets of tools whose names are also model names."""
        found = {name: getattr(tool, "preset", None) for name, tool in self._own.items()}
        return {name: preset for name, preset in found.items() if preset is not None}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tool.spec.name for tool in self.tools)

    def specs(self, names: Sequence[str] | None = None) -> tuple[ToolSpec, ...]:
        """Returns the specs of the named tools in order, or of all tools. Raises ValueError for an unknown tool."""
        tools = {tool.spec.name: tool for tool in self.tools}
        names = list(tools) if names is None else list(dict.fromkeys(names))
        for name in names:
            if name not in tools:
                raise ValueError(_unknown(name, tools))
        return tuple(tools[name].spec for name in names)

    def lacking(self, specs: Iterable[ToolSpec]) -> Sequence[str]:
        """Returns the names of the tools that this server must run but does not have."""
        tools = self._tools
        own = (spec.name for spec in specs if not spec.client and spec.http is None and spec.role is None)
        return [name for name in own if name not in tools]

    def offered(self, request: TurnRequest) -> TurnRequest:
        """Returns the request as it is stored. Some of its tools may be deferred."""
        for offer in self._offers:
            request = offer(request)
        return request

    def check(self, spec: ToolSpec) -> None:
        """Raises ValueError if the tool has a URL that this server cannot call."""
        if spec.http is None:
            return
        if self._declared is None:
            raise ValueError(f"{spec.name} has a URL, but this server calls no HTTP tools of requests")
        self._declared(spec)

    def policy(self, name: str, offered: Sequence[ToolSpec] | None = None) -> Policy:
        """Returns the policy of a tool, or the default policy for an unknown tool."""
        tool = self.find(name, offered)
        return Policy() if tool is None else tool.policy

    def job_kind(self, name: str) -> str:
        """Returns the kind of a background tool's jobs, as a word for people."""
        return getattr(self.find(name, None), "job_kind", "tool")

    def stopped(self, name: str) -> Stopped | None:
        """Returns the function that stops calls of the tool that continue elsewhere; None if there is no function."""
        return getattr(self.find(name, None), "stopped", None)

    def detaches(self, name: str) -> bool:
        """Whether a call that runs inside its turn may become a job."""
        return self.runs_jobs and getattr(self.find(name, None), "detaches", False)

    def needs_approval(self, name: str, input_json: str, offered: Sequence[ToolSpec] | None = None) -> bool:
        """Whether a person must allow this call. True if the function that should decide raises an error."""
        approval = self.policy(name, offered).approval
        if not callable(approval):
            return approval == "always"
        try:
            return bool(approval(parse_input(input_json)))
        except BaseException as error:
            log.error("tool.approval_undecided", tool=name, exc_info=error)
            return True

    def tool_digest(self, name: str, offered: Sequence[ToolSpec]) -> str | None:
        """Returns the digest of a tool for grants; None if each call of the tool needs its own decision."""
        tool, spec = self.find(name, offered), next((spec for spec in offered if spec.name == name), None)
        if tool is None or spec is None or tool.policy.approval_scope == "call" or tool.policy.approvers:
            return None
        return digest_of_tool(spec, tool.spec)

    async def run(
        self, name: str, input_json: str, context: ToolContext, *, offered: Sequence[ToolSpec] | None = None
    ) -> Outcome:
        """Runs one call. Raises only CancelledError, after the tool has stopped or the server has abandoned the tool.

        `offered` are the tools in the request of the model; None means all tools.
        """
        start = perf_counter()
        known = list(self._tools) if offered is None else [spec.name for spec in offered]
        with bound_contextvars(tool=name[:_MAX_NAME_CHARS], tool_use_id=context.tool_use_id):
            try:
                opened = None if offered is None else await self.opened(name, context.owner, offered)
                tool = self._resolve(name, input_json, known, opened)
            except CannotOpen as error:
                log.error("tool.sealed", reason=str(error))
                tool = Outcome(f"The stored headers of {name} cannot be decrypted by this server.", kind="unavailable")
            if isinstance(tool, Outcome):
                outcome = tool
            else:
                input_json = _clean(input_json)
                outcome = await self._limiter.call(tool, input_json, context)
                if outcome.kind in FAILURES and (stand_in := self._fallback(tool)) is not None:
                    outcome = await self._call_fallback(outcome, tool.policy, stand_in, input_json, context)
                outcome = fit(outcome, self._sizes.of(tool.policy), context.tool_use_id, known)
                # The name of a declared tool is arbitrary, and each name would become a permanent metric series.
                count_policies(tool.spec.name if tool.spec.http is None else "(declared)", outcome.notes)
            texts = [part for part in outcome.parts if isinstance(part, str)]
            sizes = {"characters": sum(map(len, texts)), "files": len(outcome.parts) - len(texts)}
            log.info("tool.settled", kind=outcome.kind, seconds=round(perf_counter() - start, 4), **sizes)
        return outcome

    async def _call_fallback(
        self, first: Outcome, policy: Policy, stand_in: Tool, input_json: str, context: ToolContext
    ) -> Outcome:
        fallback = policy.stand_in
        assert fallback is not None
        log.warning("tool.fallback", fallback=fallback.tool, kind=first.kind)
        with bound_contextvars(tool=fallback.tool):
            changed: str | None = None
            try:
                if fallback.changes_input:
                    changed = storable(serialize(input_of(fallback, parse_input(input_json)), "json"))
            except BaseException as error:
                log.error("tool.failed", exc_info=error)
                second = Outcome(f"The fallback's input could not be built ({type(error).__name__}).", is_error=True)
            else:
                second = await self._limiter.call(stand_in, changed or input_json, context)
        return with_fallback(first, fallback, second, changed)

    def fitted(self, name: str, outcome: Outcome, tool_use_id: str, offered: Sequence[ToolSpec]) -> Outcome:
        """Truncates an outcome from a client or from the cache to the size limits of the tool."""
        sizes = self._sizes.of(self.policy(name, offered))
        return fit(outcome, sizes, tool_use_id, [spec.name for spec in offered])

    async def opened(self, name: str, owner: str, offered: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
        """Returns `offered`, with the headers of the called tool in plain text. Raises CannotOpen."""
        spec = next((spec for spec in offered if spec.name == name), None)
        if spec is None or spec.http is None:
            return offered
        headers = await self.secrets.opened_headers(owner, spec.http.url, spec.http.headers)
        if headers is spec.http.headers:
            return offered
        opened = replace(spec, http=replace(spec.http, headers=headers))
        return [opened if each is spec else each for each in offered]

    def _resolve(
        self, name: str, input_json: str, known: Sequence[str], offered: Sequence[ToolSpec] | None
    ) -> Tool | Outcome:
        """Returns the tool to run, or the outcome of a call that cannot run."""
        if name not in known:
            return Outcome(_unknown(name, known), kind="unknown")
        try:
            parse_input(input_json)
        except ValueError as error:
            return Outcome(f"The input of {name} {error}; send one JSON object.", kind="bad_input")
        tool = self.find(name, offered)
        return Outcome(f"The tool {name} is not available at the moment.", kind="unavailable") if tool is None else tool

    def _fallback(self, tool: Tool) -> Tool | None:
        """Returns a tool's fallback. Each call checks it: a source may have added the tool or its fallback later."""
        tools = self._tools
        if problem := fallback_problem(tool, tools):
            log.error("tool.no_fallback", problem=problem)
            return None
        return None if tool.policy.stand_in is None else tools.get(tool.policy.stand_in.tool)

    def find(self, name: str, offered: Sequence[ToolSpec] | None) -> Tool | None:
        """Finds a tool by name. If the request declared a tool of this name, never returns the server's own tool."""
        spec = next((spec for spec in offered or () if spec.name == name), None)
        if offered is not None and (spec is None or spec.client):
            return None
        if spec is None or spec.http is None:
            return self._tools.get(name)
        try:
            return None if self._declared is None else self._declared(spec)
        except Exception as error:
            log.error("tool.failed", exc_info=error)
            return None

    @property
    def _tools(self) -> Mapping[str, Tool]:
        """All present tools. If two tools have the same name, the first tool applies."""
        tools = dict(self._own)
        for source in self.sources:
            tools |= {name: tool for name, tool in source.tools().items() if name not in tools}
        return tools


def _unknown(name: str, known: Iterable[str]) -> str:
    tools = ", ".join(known)
    return f"There is no tool {name[:_MAX_NAME_CHARS]!r}; the tools are: {tools or 'none'}."


def _clean(input_json: str) -> str:
    return storable(input_json).strip() or "{}"


def parse_input(input_json: str) -> dict[str, Any]:
    """Parses the input as a dict; a blank input is an empty object. Raises ValueError for any other value."""
    text = _clean(input_json)
    if has_too_many_values(text):
        raise ValueError(f"has more than {MOST_VALUES:,} values")
    try:
        value = from_json(text)
    except ValueError as error:
        raise ValueError(f"is not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise ValueError("is not a JSON object")
    return value
