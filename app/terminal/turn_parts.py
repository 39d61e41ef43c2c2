"""What is shown of a turn, part by part: prose as it is, thinking and tool calls folded to one line each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Final, Literal

from rich.markdown import Markdown

from app.terminal.assembler import Assembler, Json
from app.terminal.blocks import (
    degraded_line,
    edited_input,
    files_in_words,
    remarks,
    shortened_in_words,
    what_is_wrong,
    why_not_run,
)
from app.terminal.text import LONGEST_LINE, clean, one_line, short_input, span, tail

Look = Literal["thinking", "thought", "writing", "running", "waiting", "ok", "failed", "stopped", "other"]

_SHORTEST_TIME: Final = 0.1  # seconds; what is shorter is not worth a number
_CHANGING: Final = frozenset({"thinking", "writing", "running", "waiting"})
_AS_USUAL: Final = frozenset({"end_turn", "stop_sequence"})
_REASONS: Final = {
    "max_tokens": "cut off at max_tokens",
    "model_context_window_exceeded": "cut off at the end of the context window",
    "refusal": "the model refused to go on",
    "max_tool_rounds": "stopped at the limit of tool rounds",
    "tool_use": "stopped after its tools, as it was asked to",
}


@dataclass(frozen=True, slots=True)
class Prose:
    markdown: str


@dataclass(frozen=True, slots=True)
class Said:
    """What the user said while the turn ran."""

    text: str


@dataclass(frozen=True, slots=True)
class Fold:
    """One line: what it is, its particulars, and at the end what must not be cut off."""

    look: Look
    name: str
    details: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """`first` and `last` are the blocks it is made of, `number` counts the parts of these blocks. A part that is
    `settled` does not change any more, unless its blocks are taken back.
    """

    first: int
    last: int
    number: int
    content: Prose | Said | Fold
    settled: bool


@dataclass(slots=True)
class Watch:
    """What was seen beside the blocks: when each began and ended (seconds on some clock), and words in passing."""

    began: dict[int, float] = field(default_factory=dict)
    ended: dict[int, float] = field(default_factory=dict)
    progress: dict[str, str] = field(default_factory=dict)

    def forget(self, index: int) -> None:
        for times in (self.began, self.ended):
            for later in [block for block in times if block >= index]:
                del times[later]


class Pieces:
    """Markdown that grows, cut where nothing that follows can change what stands before."""

    def __init__(self) -> None:
        self._settled: list[str] = []
        self._taken = ""

    def of(self, text: str) -> list[str]:
        """All pieces of `text`; the last one may still grow."""
        if not text.startswith(self._taken):
            self._settled, self._taken = [], ""
        rest = text[len(self._taken) :]
        lines = rest.split("\n")
        starts = [token.map[0] for token in Markdown(rest).parsed if token.map and token.level == 0]
        for start, stop in pairwise(starts):
            self._settled.append("\n".join(lines[start:stop]))
        if len(starts) > 1:
            rest = "\n".join(lines[starts[-1] :])
            self._taken = text[: len(text) - len(rest)]
        return [*self._settled, rest]


class Parts:
    """The parts of one turn as it grows."""

    def __init__(self) -> None:
        self._pieces: dict[int, Pieces] = {}

    def of(self, state: Assembler, watch: Watch, now: float) -> list[Part]:
        calls = _Calls(state, watch, now)
        return [part for run in _runs(state.blocks) for part in self._of_run(run, state, calls)]

    def _of_run(self, run: Sequence[Json], state: Assembler, calls: "_Calls") -> Iterator[Part]:
        first, last = run[0]["index"], run[-1]["index"]
        if run[0]["type"] == "text":
            pieces = self._pieces.setdefault(first, Pieces()).of(clean("".join(block["text"] for block in run)))
            over = _is_over(run, state)
            for number, piece in enumerate(pieces):
                if piece.strip():
                    yield Part(first, last, number, Prose(piece), over or number < len(pieces) - 1)
        elif run[0]["type"] == "user_text":
            yield Part(first, last, 0, Said(clean(run[0]["text"])), not run[0].get("open"))
        elif fold := calls.fold(run[0]):
            settled = state.end is not None or fold.look not in _CHANGING
            yield Part(first, last, 0, fold, settled)


def passages(blocks: Sequence[Json]) -> list[str]:
    """The prose of these blocks, in pieces that stand apart."""
    runs = (run for run in _runs(blocks) if run[0]["type"] == "text")
    return [text for run in runs if (text := "".join(block["text"] for block in run))]


def last_words(state: Assembler, seconds: float | None) -> list[Fold]:
    """How the turn ended, where that is worth a line; with `seconds` also what it took."""
    degraded = one_line(degraded_line(state.degraded))
    return ([Fold("other", degraded)] if degraded else []) + _end_of(state, seconds)


def _end_of(state: Assembler, seconds: float | None) -> list[Fold]:
    match state.end:
        case "turn_cancelled":
            return [Fold("stopped", "stopped")]
        case "turn_error":
            error = state.error or {"type": "error", "message": "it is not known why", "request_id": None}
            request = f" (request {error['request_id']})" if error["request_id"] else ""
            return [Fold("failed", one_line(f"the turn failed: {error['type']}: {error['message']}{request}"))]
        case "turn_complete":
            reason = state.stop_reason or ""
            odd = [Fold("stopped", _REASONS.get(reason, reason))] if reason not in _AS_USUAL else []
            return odd + ([Fold("other", _cost(state, seconds))] if seconds is not None else [])
        case _:
            return []


def _cost(state: Assembler, seconds: float) -> str:
    usage = state.usage
    asked = sum(usage.get(f"{kind}input_tokens") or 0 for kind in ("", "cache_read_", "cache_creation_"))
    rounds = f"{len(state.rounds)} rounds" if len(state.rounds) > 1 else ""
    tokens = f"{asked:,} tokens in, {usage.get('output_tokens') or 0:,} out"
    return " · ".join(filter(None, [state.start.get("model"), rounds, tokens, span(seconds)]))


def _runs(blocks: Sequence[Json]) -> Iterator[list[Json]]:
    """Neighbouring text blocks of one round are one text: a citation ends a block in mid-sentence."""
    for key, run in groupby(blocks, key=lambda block: (block["round"], block["type"] == "text")):
        if key[1]:
            yield list(run)
        else:
            yield from ([block] for block in run)


def _is_over(run: Sequence[Json], state: Assembler) -> bool:
    """Whether no more text can join the run."""
    last = run[-1]
    sealed = state.rounds.get(last["round"], {}).get("stop_reason")
    return bool(last["index"] < len(state.blocks) - 1 or sealed or state.end)


# --- folded lines ----------------------------------------------------------------------------------------------------


class _Calls:
    """Folds blocks that are not text. A call and its result are one line."""

    def __init__(self, state: Assembler, watch: Watch, now: float) -> None:
        self._state = state
        self._watch = watch
        self._now = now
        self._results = {_call_of(block): block for block in state.blocks if block["type"].endswith("_result")}
        self._asked = {_call_of(block) for block in state.blocks if block["type"].endswith("tool_use")}

    def fold(self, block: Json) -> Fold | None:
        kind: str = block["type"]
        if kind == "thinking":
            return self._thinking(block)
        if kind.endswith("tool_use"):
            return self._call(block)
        if kind.endswith("_result") and _call_of(block) in self._asked:
            return None
        if kind == "redacted_thinking":
            return Fold("thought", "thought", "not shown")
        return _aside(block)

    def _thinking(self, block: Json) -> Fold:
        index, text = block["index"], block["text"]
        if block.get("open"):
            return Fold("thinking", "thinking", tail(one_line(text[-LONGEST_LINE:])))
        seconds = self._seconds(index, self._watch.ended.get(index))
        return Fold("thought", f"thought for {seconds}" if seconds else "thought", one_line(text))

    def _call(self, block: Json) -> Fold:
        name, index = one_line(block.get("name") or block["type"]), block["index"]
        if block.get("open"):
            return Fold("writing", name, note=f"{len(block['text']):,} characters" if block["text"] else "")
        details = short_input(block.get("input"))
        result = self._results.get(_call_of(block))
        if result is not None:
            return self._answered(block, name, details, result)
        if self._state.end or block.get("interrupted"):
            return Fold("stopped", name, details, "not run to its end")
        if any(action["tool_use_id"] == block.get("id") for action in self._state.actions):
            return Fold("waiting", name, details, "waits for a person")
        waited = self._seconds(index, self._now, since=self._watch.ended)
        progress = one_line(self._watch.progress.get(block.get("id") or "", ""))
        return Fold("running", name, details, " · ".join(filter(None, [progress, waited])))

    def _answered(self, block: Json, name: str, details: str, result: Json) -> Fold:
        seconds = self._seconds(block["index"], self._watch.began.get(result["index"]), since=self._watch.ended)
        if why_not := why_not_run(result):
            return Fold("stopped", name, details, why_not)
        if (edited := edited_input(result)) is not None:
            details = short_input(edited)
        after = [*map(one_line, [*files_in_words(result), *remarks(result)]), seconds]
        if not result.get("is_error"):
            return Fold("ok", name, details, " · ".join(filter(None, after)))
        said = next(iter(result["text"].strip().splitlines()), "")
        return Fold("failed", name, details, " · ".join(filter(None, [one_line(said), *after])))

    def _seconds(self, index: int, then: float | None, since: Mapping[int, float] | None = None) -> str:
        start = (self._watch.began if since is None else since).get(index)
        if start is None or then is None or then - start < _SHORTEST_TIME:
            return ""
        return span(then - start)


def _aside(block: Json) -> Fold:
    """A word of the server's between the model's blocks, or a block that nothing is known of."""
    data = block.get("data")
    match block["type"]:
        case "shortened" if data:
            what, how_much = shortened_in_words(data)
            return Fold("other", what, how_much)
        case "summary" if block.get("open"):
            return Fold("writing", "summarising the turns before", note=f"{len(block['text']):,} characters")
        case "summary":
            return Fold("other", "the turns before were summarised:", one_line(block["text"]))
        case "verdict" if data and data.get("taken"):
            return Fold("ok", "output accepted")
        case "verdict":
            return Fold("failed", "output not accepted", note=one_line(what_is_wrong(block)))
        case kind:
            return Fold("other", kind.replace("_", " "), one_line(block["text"]))


def _call_of(block: Json) -> tuple[int, str | None]:
    return block["round"], block.get("tool_use_id") or block.get("id")
