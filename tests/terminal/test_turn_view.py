import io
from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console

from tests.support.virtual_terminal import VirtualTerminal
from turnstream_client.assembler import Assembler
from turnstream_client.events import ConnectionEvent, ServerEvent
from turnstream_terminal.render import THEME
from turnstream_terminal.screen import AppendOnlyScreen, Screen
from turnstream_terminal.turn_view import LiveTurnView, PlainTurnView


class Stage:
    """A live view with its terminal, and a clock that the test controls."""

    def __init__(self, width: int = 60, height: int = 12, *, paper: bool = False) -> None:
        self.screen = VirtualTerminal(width, height)
        self.now = 0.0
        console = Console(width=width, height=height, theme=THEME, force_terminal=True, file=io.StringIO())
        surface = AppendOnlyScreen(self.screen) if paper else Screen(self.screen)
        self.view = LiveTurnView(console, surface, Assembler(), lambda: self.now)
        self.event("turn_start", turn="t", chat="c", model="demo", attempt=1, status="running")
        self.event("round_start", round=1, messages=1, answered=[])

    def event(self, name: str, /, **data: Any) -> None:
        self.view.apply(ServerEvent(name, data))
        self.view.draw()

    def block(self, index: int, type: str, *texts: str, round: int = 1, stop: bool = True, **more: Any) -> None:
        self.event("block_start", index=index, round=round, type=type)
        self.deltas(index, texts)
        if stop:
            self.event("block_stop", index=index, **more)

    def deltas(self, index: int, texts: Sequence[str]) -> None:
        for text in texts:
            offset = len(self.view.state.blocks[index]["text"])
            self.event("block_delta", index=index, offset=offset, text=text)

    def end(self, event: str = "turn_complete", stop_reason: str = "end_turn") -> None:
        self.event("round_stop", round=1, stop_reason=stop_reason, usage={})
        self.event(event, stop_reason=stop_reason, usage={"input_tokens": 3, "output_tokens": 4})
        self.view.finish()


def numbered(first: int, last: int) -> list[str]:
    """Returns paragraphs, split into the pieces of a model's stream."""
    return [piece for n in range(first, last + 1) for piece in ("Paragraph ", f"{n}.", "\n\n")]


def test_an_answer_longer_than_the_screen_is_in_the_scrollback_once_and_in_order() -> None:
    stage = Stage(height=8)
    stage.block(0, "text", *numbered(1, 40))
    stage.end()
    shown = [line for line in stage.screen.lines if line.startswith("Paragraph")]
    assert shown == [f"Paragraph {n}." for n in range(1, 41)]


def test_code_longer_than_the_screen_shows_its_end_while_it_grows_and_stands_there_once_in_the_end() -> None:
    stage = Stage(height=8)
    stage.block(0, "text", "```text\n", *[f"line {n}\n" for n in range(50)], stop=False)
    assert "line 49" in stage.screen.text
    assert "line 10" not in stage.screen.text
    stage.deltas(0, ["```\n"])
    stage.event("block_stop", index=0)
    stage.end()
    assert [line.strip() for line in stage.screen.lines if "line" in line] == [f"line {n}" for n in range(50)]


def test_a_reset_of_text_on_the_screen_leaves_no_trace() -> None:
    stage = Stage()
    stage.block(0, "text", "A first try", stop=False)
    stage.event("reset", attempt=2, index=0)
    stage.block(0, "text", "A second one")
    stage.end()
    assert "first" not in stage.screen.text
    assert "again" not in stage.screen.text
    assert stage.screen.text.count("A second one") == 1


def test_after_a_reset_of_final_text_the_answer_is_printed_again_below_a_note() -> None:
    stage = Stage(height=8)
    stage.block(0, "thinking", "well")
    stage.block(1, "text", *numbered(1, 20), stop=False)
    stage.event("reset", attempt=2, index=1)
    stage.block(1, "text", *numbered(1, 20))
    stage.end()
    _, _, printed_again = stage.screen.text.partition("■ the answer was interrupted and is written again from here")
    shown = [line for line in printed_again.splitlines() if line.startswith("Paragraph")]
    assert shown == [f"Paragraph {n}." for n in range(1, 21)]
    assert stage.screen.text.count("∴ thought") == 1


