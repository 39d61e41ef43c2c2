"""Runs the tries of a tool: repeats a call only if that is harmless, and converts every failure to an outcome."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import structlog

from turnstream.kit.backoff import backoff, jittered
from turnstream.kit.text import storable
from turnstream.tools.policy import repeatable
from turnstream.tools.tool import Outcome, Tool, ToolContext, ToolError, ToolUnavailable

log = structlog.get_logger(__name__)

Notes = dict[str, Any]
# Returns the seconds to wait before a retry. Retries are numbered from 1.
Backoff = Callable[[int], float]


@dataclass(frozen=True, slots=True)
class Try:
    """One try. It `broke` if the tool failed without reporting that on purpose, or if a service is unavailable."""

    outcome: Outcome
    broke: bool = False


def short_backoff(retry: int) -> float:
    return jittered(backoff(retry, 0.2, 2.0))


async def retry(tool: Tool, input_json: str, context: ToolContext, notes: Notes, pause: Backoff) -> Try:
    """Calls a tool up to 1 + `retries` times, until a success or an intended error. Returns the last try."""
    retries = tool.policy.retries if repeatable(tool.spec) else 0
    tries = 0
    while True:
        last = await try_once(tool, input_json, context)
        tries += 1
        # Some tools turn their cancellation into an error, and must not start again.
        if not last.broke or tries > retries or last.outcome.kind == "timeout" or is_cancelled():
            break
        notes["retries"] = tries  # noted now, because a timeout or a cancellation may stop the next try
        log.warning("tool.retry", retry=tries)
        await asyncio.sleep(pause(tries))
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
    except asyncio.CancelledError:
        raise  # the limiter finds out which task was cancelled
    except BaseException as error:  # noqa: BLE001, asyncio ends the process after KeyboardInterrupt and SystemExit
        return broken(tool, error)


def is_cancelled() -> bool:
    """Whether the running task was cancelled. If not, the code inside the task has raised the CancelledError."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def broken(tool: Tool, error: BaseException) -> Try:
    """Makes the try of a tool that raised `error`. The model sees only the error's class: the text may have secrets."""
    log.error("tool.failed", exc_info=error)
    return Try(Outcome(f"The tool {tool.spec.name} failed ({type(error).__name__}).", kind="error"), broke=True)
