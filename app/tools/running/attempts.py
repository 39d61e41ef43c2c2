"""A tool is called, and once more where that does no harm. Whatever it raises becomes an outcome."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import structlog

from app.kit.text import storable
from app.tools.policy import repeatable
from app.tools.tool import Outcome, Tool, ToolContext, ToolError, ToolUnavailable

log = structlog.get_logger(__name__)

Notes = dict[str, Any]
# Seconds to wait before a retry, by its number from 1.
Backoff = Callable[[int], float]


@dataclass(frozen=True, slots=True)
class Attempt:
    """`broke`: it failed in a way that its author did not mean to tell, or for want of something that is away."""

    outcome: Outcome
    broke: bool = False


def short_backoff(retry: int) -> float:
    longest = min(2.0, 0.2 * 2.0 ** (retry - 1))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311, no secret depends on it


async def attempts(tool: Tool, input_json: str, context: ToolContext, notes: Notes, backoff: Backoff) -> Attempt:
    """The last of up to `retries` more attempts. `notes` tells of each at once: this may be cancelled at any time."""
    allowed = tool.policy.retries if repeatable(tool.spec) else 0
    for retry in count(1):
        made = await attempt(tool, input_json, context)
        if not made.broke or retry > allowed or made.outcome.kind == "timeout" or _told_to_stop():
            return _told_how_often(made, retry)
        notes["retries"] = retry
        log.warning("tool.retry", retry=retry)
        await asyncio.sleep(backoff(retry))
    raise AssertionError


async def attempt(tool: Tool, input_json: str, context: ToolContext) -> Attempt:
    try:
        outcome = await tool(context, input_json)
        more = tuple(storable(part) if isinstance(part, str) else part for part in outcome.more)
        outcome = replace(outcome, text=storable(outcome.text), more=more)
        return Attempt(outcome, broke=outcome.kind in {"timeout", "unavailable"})
    except ToolUnavailable as error:
        return Attempt(Outcome(_words(tool, error), kind="unavailable"), broke=True)
    except ToolError as error:
        return Attempt(Outcome(_words(tool, error), kind="error"))
    except (Exception, SystemExit) as error:  # noqa: BLE001, SystemExit would end the process
        return broken(tool, error)


def broken(tool: Tool, error: BaseException) -> Attempt:
    """Only the class is told: a message may hold what the model must not see."""
    log.error("tool.failed", exc_info=error)
    return Attempt(Outcome(f"The tool {tool.spec.name} failed ({type(error).__name__}).", kind="error"), broke=True)


def _words(tool: Tool, error: ToolError) -> str:
    return storable(str(error)) or f"The tool {tool.spec.name} failed."


def _told_how_often(made: Attempt, tries: int) -> Attempt:
    if tries == 1 or not made.broke:
        return made
    return replace(made, outcome=replace(made.outcome, text=f"{made.outcome.text} It was tried {tries} times."))


def _told_to_stop() -> bool:
    """Some tools make an error of their cancellation: it must not start them again."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
