"""Steps of every tool call, in its turn or as a job: measures the call, and stores the files of its result."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

from turnstream.domain.limits import ReachedLimit
from turnstream.domain.media import media_type_of
from turnstream.domain.plans import Plan
from turnstream.domain.results import ResultPart, joined_texts, layout_of
from turnstream.kit.clock import CLOCK
from turnstream.storage.database import retry_while_unavailable
from turnstream.storage.owners.uploads import Uploads
from turnstream.storage.rows import to_json
from turnstream.telemetry import TOOL_OUTCOMES, TOOL_SECONDS, TOOLS_RUNNING
from turnstream.tools.tool import File, Outcome
from turnstream.tracing import TRACING

_MOST_HANDLE = 100_000  # characters of JSON


def handle_text(handle: Any) -> str:
    """Returns the handle of a job as JSON text. Raises ValueError if it is too long."""
    text = to_json(handle)
    if len(text) > _MOST_HANDLE:
        raise ValueError(f"a handle must have at most {_MOST_HANDLE:,} characters of JSON, not {len(text):,}")
    return text


async def measured(
    label: str, tool_use_id: str | None, input_json: str, invoke: Callable[[], Awaitable[Outcome]]
) -> Outcome:
    """Returns the outcome of `invoke`, with a note of its duration. `label` names the tool in metrics and spans."""
    started_at, start = CLOCK.now(), perf_counter()
    with (
        TOOLS_RUNNING.track_inprogress(),
        TRACING.span(
            f"execute_tool {label}",
            gen_ai__operation__name="execute_tool",
            gen_ai__tool__name=label,
            gen_ai__tool__call__id=tool_use_id,
        ) as span,
    ):
        outcome = await invoke()
        if TRACING.content:
            span.set(
                gen_ai__tool__call__arguments=TRACING.cut(input_json),
                gen_ai__tool__call__result=TRACING.cut(outcome.text),
            )
        span.set(**{f"turnstream__{name}": _figure(outcome.notes[name]) for name in outcome.notes})
        if outcome.is_error:
            span.failed(outcome.kind)
    seconds = perf_counter() - start
    TOOL_SECONDS.labels(label).observe(seconds)
    TOOL_OUTCOMES.labels(label, outcome.kind).inc()
    times = {"started_at": started_at.isoformat(timespec="milliseconds"), "seconds": round(seconds, 3)}
    return replace(outcome, notes={**times, **outcome.notes})


async def with_files_stored(outcome: Outcome, uploads: Uploads, owner: str, plan: Plan) -> Outcome:
    """Returns the outcome as its row has it: its texts joined into one, and a layout. Stores its files as uploads of
    the owner, before a reader or the model sees them. Drops blank texts, which providers refuse.
    """
    if not outcome.more:
        return outcome
    parts: list[ResultPart] = []
    for part in outcome.parts:
        if isinstance(part, File):
            media_type = media_type_of(part.content)
            assert media_type is not None
            put = partial(uploads.put_within, owner, media_type.name, part.content, plan)
            upload = await retry_while_unavailable(put)
            if isinstance(upload, ReachedLimit):
                reason = f"The files of this result were not kept: the owner's limit `{upload.name}` is reached."
                return replace(outcome, text=reason, is_error=True, more=(), layout=None)
            parts.append({"type": media_type.block, "source": upload.source})
        elif part.strip():
            parts.append(part)
    return replace(outcome, text=joined_texts(parts), more=(), layout=layout_of(parts))


def _figure(note: Any) -> str | int | float | bool:
    """Returns a number or a boolean unchanged, and True for any other note, because a text may be content."""
    return note if isinstance(note, bool | int | float) else True
