"""What of a turn is sent in another form than its row has: long results that were shortened, and what only a provider
that makes the conversation shorter by itself can read. Pure; rows are never changed.
"""

from collections.abc import Sequence
from dataclasses import replace

from app.domain.blocks import READ_RESULT, Block
from app.domain.compaction import COMPACTION
from app.domain.history import Shortening, left_out_of, shortenings_on
from app.domain.kinds import PROVIDER_SUMMARY
from app.domain.results import files_in
from app.domain.turns import ToolSpec, Turn


def as_sent(path: Sequence[Turn], model: str | None) -> list[Turn]:
    """The path with its turns as the model at its end is to see them."""
    running, shortenings = path[-1], shortenings_on(path)
    tools = running.request.tools if running.request else ()
    compacts = compacts_itself(running, model)
    return [
        _as_sent(place, turn, shortenings, tools, compacts) if turn.role == "assistant" else turn
        for place, turn in enumerate(path)
    ]


def compacts_itself(running: Turn, model: str | None) -> bool:
    """Whether the provider summarises by itself in the call that is now made. A fallback model may not know how to."""
    asked = running.request
    return asked is not None and COMPACTION in asked.limits.provider_edits and model in {None, asked.model}


def _as_sent(
    place: int, turn: Turn, shortenings: Sequence[Shortening], tools: Sequence[ToolSpec], compacts: bool
) -> Turn:
    blocks = [
        _shortened((place, block.round), block, shortenings, tools)
        for block in turn.blocks
        if compacts or block.type != PROVIDER_SUMMARY
    ]
    return turn if blocks == list(turn.blocks) else replace(turn, blocks=tuple(blocks))


def _shortened(
    position: tuple[int, int], block: Block, shortenings: Sequence[Shortening], tools: Sequence[ToolSpec]
) -> Block:
    for shortening in shortenings:
        if shortening.shortens(position, block):
            return replace(block, text=stand_in(block, shortening.head, tools), data=None)
    return block


def stand_in(result: Block, head: int, tools: Sequence[ToolSpec]) -> str:
    """The beginning of a result, and how to come to the rest with what the model may call."""
    cut, files = left_out_of(result, head), files_in(result)
    left_out = [f"{cut:,} of {len(result.text):,} characters"] if cut else []
    left_out += [f"{files} files" if files > 1 else "a file"] if files else []
    said = f"Left out here: {' and '.join(left_out)}, since the conversation has become long."
    by_name = {tool.name: tool for tool in tools}
    known = by_name.get(result.name or "")
    if cut and READ_RESULT in by_name:
        said += f' To read them, call {READ_RESULT} with tool_use_id "{result.tool_use_id}" and offset {head}.'
    elif known is not None and known.read_only:
        said += f" If you need them, call {known.name} again."
    kept = result.text[:head] if cut else result.text
    return f"{kept}\n\n[{said}]" if kept else f"[{said}]"
