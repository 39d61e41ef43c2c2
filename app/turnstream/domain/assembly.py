"""Answers that this server writes itself: if no model can answer, the results of the turn's tools in words; after a
handoff, the answer of the agent that took over the turn.
"""

import json
import re
from collections.abc import Sequence

from turnstream.domain.blocks import Block
from turnstream.domain.kinds import TEXT, TOOL_RESULT
from turnstream.domain.rounds import Round
from turnstream.domain.turns import Turn, TurnError

# The stop reason of an assembled answer's round, and of its turn. Model requests omit the blocks of such a round.
ASSEMBLED = "assembled"
# The stop reason of the round and turn whose answer came from an agent. The agent's result has a note of this name.
HANDOFF = "handoff"
# Stop reasons of rounds that have no model call.
WRITTEN_HERE = frozenset({ASSEMBLED, HANDOFF})

_MOST_RESULTS = 20
_LONGEST_RESULT = 800  # characters that are quoted
_LONGEST_INPUT = 120


def can_be_assembled(turn: Turn) -> bool:
    """Returns True if the turn permits an assembled answer, and a tool has returned a result without an error. A
    structured turn permits none, because its only answer is its output.
    """
    assert turn.request is not None
    wanted = turn.request.limits.on_provider_failure == "assemble" and turn.request.output is None
    return wanted and any(block.type == TOOL_RESULT and not block.is_error for block in turn.blocks)


def assembled_answer(turn: Turn, error: TurnError, number: int) -> tuple[Round, Block]:
    """Returns the assembled answer as round `number` with one block, which follows all other blocks of the turn. The
    block names the failure, and then quotes calls with their results.
    """
    results = [block for block in turn.blocks if block.type == TOOL_RESULT]
    quoted = results[-_MOST_RESULTS:]
    parts = [
        f"The model could not finish this answer. {error.message}",
        "These are the results of the tools that were run:",
        *(_quoted(result, turn.blocks) for result in quoted),
    ]
    if left_out := len(results) - len(quoted):
        parts.insert(2, f"(Only the last {len(quoted)}: {left_out} before them are not quoted.)")
    notes = {ASSEMBLED: {"error": error.type, "message": error.message, "request_id": error.request_id}}
    block = Block(len(turn.blocks), number, turn.attempt, TEXT, text="\n\n".join(parts), notes=json.dumps(notes))
    # A round must count at least one message, although this round has no request.
    return Round(number, turn.attempt, messages=1, stop_reason=ASSEMBLED), block


def handed_over(turn: Turn, number: int) -> Block | None:
    """Returns the only result of round `number` if its agent has taken over the turn; the result is then the answer."""
    results = [block for block in turn.blocks if block.type == TOOL_RESULT and block.round == number]
    notes = json.loads(results[0].notes or "{}") if len(results) == 1 else {}
    return results[0] if notes.get(HANDOFF) and not results[0].is_error else None


def handoff_answer(turn: Turn, result: Block, number: int) -> tuple[Round, Block]:
    """Returns the agent's answer as round `number` with one block, which has the text of `result`."""
    block = Block(len(turn.blocks), number, turn.attempt, TEXT, text=result.text)
    return Round(number, turn.attempt, messages=1, stop_reason=HANDOFF), block


def _quoted(result: Block, blocks: Sequence[Block]) -> str:
    """Returns the call and an excerpt of its result, as Markdown."""
    calls = (block for block in blocks if block.is_call and block.round == result.round)
    inputs = (call.text for call in calls if call.tool_use_id == result.tool_use_id)
    input = " ".join(_excerpt(next(inputs, ""), _LONGEST_INPUT).replace("`", "'").split())
    head = f"**{result.name}**"
    if input.strip("{} "):
        head += f" `{input}`"
    if result.is_error:
        head += " (failed)"
    text = _excerpt(result.text.strip() or "(no text)", _LONGEST_RESULT)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))  # longer than every fence in the text
    return f"{head}\n\n{fence}\n{text}\n{fence}"


def _excerpt(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}…"
