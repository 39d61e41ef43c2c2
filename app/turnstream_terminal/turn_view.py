"""Views of a growing turn: live on a terminal, or as plain text for a pipe."""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Final, Protocol

from rich.console import Console

from turnstream_client.assembler import Assembler
from turnstream_client.events import ConnectionEvent, ServerEvent
from turnstream_terminal.render import EMPTY_LINE, Renderer, ScreenLine
from turnstream_terminal.screen import Display, TerminalSize, TextOutput
from turnstream_terminal.text import duration
from turnstream_terminal.turn_parts import (
    BlockActivity,
    PartBuilder,
    SummaryLine,
    TurnPart,
    closing_lines,
    text_passages,
)

_FRAMES_PER_SECOND: Final = 10
_REWRITTEN: Final = SummaryLine("stopped", "the answer was interrupted and is written again from here")
_RECONNECTING: Final = "connection lost, reconnecting"
_STOPPING: Final = "stopping"
_PROGRESS: Final = frozenset({ConnectionEvent.OPENED, "round_start", "block_start", "block_delta"})
_STAGES: Final = {
    "processing": "waiting for the model",
    "executing": "running tools",
    "waiting": "waiting for a rate limit",
}


class TurnView(Protocol):
    """Shows a growing turn."""

    state: Assembler

    def apply(self, event: ServerEvent) -> None: ...
    def stopping(self) -> None: ...
    def draw(self) -> None: ...
    def pause(self) -> None: ...
    def finish(self) -> None: ...


class LiveTurnView:
    """Redraws the changeable parts. If they need more lines than the screen has, settled parts become final, from the
    top. `clock` returns seconds.
    """

    def __init__(self, console: Console, display: Display, state: Assembler, clock: Callable[[], float]) -> None:
        self.state = state
        self._console = console
        self._display = display
        self._clock = clock
        self._paused_seconds = 0.0
        self._paused_at: float | None = None
        self._began = clock()
        self._renderer = Renderer(console)
        self._builder = PartBuilder()
        self._activity = BlockActivity()
        self._final: list[TurnPart] = []
        self._taken_back = False  # a reset has voided a final part
        self._interposed = False  # a question to the person is below the final parts
        self._notice = ""  # replaces the current step in the status line
        self._stage = ""

    def apply(self, event: ServerEvent) -> None:
        data, now = event.data, self._now()
        match event.name:
            case "block_start":
                self._activity.began[data["index"]] = now
            case "block_stop":
                self._activity.ended[data["index"]] = now
            case "tool_progress":
                self._activity.progress[data["tool_use_id"]] = data["message"]
            case "tool_output":
                self._activity.progress[data["tool_use_id"]] = data["text"].rstrip().rpartition("\n")[2]
            case "reset":
                self._activity.discard_from(data["index"])
                # A terminal cannot remove final lines: a note below declares them void, and the new parts are printed
                # below the note.
                valid = [part for part in self._final if part.last < data["index"]]
                self._taken_back = self._taken_back or len(valid) < len(self._final)
                self._final = valid
            case "status":
                self._stage = data.get("stage", self._stage)
            case ConnectionEvent.OPENED:  # the client may have missed a change of the stage
                self._stage = ""
            case ConnectionEvent.LOST:
                self._notice = _RECONNECTING
                if not self._display.room(self._size()):  # the display has no room for a status line
                    lines = self._renderer.summary_line(SummaryLine("other", _RECONNECTING))
                    self._display.show(lines, 1, self._size())
            case "retry":
                pause = duration(data["seconds"])
                self._notice = f"{data['message']} {data['model']} is called in {pause}"
            case "action_required":
                self._notice = "waiting for a person to answer"
            case _:
                pass
        if event.name in _PROGRESS and self._notice != _STOPPING:
            self._notice = ""
        self.state.apply(event.name, data)

    def stopping(self) -> None:
        self._notice = _STOPPING
        self.draw()

    def draw(self) -> None:
        size, now = self._size(), self._now()
        room, frame = self._display.room(size), int(now * _FRAMES_PER_SECOND)
        parts, rendered = self._unprinted(now, frame, room)
        keys = "Ctrl-C stops" if self._notice != _STOPPING else "Ctrl-C waits no longer"
        status_text = f"{self._current_step(parts)} · {duration(now - self._began)} · {keys}"
        status = [EMPTY_LINE, *self._renderer.status_line(status_text, frame)]
        height, final = len(status) + sum(map(len, rendered)), 0
        while final < len(parts) and parts[final].settled and height > room:
            height -= len(rendered[final])
            final += 1
        changing = [*chain.from_iterable(rendered[final:]), *status]
        self._show(parts[:final], rendered[:final], changing[-room:] if room else [], size)

    def pause(self) -> None:
        """Removes the changeable parts to make room for a question, and stops the clock, until the next `draw`."""
        parts, rendered = self._unprinted(self._now())
        final = next((index for index, part in enumerate(parts) if not part.settled), len(parts))
        self._show(parts[:final], rendered[:final], [], self._size())
        self._interposed, self._paused_at = True, self._clock()

    def finish(self) -> None:
        """Prints the rest of the turn, and the lines about its end."""
        now = self._now()
        parts, rendered = self._unprinted(now)
        seconds = now - self._began if self._activity.began else None
        if closing := closing_lines(self.state, seconds):
            rendered.append([EMPTY_LINE, *chain.from_iterable(map(self._renderer.summary_line, closing))])
        self._show(parts, rendered, [], self._size())

    def _unprinted(
        self, now: float, frame: int = 0, tallest: int | None = None
    ) -> tuple[list[TurnPart], list[list[ScreenLine]]]:
        """Returns the parts that are not final, and the lines of each part."""
        parts = self._builder.build(self.state, self._activity, now)[len(self._final) :]
        before = self._final[-1] if self._final and not (self._taken_back or self._interposed) else None
        return parts, self._renderer.parts(parts, frame, before=before, tallest=tallest)

    def _show(
        self,
        parts: list[TurnPart],
        rendered: Iterable[list[ScreenLine]],
        changing: list[ScreenLine],
        size: TerminalSize,
    ) -> None:
        final = list(chain.from_iterable(rendered))
        if self._taken_back:
            final = [EMPTY_LINE, *self._renderer.summary_line(_REWRITTEN), *final]
            self._taken_back = False
        self._display.show([*final, *changing], len(final), size)
        self._interposed = self._interposed and not parts
        self._final += parts

    def _current_step(self, parts: Iterable[TurnPart]) -> str:
        if self._notice or not self.state.start:
            return self._notice or "sending"
        if block := self.state.open_block:
            return {"thinking": "thinking", "text": "writing"}.get(block["type"], "choosing tools")
        if self._stage in _STAGES:
            return _STAGES[self._stage]
        runs = any(isinstance(part.content, SummaryLine) and part.content.status == "running" for part in parts)
        return "running tools" if runs else "waiting for the model"

    def _now(self) -> float:
        """Returns the clock's time without pauses."""
        now = self._clock()
        if self._paused_at is not None:
            self._paused_seconds += now - self._paused_at
            self._paused_at = None
        return now - self._paused_seconds

    def _size(self) -> TerminalSize:
        return TerminalSize(self._console.width, self._console.height)