def test_tools_are_lines_that_turn_from_running_to_done() -> None:
    stage = Stage()
    for index, name in enumerate(("search", "tree")):
        stage.event("block_start", index=index, round=1, type="tool_use", id=name, name=name)
        stage.event("block_stop", index=index, input={})
    stage.event("tool_progress", tool_use_id="search", name="search", message="page 2")
    assert "search · page 2" in stage.screen.text
    stage.now = 3.0
    stage.event("block_start", index=2, round=1, type="tool_result", tool_use_id="search", name="search")
    stage.event("block_stop", index=2, is_error=False)
    assert "✓ search · 3.0 s" in stage.screen.text
    assert "tree · 3.0 s" in stage.screen.text
    stage.end("turn_cancelled", "cancelled")
    assert "■ tree · did not finish" in stage.screen.text
    assert stage.screen.lines[-1] == "■ stopped"


def test_a_call_in_the_background_shows_where_it_is_and_who_works_on_it() -> None:
    stage = Stage(width=120)
    for index, name in enumerate(("dig", "ask")):
        stage.event("block_start", index=index, round=1, type="tool_use", id=name, name=name)
        stage.event("block_stop", index=index, input={})

    def report(call: str, state: str, progress: str | None = None, child: Any = None) -> None:
        job = {"id": call, "tool_use_id": call, "name": call, "kind": "tool", "state": state, "since": None}
        job |= {"progress": progress, "child": child}
        stage.event("tool_progress", tool_use_id=call, name=call, message=progress or "It runs.", job=job)

    report("dig", "due")
    assert "dig · waits for a server" in stage.screen.text
    report("dig", "running", "half a hole")
    assert "dig · in the background · half a hole" in stage.screen.text
    report("ask", "detached", child={"chat": "01a2", "turn": "t", "status": "waiting", "cost": 0.0213})
    assert "ask · waits · cost 0.0213 · chat 01a2" in stage.screen.text
    stage.event("block_start", index=2, round=1, type="tool_result", tool_use_id="dig", name="dig")
    stage.event("block_stop", index=2, is_error=True, notes={"stopped": True})
    assert "■ dig · stopped by a person" in stage.screen.text
    assert [job["id"] for job in stage.view.state.jobs] == ["ask"]
    stage.end()
    assert stage.view.state.jobs == []


def test_the_status_line_shows_the_current_step_and_is_removed_at_the_end() -> None:
    stage = Stage()
    assert "waiting for the model · 0.0 s · Ctrl-C stops" in stage.screen.text
    stage.event(ConnectionEvent.LOST, reason="gone", seconds=1.0)
    assert "connection lost, reconnecting" in stage.screen.text
    stage.event(ConnectionEvent.OPENED)
    stage.event("retry", error="overloaded_error", message="Overloaded.", seconds=2.0, model="m", tries=1)
    assert "Overloaded. m is called in 2.0 s" in stage.screen.text
    stage.block(0, "text", "Hello", stop=False)
    assert "writing" in stage.screen.text
    stage.event("block_stop", index=0)
    stage.end()
    assert stage.screen.lines == ["", "Hello", "", "· demo · 3 tokens in, 4 out · 0.0 s"]


def test_a_question_has_the_terminal_to_itself_and_its_time_does_not_count() -> None:
    stage = Stage()
    stage.block(0, "text", "I book it.")
    stage.event("block_start", index=1, round=1, type="tool_use", id="a", name="book")
    stage.event("block_stop", index=1, input={"room": "12"})
    stage.event("action_required", round=1, calls=[{"tool_use_id": "a"}])
    assert '? book room="12" · waits for a person' in stage.screen.text
    stage.now = 2.0
    stage.view.pause()
    assert stage.screen.lines == ["", "I book it."]
    stage.screen.write("\r\nAllow? yes\r\n")
    stage.now = 100.0
    stage.event(ConnectionEvent.OPENED)
    assert " 2.0 s · Ctrl-C stops" in stage.screen.text
    stage.event("block_start", index=2, round=1, type="tool_result", tool_use_id="a", name="book")
    stage.event("block_stop", index=2, is_error=False)
    stage.end()
    assert stage.screen.lines == [
        *("", "I book it.", "", "Allow? yes", ""),
        '✓ book room="12" · 2.0 s',
        *("", "· demo · 3 tokens in, 4 out · 2.0 s"),
    ]


def test_the_stage_of_the_server_is_shown_until_a_new_connection() -> None:
    stage = Stage()
    stage.event("status", stage="executing")
    assert "running tools" in stage.screen.text
    stage.event("status", provider_event="ping")
    assert "running tools" in stage.screen.text
    stage.event(ConnectionEvent.OPENED)
    assert "waiting for the model" in stage.screen.text


def test_a_message_sent_meanwhile_is_shown_as_the_users() -> None:
    stage = Stage()
    stage.block(0, "text", "One.")
    stage.block(1, "user_text", "Rather\nnot.")
    stage.block(2, "text", "Two.", round=2)
    stage.end()
    assert stage.screen.lines[:8] == ["", "One.", "", "> Rather", "  not.", "", "Two.", ""]


