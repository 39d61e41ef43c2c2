"""The bill of a turn. The provider finds cache reads and writes by comparing prefixes for real."""

from collections.abc import Mapping
from typing import Any

from tests.bench.billing import Bills
from tests.bench.caching import ROUNDS, TARGET, billed, share_read, turn_of_ten_rounds
from tests.support.harness import Harness

TEXT: Mapping[str, Any] = {"type": "text", "text": "x" * 400}
MARKED = {**TEXT, "cache_control": {"type": "ephemeral"}}


async def test_after_the_first_call_of_a_ten_round_turn_19_in_20_tokens_are_read_from_the_cache(
    harness: Harness,
) -> None:
    turn = await turn_of_ten_rounds(harness)
    assert (turn.status, len(turn.rounds)) == ("complete", ROUNDS + 1)
    first, *others = turn.rounds
    assert billed([first])[0] == 0
    assert share_read(others) >= TARGET


def test_the_bills_distinguish_equal_and_different_parts() -> None:
    bills = Bills()

    def read(*blocks: Mapping[str, Any], **members: Any) -> int:
        usage = bills.usage_of({"messages": [{"role": "user", "content": [*blocks]}], **members})
        tokens: int = usage["cache_read_input_tokens"]
        return tokens

    assert read(TEXT, MARKED) == 0
    assert read(TEXT, TEXT, MARKED) > 200
    assert read(TEXT, {**MARKED, "text": "y" * 400}) == 0
    assert read({**TEXT, "text": "z"}, MARKED) == 0
    assert read(TEXT, TEXT, MARKED, tool_choice={"type": "none"}) == 0
    assert read(TEXT, *[TEXT] * 30, MARKED) == 0
    assert read(TEXT, TEXT) == 0
