"""Divides a turn into parts for display: prose in full, and one line for each thought and each tool call."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal

from rich.markdown import Markdown

from turnstream_client.assembler import Assembler
from turnstream_client.events import Json
from turnstream_terminal.blocks import (
    degraded_line,
    edited_input,
    file_labels,
    reason_not_run,
    result_remarks,
    shortened_summary,
    verdict_problem,
)
from turnstream_terminal.text import (
    LONGEST_LINE,
    duration,
    has_huge_table,
    last_words,
    one_line,
    printable,
    short_input,
)

LineStatus = Literal["thinking", "thought", "writing", "running", "waiting", "ok", "failed", "stopped", "other"]

_SHORTEST_TIME: Final = 0.1  # seconds; shorter times are not shown
_CHANGING: Final = frozenset({"thinking", "writing", "running", "waiting"})
_JOB_STATES: Final = {"due": "waits for a server", "running": "in the background", "detached": "works elsewhere"}
_CHILD_STATES: Final = {
    "queued": "waits for its turn",
    "running": "works",
    "waiting": "waits",
    "complete": "has answered",
}
_NORMAL_STOP_REASONS: Final = frozenset({"end_turn", "stop_sequence", "handoff"})
_STOP_REASONS: Final = {
    "max_tokens": "cut off at max_tokens",
    "model_context_window_exceeded": "cut off at the end of the context window",
    "refusal": "the model refused to go on",
    "max_tool_rounds": "stopped at the limit of tool rounds",
    "assembled": "written by the server from the results of the tools",
    "max_calls": "stopped at the limit of tool calls",
    "tool_use": "stopped after its tools, as requested",
    "forked": "a fork left out what came after this",
}


@dataclass(frozen=True, slots=True)
class Prose:
    markdown: str


@dataclass(frozen=True, slots=True)
class UserText:
    """A message that the user sent while the turn ran."""

    text: str


@dataclass(frozen=True, slots=True)
class SummaryLine:
    """One line that describes a block. If it is too long, `details` are truncated, but not the `note` at the end."""

    status: LineStatus
    name: str
    details: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class TurnPart:
    """`first` and `last` are the indexes of the first and last block of the part; `number` tells parts of the same
    blocks apart. A `settled` part no longer changes, unless a reset voids its blocks.
    """

    first: int
    last: int
    number: int
    content: Prose | UserText | SummaryLine
    settled: bool


@dataclass(slots=True)
class BlockActivity:
    """Observations that a live reader made: when each block began and ended, by block index (seconds of one clock), and
    the last progress message of each call, by `tool_use_id`.
    """

    began: dict[int, float] = field(default_factory=dict)
    ended: dict[int, float] = field(default_factory=dict)
    progress: dict[str, str] = field(default_factory=dict)

    def discard_from(self, index: int) -> None:
        for times in (self.began, self.ended):
            for later in [block for block in times if block >= index]:
                del times[later]


class MarkdownSplitter:
    """Splits growing Markdown at its top-level blocks, so that later text can change only the last piece."""

    def __init__(self) -> None:
        self._settled: list[str] = []
        self._settled_text = ""

    def split(self, text: str) -> list[str]:
        """Returns all pieces of `text`; the last piece may still grow."""
        if not text.startswith(self._settled_text):
            self._settled, self._settled_text = [], ""
        # Only the unsettled rest is parsed, because parsing the whole text for each frame would take quadratic time.
        rest = text[len(self._settled_text) :]
        if has_huge_table(rest):
            return [*self._settled, rest]
        lines = rest.split("\n")
        starts = [token.map[0] for token in Markdown(rest).parsed if token.map and token.level == 0]
        for start, stop in pairwise(starts):
            self._settled.append("\n".join(lines[start:stop]))
        if len(starts) > 1:
            rest = "\n".join(lines[starts[-1] :])
            self._settled_text = text[: len(text) - len(rest)]
        return [*self._settled, rest]


class PartBuilder:
    """Builds the parts of a growing turn again for each frame."""

    def __init__(self) -> None:
        self._splitters: dict[int, MarkdownSplitter] = {}

    def build(self, state: Assembler, activity: BlockActivity, now: float) -> list[TurnPart]:
        lines = _SummaryLines(state, activity, now)
        return [part for run in _runs(state.blocks) for part in self._parts_of_run(run, state, lines)]

    def _parts_of_run(self, run: Sequence[Json], state: Assembler, lines: "_SummaryLines") -> Iterator[TurnPart]:
        first, last = run[0]["index"], run[-1]["index"]
        if run[0]["type"] == "text":
            splitter = self._splitters.setdefault(first, MarkdownSplitter())
            pieces = splitter.split(printable("".join(block["text"] for block in run)))
            # A run of text blocks is complete if no other text can join it.
            sealed = state.rounds.get(run[-1]["round"], {}).get("stop_reason") and not run[-1].get("interrupted")
            complete = bool(last < len(state.blocks) - 1 or sealed or state.end)
            for number, piece in enumerate(pieces):
                if piece.strip():
                    yield TurnPart(first, last, number, Prose(piece), complete or number < len(pieces) - 1)
        elif run[0]["type"] == "user_text":
            yield TurnPart(first, last, 0, UserText(printable(run[0]["text"])), not run[0].get("open"))
        elif line := lines.of(run[0]):
            settled = state.end is not None or line.status not in _CHANGING
            yield TurnPart(first, last, 0, line, settled)


def text_passages(blocks: Sequence[Json]) -> list[str]:
    """Returns the prose of `blocks`, with one string for each run of text blocks."""
    runs = (run for run in _runs(blocks) if run[0]["type"] == "text")
    return [text for run in runs if (text := "".join(block["text"] for block in run))]


def closing_lines(state: Assembler, seconds: float | None) -> list[SummaryLine]:
    """Describes an unusual end and the degradations of the turn. With `seconds`, describes duration and usage, too."""
    degraded = one_line(degraded_line(state.degraded))
    lines = [SummaryLine("other", degraded)] if degraded else []
    reason = state.stop_reason or ""
    if state.end == "turn_cancelled":
        lines.append(SummaryLine("stopped", "deleted" if reason == "deleted" else "stopped"))
    elif state.end == "turn_error":
        error = state.error or {"type": "error", "message": "the reason is not known", "request_id": None}
        request = f" (request {error['request_id']})" if error["request_id"] else ""
        text = one_line(f"the turn failed: {error['type']}: {error['message']}{request}")
        lines.append(SummaryLine("failed", text))
    elif state.end == "turn_complete" and reason not in _NORMAL_STOP_REASONS:
        lines.append(SummaryLine("stopped", _STOP_REASONS.get(reason, reason)))
    if state.end == "turn_complete" and seconds is not None:
        usage = state.usage
        read = sum(usage.get(f"{kind}input_tokens") or 0 for kind in ("", "cache_read_", "cache_creation_"))
        rounds = f"{len(state.rounds)} rounds" if len(state.rounds) > 1 else ""
        tokens = f"{read:,} tokens in, {usage.get('output_tokens') or 0:,} out"
        cost = " · ".join(filter(None, [state.start.get("model"), rounds, tokens, duration(seconds)]))
        lines.append(SummaryLine("other", cost))
    return lines


def _runs(blocks: Sequence[Json]) -> Iterator[list[Json]]:
    """Yields runs of blocks. Adjacent text blocks of a round form one run, because a provider starts a new block at a
    citation within a sentence. An interrupted text and its continuation form one run, too.
    """
    run: list[Json] = []
    for block in blocks:
        last = run[-1] if run else None
        both_text = last is not None and (block["type"], last["type"]) == ("text", "text")
        if last is not None and both_text and (block["round"] == last["round"] or last.get("interrupted")):
            run.append(block)
            continue
        if run:
            yield run
        run = [block]
    if run:
        yield run


# --- one line for a block --------------------------------------------------------------------------------------------


class _SummaryLines:
    """Makes the lines for blocks that are not text. A call and its result share one line."""

    def __init__(self, state: Assembler, activity: BlockActivity, now: float) -> None:
        self._state = state
        self._activity = activity
        self._now = now
        self._results = {_call_key(block): block for block in state.blocks if block["type"].endswith("_result")}
        self._calls = {_call_key(block) for block in state.blocks if block["type"].endswith("tool_use")}

    def of(self, block: Json) -> SummaryLine | None:
        """Returns the line of a block. A result has no line of its own (None): the line of its call describes it."""
        kind: str = block["type"]
        if kind == "thinking" and block.get("open"):
            return SummaryLine("thinking", "thinking", last_words(one_line(block["text"][-LONGEST_LINE:])))
        if kind == "thinking":
            seconds = _elapsed(self._activity.began.get(block["index"]), self._activity.ended.get(block["index"]))
            return SummaryLine("thought", f"thought for {seconds}" if seconds else "thought", one_line(block["text"]))
        if kind.endswith("tool_use"):
            return self._call(block)
        if kind.endswith("_result") and _call_key(block) in self._calls:
            return None
        if kind == "redacted_thinking":
            return SummaryLine("thought", "thought", "not shown")
        return _server_line(block)

    def _call(self, block: Json) -> SummaryLine:
        name = one_line(block.get("name") or block["type"])
        if block.get("open"):
            return SummaryLine("writing", name, note=f"{len(block['text']):,} characters" if block["text"] else "")
        details, result = short_input(block.get("input")), self._results.get(_call_key(block))
        started = self._activity.ended.get(block["index"])  # a tool starts when the block of its call ends
        if result is None:
            if self._state.end or block.get("interrupted"):
                return SummaryLine("stopped", name, details, "did not finish")
            if any(action["tool_use_id"] == block.get("id") for action in self._state.actions):
                return SummaryLine("waiting", name, details, "waits for a person")
            progress = one_line(self._activity.progress.get(block.get("id") or "", ""))
            job = next((job for job in self._state.jobs if job["tool_use_id"] == block.get("id")), None)
            notes = [*(job_notes(job) if job else [progress]), _elapsed(started, self._now)]
            return SummaryLine("running", name, details, " · ".join(filter(None, notes)))
        if not_run := reason_not_run(result):
            return SummaryLine("stopped", name, details, not_run)
        if (edited := edited_input(result)) is not None:
            details = short_input(edited)
        seconds = _elapsed(started, self._activity.began.get(result["index"]))
        notes = [*map(one_line, [*file_labels(result), *result_remarks(result)]), seconds]
        if not result.get("is_error"):
            return SummaryLine("ok", name, details, " · ".join(filter(None, notes)))
        first_line = next(iter(result["text"].strip().splitlines()), "")
        return SummaryLine("failed", name, details, " · ".join(filter(None, [one_line(first_line), *notes])))


def job_notes(job: Json) -> list[str]:
    """Returns the state and progress of a background call, and the cost and chat of its agent."""
    child = job["child"]
    state = _CHILD_STATES.get(child["status"]) if child else None
    notes = [state or _JOB_STATES.get(job["state"], one_line(job["state"])), one_line(job["progress"] or "")]
    if child:
        notes += [f"cost {child['cost']:.4g}" if child["cost"] else "", f"chat {child['chat']}"]
    return notes


def _elapsed(start: float | None, end: float | None) -> str:
    """Returns the duration; empty if it is short or was not observed."""
    return "" if start is None or end is None or end - start < _SHORTEST_TIME else duration(end - start)


def _server_line(block: Json) -> SummaryLine:
    """Describes a block that the server wrote between the model's blocks, or a block of an unknown type."""
    data = block.get("data")
    match block["type"]:
        case "shortened" if data:
            results, how_much = shortened_summary(data)
            return SummaryLine("other", results, how_much)
        case "summary" if block.get("open"):
            return SummaryLine("writing", "summarising the turns before", note=f"{len(block['text']):,} characters")
        case "summary":
            return SummaryLine("other", "the turns before were summarised:", one_line(block["text"]))
        case "report" if data:
            status: LineStatus = "failed" if data.get("is_error") else "ok"
            return SummaryLine(status, f"{data.get('name')} in the background", note=one_line(block["text"]))
        case "verdict" if data and data.get("taken"):
            return SummaryLine("ok", "output accepted")
        case "verdict":
            return SummaryLine("failed", "output not accepted", note=one_line(verdict_problem(block)))
        case kind:
            return SummaryLine("other", kind.replace("_", " "), one_line(block["text"]))


def _call_key(block: Mapping[str, object]) -> tuple[object, object]:
    """Returns the round and the id of a call, because a provider may use an id again in another round."""
    return block["round"], block.get("tool_use_id") or block.get("id")
