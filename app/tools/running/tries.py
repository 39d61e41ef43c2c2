"""The tries of a tool: retries where they do no harm, every failure as an outcome, the fallback of a failed tool."""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog

from app.kit.text import storable
from app.tools.policy import repeatable
from app.tools.tool import Outcome, Tool, ToolContext, ToolError, ToolUnavailable

log = structlog.get_logger(__name__)

Notes = dict[str, Any]
# Seconds to wait before a retry, by its number from 1.
Backoff = Callable[[int], float]

_REASONS = {"error": "failed", "timeout": "ran out of time", "unavailable": "is not available"}
FAILURES: frozenset[str] = frozenset(_REASONS)  # the kinds of outcome that a fallback stands in for


@dataclass(frozen=True, slots=True)
class Try:
    """`broke`: the tool failed, and did not report the failure on purpose; or something that it needs is away."""

    outcome: Outcome
    broke: bool = False


def short_backoff(retry: int) -> float:
    longest = min(2.0, 0.2 * 2.0 ** (retry - 1))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311, no secret depends on it


async def retry(tool: Tool, input_json: str, context: ToolContext, notes: Notes, backoff: Backoff) -> Try:
    """Tries a tool until it does not break, at most 1 + `retries` times, and returns the last try."""
    retries = tool.policy.retries if repeatable(tool.spec) else 0
    tries = 0
    while True:
        last = await try_once(tool, input_json, context)
        tries += 1
        task = asyncio.current_task()
        # Some tools turn their cancellation into an error: they must not start again.
        cancelled = task is not None and task.cancelling() > 0
        if not last.broke or tries > retries or last.outcome.kind == "timeout" or cancelled:
            break
        notes["retries"] = tries  # at once: a timeout or a cancellation may end the next try
        log.warning("tool.retry", retry=tries)
        await asyncio.sleep(backoff(tries))
    if last.broke and tries > 1:
        return Try(replace(last.outcome, text=f"{last.outcome.text} It was tried {tries} times."), broke=True)
    return last


async def try_once(tool: Tool, input_json: str, context: ToolContext) -> Try:
    try:
        outcome = await tool(context, input_json)
        more = tuple(storable(part) if isinstance(part, str) else part for part in outcome.more)
        outcome = replace(outcome, text=storable(outcome.text), more=more)
        return Try(outcome, broke=outcome.kind in {"timeout", "unavailable"})
    except ToolError as error:
        away = isinstance(error, ToolUnavailable)
        text = storable(str(error)) or f"The tool {tool.spec.name} failed."
        return Try(Outcome(text, kind="unavailable" if away else "error"), broke=away)
    except (Exception, SystemExit) as error:  # noqa: BLE001, SystemExit would end the process
        return broken(tool, error)


def broken(tool: Tool, error: BaseException) -> Try:
    """The model sees only the class of the error: its message may hold what the model must not see."""
    log.error("tool.failed", exc_info=error)
    return Try(Outcome(f"The tool {tool.spec.name} failed ({type(error).__name__}).", kind="error"), broke=True)


def fallback_problem(tool: Tool, tools: Mapping[str, Tool]) -> str | None:
    """The reason why the fallback of a tool, if it has one, must not stand in for it. A call may be run early, twice or
    without an approval only if that holds for both tools.
    """
    name, fallback = tool.spec.name, tool.policy.fallback
    if fallback is None:
        return None
    if (stand_in := tools.get(fallback)) is None:
        return f"{name} has the fallback {fallback}, which is not in the toolset: add it, or name another tool"
    if stand_in.policy.approval != "never":
        return f"{fallback} cannot be the fallback of {name}: a call of it may need an approval"
    if tool.spec.read_only and not stand_in.spec.read_only:
        return f"{fallback} cannot be the fallback of {name}: {name} is read_only, and {fallback} is not"
    if repeatable(tool.spec) and not repeatable(stand_in.spec):
        return f"{fallback} cannot be the fallback of {name}: {name} is retry_safe, and {fallback} is not"
    return None


def with_fallback(first: Outcome, stand_in: Tool, second: Outcome) -> Outcome:
    """The outcome of a call that failed, when `stand_in` was run after it."""
    name = stand_in.spec.name
    note: dict[str, Any] = {"tool": name, "because": first.kind}
    if second.notes:
        note["notes"] = dict(second.notes)
    notes = {**first.notes, "fallback": note}
    if second.is_error:
        return replace(first.with_parts(*first.parts, f"[{name} was run instead:]", *second.parts), notes=notes)
    reason = f"[The tool that was called {_REASONS[first.kind]}; this is the answer of {name}.]"
    return replace(second.with_parts(reason, *second.parts), notes=notes)
