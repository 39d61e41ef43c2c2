"""Selects the part of the calling conversation that an agent sees before its task."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from turnstream.domain.blocks import Block
from turnstream.domain.history import summary_on, turns_after_summary, without_withdrawn
from turnstream.domain.kinds import FILES, TEXT, TOOL_RESULT, USER_TEXT
from turnstream.domain.results import result_as_text
from turnstream.domain.turns import Turn

# The turns that the agent sees: none, the answered message with the answer so far, or all turns from the root.
ContextTurns = Literal["none", "last_turn", "path"]
TEXTS, ALL_FILES, RESULTS = "text", "files", "results"
KINDS_OF_BLOCKS = (TEXTS, ALL_FILES, RESULTS)

_HEAD = "The conversation so far, in which you were called. Your task follows behind it."


def message_of_task(path: Sequence[Turn], turns: ContextTurns, selected: Sequence[str], task: str) -> list[Block]:
    """Returns the first message of an agent: the `selected` blocks of the conversation up to the calling turn, then the
    task. `selected` are kinds of blocks, and names of tools whose results are included.
    """
    given = list(_given(path, turns, selected))
    words = "\n\n".join(_as_text(block, name) for block, name in given if block.type not in FILES)
    blocks = [Block(0, 0, 0, TEXT, f"{_HEAD}\n\n{words}")] if words else []
    blocks += [block for block, _ in given if block.type in FILES]
    blocks.append(Block(0, 0, 0, TEXT, task))
    return [
        replace(block, index=index, round=0, attempt=0, interrupted=False, notes=None)
        for index, block in enumerate(blocks)
    ]


def _given(path: Sequence[Turn], turns: ContextTurns, selected: Sequence[str]) -> Iterator[tuple[Block, str]]:
    """Yields each selected block with the name of its kind."""
    if turns == "none":
        return
    sent = without_withdrawn(path)
    if turns == "last_turn":
        sent = sent[-2:]
    elif TEXTS in selected and (summary := summary_on(sent)) is not None:
        yield Block(0, 0, 0, TEXT, summary.text), "summary"
        sent = turns_after_summary(sent)
    for turn in sent:
        for block in turn.blocks:
            if block.type in {TEXT, USER_TEXT} and TEXTS in selected and block.text.strip():
                is_of_user = turn.role == "user" or block.type == USER_TEXT
                yield block, "user" if is_of_user else "assistant"
            elif block.type in FILES and ALL_FILES in selected:
                yield block, block.type
            elif block.type == TOOL_RESULT and (RESULTS in selected or block.name in selected):
                yield result_as_text(block, "[{type}]"), f"result of {block.name}"


def _as_text(block: Block, name: str) -> str:
    return f"[{name}]\n{block.text.strip()}"
