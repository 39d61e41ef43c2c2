"""Requests with shortened results, and the thoughts that follow these results."""

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import pytest

from tests.support.model_requests import REQUEST, assistant, call, result, text, thinking, user
from turnstream.domain.blocks import READ_RESULT, Block
from turnstream.domain.compaction import compaction_needed
from turnstream.domain.results import ResultPart, joined_texts, layout_of
from turnstream.domain.turns import Limits, ToolSpec, Turn, TurnRequest
from turnstream.llm.conversation.messages import build_messages, messages_to_summarise
from turnstream.llm.conversation.sendable import shortened_text

LONG = "x" * 4000
IMAGE = {"type": "image", "source": {}}
LIMITS = Limits(context_window=2000)
LOOK, READ = ToolSpec("look", "", "{}", read_only=True), ToolSpec(READ_RESULT, "", "{}", read_only=True)


def round_of(number: int) -> list[Block]:
    return [thinking(f"thought {number}"), call(f"c{number}"), result(f"c{number}", LONG)]


def path_of(rounds: int, request: TurnRequest = REQUEST) -> list[Turn]:
    asked = replace(request, limits=LIMITS)
    return [user(text("Go")), assistant(*map(round_of, range(1, rounds + 1)), request=asked)]


def shortened(path: Sequence[Turn]) -> list[Turn]:
    block = compaction_needed(path)
    assert isinstance(block, Block)
    return [*path[:-1], replace(path[-1], blocks=(*path[-1].blocks, block))]


def texts(path: Sequence[Turn], kind: str) -> list[str]:
    return [block.text for message in build_messages(path) for block in message.blocks if block.type == kind]


def test_a_shortened_result_says_how_much_is_missing() -> None:
    path = shortened(path_of(3))
    assert [len(words) for words in texts(path, "tool_result")] == [585, 585, 4000]
    assert texts(path, "tool_result")[0].startswith("x" * 500 + "\n\n[Left out here: 3,500 of 4,000 characters, since")
    assert all(len(block.text) == 4000 for block in path[-1].blocks if block.type == "tool_result")


@pytest.mark.parametrize(
    ("tools", "end"),
    [
        ((), "has become long.]"),
        ((replace(LOOK, read_only=False),), "has become long.]"),
        ((LOOK,), "has become long. If you need them, call look again.]"),
        ((LOOK, READ), 'has become long. To read them, call read_result with tool_use_id "c1" and offset 500.]'),
    ],
)
def test_a_shortened_result_says_how_to_read_the_rest(tools: tuple[ToolSpec, ...], end: str) -> None:
    assert shortened_text(result("c1", LONG), 500, tools).endswith(end)


@pytest.mark.parametrize(
    ("parts", "left"),
    [
        (["seen", IMAGE], "seen\n\n[Left out here: a file, since the conversation has become long.]"),
        ([IMAGE, IMAGE], "[Left out here: 2 files, since the conversation has become long.]"),
        (
            [LONG, IMAGE],
            LONG[:500] + "\n\n[Left out here: 3,500 of 4,000 characters and a file, since the conversation",
        ),
    ],
)
def test_of_a_result_with_files_its_words_are_left(parts: list[ResultPart], left: str) -> None:
    of_files = replace(result("c1", joined_texts(parts)), data=layout_of(parts))
    assert shortened_text(of_files, 500, [READ]).startswith(left)


def test_a_shortened_result_has_no_files() -> None:
    path = path_of(3)
    layout = layout_of([LONG, IMAGE])
    with_files = [replace(block, data=layout) if block.type == "tool_result" else block for block in path[-1].blocks]
    path = shortened([*path[:-1], replace(path[-1], blocks=tuple(with_files))])
    sent = [block for message in build_messages(path) for block in message.blocks if block.type == "tool_result"]
    assert [block.data for block in sent] == [None, None, layout]


def test_thoughts_behind_a_result_that_is_sent_shortened_now_are_left_out() -> None:
    assert texts(path_of(3), "thinking") == ["thought 1", "thought 2", "thought 3"]
    path = shortened(path_of(3))
    assert texts(path, "thinking") == ["thought 1"]
    later = [replace(block, round=4) for block in (thinking("thought 4"), call("c4"), result("c4"))]
    made = assistant([], [], [], []).rounds
    grown = [path[0], replace(path[-1], blocks=(*path[-1].blocks, *later), rounds=made)]
    assert texts(grown, "thinking") == ["thought 1", "thought 4"]
    assert build_messages(grown)[:6] == build_messages(path)[:6]


def test_a_model_that_summarises_is_sent_no_thoughts() -> None:
    first = replace(path_of(1)[-1], id=UUID(int=8))
    path = [user(text("Go")), first, user(text("And?")), assistant()]
    kinds = {block.type for message in messages_to_summarise(path, UUID(int=8)) for block in message.blocks}
    assert kinds == {"text", "tool_use", "tool_result"}


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ([LONG, IMAGE], LONG[:2000] + "\n[…]\n[files that are not shown here: 1]"),
        ([IMAGE, IMAGE], "[files that are not shown here: 2]"),
        (["one", "two"], "one\ntwo"),
    ],
)
def test_a_summary_is_made_without_the_files_of_tools(parts: list[ResultPart], told: str) -> None:
    shown = replace(result("c1"), text=joined_texts(parts), data=layout_of(parts))
    path = [user(text("Go")), assistant([call("c1"), shown]), user(text("And?")), assistant()]
    blocks = [block for message in messages_to_summarise(path, path[1].id) for block in message.blocks]
    assert [(block.text, block.data) for block in blocks if block.type == "tool_result"] == [(told, None)]
