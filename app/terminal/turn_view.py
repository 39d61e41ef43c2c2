"""A turn as it is shown: live on a terminal, or as bare text for whoever reads from a pipe."""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Final, Protocol

from rich.console import Console

from app.terminal import http_client
from app.terminal.assembler import Assembler
from app.terminal.http_client import DISCONNECTED, ServerEvent
from app.terminal.render import Line, Renderer
from app.terminal.screen import Output, Surface, TerminalSize
from app.terminal.text import span
from app.terminal.turn_parts import Fold, Part, Parts, Watch, last_words, passages

_FRAMES: Final = 10  # a second
_AGAIN: Final = Fold("stopped", "the answer was interrupted and is written again from here")
_STOPPING: Final = "stopping"
_STAGES: Final = {"processing": "waiting for the model", "executing": "running tools"}
_EMPTY: Final = Line("", 0)


class AnswerView(Protocol):
    """Something that shows a turn while it grows."""

    state: Assembler

    def take(self, event: ServerEvent) -> None: ...
    def stopping(self) -> None: ...
    def draw(self) -> None: ...
    def pause(self) -> None: ...
    def finish(self) -> None: ...


class LiveAnswer:
    """What does not fit on the screen any more is printed for good as soon as it is settled; the rest may still change.
    `clock` counts seconds.
    """

    def __init__(self, console: Console, surface: Surface, state: Assembler, clock: Callable[[], float]) -> None:
        self.state = state
        self._console = console
        self._surface = surface
        self._clock = clock
        self._away = 0.0
        self._left_at: float | None = None
        self._began = clock()
        self._renderer = Renderer(console)
        self._parts = Parts()
        self._watch = Watch()
        self._kept: list[Part] = []
        self._taken_back = False
        self._apart = False
        self._passing = ""
        self._stage = ""

    def take(self, event: ServerEvent) -> None:
        data, now = event.data, self._now()
        match event.name:
            case "block_start":
                self._watch.began[data["index"]] = now
            case "block_stop":
                self._watch.ended[data["index"]] = now
            case "tool_progress":
                self._watch.progress[data["tool_use_id"]] = data["message"]
            case "reset":
                self._take_back(data["index"])
            case "status":
                self._stage = data.get("stage", self._stage)
            case http_client.CONNECTED:  # what passed by in between was not heard
                self._stage = ""
            case _:
                pass
        if event.name == DISCONNECTED and not self._surface.room(self._size()):
            self._surface.show(self._renderer.fold(Fold("other", "connection lost, reconnecting")), 1, self._size())
        self._passing = _in_passing(event, self._passing)
        self.state.apply(event.name, data)

    def stopping(self) -> None:
        self._passing = _STOPPING
        self.draw()

    def draw(self) -> None:
        size, now = self._size(), self._now()
        room, spin = self._surface.room(size), int(now * _FRAMES)
        parts, rendered = self._news(now, spin, room)
        keys = "Ctrl-C stops" if self._passing != _STOPPING else "Ctrl-C waits no longer"
        doing = f"{self._doing(parts)} · {span(now - self._began)} · {keys}"
        status = [_EMPTY, *self._renderer.status(doing, spin)]
        height, keep = len(status) + sum(map(len, rendered)), 0
        while keep < len(parts) and parts[keep].settled and height > room:
            height -= len(rendered[keep])
            keep += 1
        changing = [*chain.from_iterable(rendered[keep:]), *status]
        self._show(parts[:keep], rendered[:keep], changing[-room:] if room else [], size)

    def pause(self) -> None:
        """Leaves the terminal to a person who is asked something. What may still change is shown again afterwards; the
        time until then does not count.
        """
        parts, rendered = self._news(self._now())
        keep = next((place for place, part in enumerate(parts) if not part.settled), len(parts))
        self._show(parts[:keep], rendered[:keep], [], self._size())
        self._apart, self._left_at = True, self._clock()

    def finish(self) -> None:
        """The turn as it is now, for good."""
        now = self._now()
        parts, rendered = self._news(now)
        seconds = now - self._began if self._watch.began else None
        if words := last_words(self.state, seconds):
            rendered.append([_EMPTY, *chain.from_iterable(map(self._renderer.fold, words))])
        self._show(parts, rendered, [], self._size())

    def _news(self, now: float, spin: int = 0, tallest: int | None = None) -> tuple[list[Part], list[list[Line]]]:
        """The parts that are not printed yet, and their lines."""
        parts = self._parts.of(self.state, self._watch, now)[len(self._kept) :]
        before = self._kept[-1] if self._kept and not (self._taken_back or self._apart) else None
        return parts, self._renderer.lines(parts, spin, before=before, tallest=tallest)

    def _show(
        self, parts: list[Part], rendered: Iterable[list[Line]], changing: list[Line], size: TerminalSize
    ) -> None:
        kept = list(chain.from_iterable(rendered))
        if self._taken_back:
            kept = [_EMPTY, *self._renderer.fold(_AGAIN), *kept]
            self._taken_back = False
        self._surface.show([*kept, *changing], len(kept), size)
        self._apart = self._apart and not parts
        self._kept += parts

    def _take_back(self, index: int) -> None:
        """What is printed cannot be unprinted: it is said, and then printed anew."""
        self._watch.forget(index)
        still_good = [part for part in self._kept if part.last < index]
        self._taken_back = self._taken_back or len(still_good) < len(self._kept)
        self._kept = still_good

    def _doing(self, parts: Iterable[Part]) -> str:
        if self._passing or not self.state.start:
            return self._passing or "sending"
        if block := self.state.open_block:
            return {"thinking": "thinking", "text": "writing"}.get(block["type"], "choosing tools")
        if self._stage in _STAGES:
            return _STAGES[self._stage]
        runs = any(isinstance(part.content, Fold) and part.content.look == "running" for part in parts)
        return "running tools" if runs else "waiting for the model"

    def _now(self) -> float:
        now = self._clock()
        if self._left_at is not None:
            self._away += now - self._left_at
            self._left_at = None
        return now - self._away

    def _size(self) -> TerminalSize:
        return TerminalSize(self._console.width, self._console.height)