class PlainTurnView:
    """Writes only prose, each round after its seal, because text in a pipe cannot be taken back. Other remarks go to
    `notes`.
    """

    def __init__(self, out: TextOutput, notes: TextOutput, state: Assembler) -> None:
        self.state = state
        self._out = out
        self._notes = notes
        self._printed: list[str] = []

    def apply(self, event: ServerEvent) -> None:
        self.state.apply(event.name, event.data)
        if event.name == ConnectionEvent.LOST:
            self._note(f"{event.data['reason']}; reconnecting")
        if event.name == "round_stop":
            self._print(event.data["round"])

    def stopping(self) -> None:
        self._note("stopping")

    def draw(self) -> None:
        pass

    def pause(self) -> None:
        """Writes all available prose before a question."""
        self._print(None)
        if self._printed and not self._printed[-1].endswith("\n"):
            self._out.write("\n")
        self._out.flush()

    def finish(self) -> None:
        self.pause()
        for line in closing_lines(self.state, None):
            self._note(line.name)

    def _note(self, text: str) -> None:
        self._notes.write(f"turnstream: {text}\n")
        self._notes.flush()

    def _print(self, last_round: int | None) -> None:
        """Writes the new text in the passages up to the round `last_round`, or in all passages if it is None."""
        blocks = [block for block in self.state.blocks if last_round is None or block["round"] <= last_round]
        for place, passage in enumerate(text_passages(blocks)):
            if place < len(self._printed):  # an interrupted passage may have continued
                self._out.write(passage.removeprefix(self._printed[place]))
                self._printed[place] = passage
            else:
                self._out.write(("\n\n" if self._printed else "") + passage)
                self._printed.append(passage)
        self._out.flush()