def test_control_characters_do_not_reach_the_terminal() -> None:
    stage = Stage()
    stage.block(0, "text", "before\x1b[2J\x1b]0;title\x07after")
    stage.end()
    assert "before\ufffd[2J\ufffd]0;title\ufffdafter" in stage.screen.text


def test_an_append_only_terminal_gets_each_piece_when_it_is_settled() -> None:
    stage = Stage(paper=True)
    stage.block(0, "text", "One.\n\n", "Tw", stop=False)
    assert stage.screen.lines == ["", "One."]
    stage.event(ConnectionEvent.LOST, reason="gone", seconds=1.0)
    stage.deltas(0, ["o."])
    stage.event("block_stop", index=0)
    stage.end()
    assert stage.screen.lines[:4] == ["", "One.", "· connection lost, reconnecting", ""]
    assert stage.screen.lines[4] == "Two."


@pytest.mark.parametrize("width", [20, 60])
def test_a_summary_line_fits_and_keeps_its_note(width: int) -> None:
    stage = Stage(width)
    stage.event("block_start", index=0, round=1, type="tool_use", id="a", name="search")
    stage.event("block_stop", index=0, input={"query": "what is the rule of twelfths, and who needs it"})
    stage.now = 2.0
    stage.view.draw()
    assert [line for line in stage.screen.lines if "search" in line and line.endswith("… · 2.0 s")]


# --- without a terminal ----------------------------------------------------------------------------------------------


def plain() -> tuple[PlainTurnView, io.StringIO, io.StringIO]:
    out, notes = io.StringIO(), io.StringIO()
    return PlainTurnView(out, notes, Assembler()), out, notes


def write_block(view: PlainTurnView, index: int, round: int, text: str) -> None:
    view.apply(ServerEvent("block_start", {"index": index, "round": round, "type": "text"}))
    view.apply(ServerEvent("block_delta", {"index": index, "offset": 0, "text": text}))
    view.apply(ServerEvent("block_stop", {"index": index}))


def test_a_pipe_gets_a_round_when_it_is_sealed() -> None:
    view, out, _ = plain()
    write_block(view, 0, 1, "Never mind.")
    view.apply(ServerEvent("reset", {"attempt": 2, "index": 0}))
    write_block(view, 0, 1, "I look it up.")
    assert out.getvalue() == ""
    view.apply(ServerEvent("round_stop", {"round": 1, "stop_reason": "tool_use", "usage": {}}))
    assert out.getvalue() == "I look it up."
    write_block(view, 1, 2, "Here it *is*:\x1b")
    view.apply(ServerEvent("round_stop", {"round": 2, "stop_reason": "end_turn", "usage": {}}))
    view.apply(ServerEvent("turn_complete", {"stop_reason": "end_turn", "usage": {}}))
    view.finish()
    assert out.getvalue() == "I look it up.\n\nHere it *is*:\x1b\n"


def test_a_pipe_gets_a_cut_text_and_its_continuation_as_one() -> None:
    view, out, _ = plain()
    view.apply(ServerEvent("block_start", {"index": 0, "round": 1, "type": "text"}))
    view.apply(ServerEvent("block_delta", {"index": 0, "offset": 0, "text": "Half a sen"}))
    view.apply(ServerEvent("block_stop", {"index": 0, "interrupted": True}))
    view.apply(ServerEvent("round_stop", {"round": 1, "stop_reason": "interrupted", "usage": {}}))
    assert out.getvalue() == "Half a sen"
    write_block(view, 1, 2, "tence.")
    view.apply(ServerEvent("round_stop", {"round": 2, "stop_reason": "end_turn", "usage": {}}))
    assert out.getvalue() == "Half a sentence."


def test_a_pipe_gets_all_text_before_a_question() -> None:
    view, out, notes = plain()
    write_block(view, 0, 1, "I ask.")
    view.pause()
    assert (out.getvalue(), notes.getvalue()) == ("I ask.\n", "")


def test_notes_about_the_turn_do_not_go_to_the_pipe() -> None:
    view, out, notes = plain()
    view.apply(ServerEvent(ConnectionEvent.LOST, {"reason": "the connection was lost", "seconds": 1.0}))
    error = {"type": "api_error", "message": "no", "request_id": None}
    view.apply(ServerEvent("turn_error", {"stop_reason": "error", "usage": {}, "error": error}))
    view.finish()
    assert out.getvalue() == ""
    assert notes.getvalue().splitlines() == [
        "turnstream: the connection was lost; reconnecting",
        "turnstream: the turn failed: api_error: no",
    ]