class PlainAnswer:
    """The text and nothing else, as soon as it cannot be taken back. Words about it go to `notes`."""

    def __init__(self, out: Output, notes: Output, state: Assembler) -> None:
        self.state = state
        self._out = out
        self._notes = notes
        self._printed: list[str] = []

    def take(self, event: ServerEvent) -> None:
        self.state.apply(event.name, event.data)
        if event.name == DISCONNECTED:
            self._note(f"{event.data['reason']}; reconnecting")
        if event.name == "round_stop":
            self._print(event.data["round"])

    def stopping(self) -> None:
        self._note("stopping")

    def draw(self) -> None:
        pass

    def pause(self) -> None:
        """All there is until somebody answers."""
        self._print(None)
        if self._printed and not self._printed[-1].endswith("\n"):
            self._out.write("\n")
        self._out.flush()

    def finish(self) -> None:
        self.pause()
        for line in last_words(self.state, None):
            self._note(line.name)

    def _note(self, words: str) -> None:
        self._notes.write(f"turnstream: {words}\n")
        self._notes.flush()

    def _print(self, round: int | None) -> None:
        """The passages up to this round, as far as they are not printed yet; None for all there are."""
        sealed = [block for block in self.state.blocks if round is None or block["round"] <= round]
        for passage in passages(sealed)[len(self._printed) :]:
            self._out.write(("\n\n" if self._printed else "") + passage)
            self._printed.append(passage)
        self._out.flush()


def _in_passing(event: ServerEvent, now: str) -> str:
    """What the status line says instead of what the model does."""
    match event.name:
        case http_client.DISCONNECTED:
            return "connection lost, reconnecting"
        case "retry":
            return f"the model failed ({event.data['error']}), next try in {span(event.data['seconds'])}"
        case "action_required":
            return "waiting for a person to answer"
        case http_client.CONNECTED | "round_start" | "block_start" | "block_delta" if now != _STOPPING:
            return ""
        case _:
            return now
