import re
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnstream.extensions.tool_results.read_result import result_tools
from turnstream.kit.ids import new_id
from turnstream.tools.tool import Outcome, ToolContext, tool
from turnstream.tools.toolset import Toolset

TURN = new_id()


class Kept:
    """Holds the stored results, by turn and call."""

    def __init__(self, texts: dict[tuple[UUID, str], str]) -> None:
        self.texts = texts

    async def whole(self, turn: UUID, tool_use_id: str) -> str | None:
        return self.texts.get((turn, tool_use_id))


def calling(tool_use_id: str = "toolu_9", turn: UUID = TURN) -> ToolContext:
    return ToolContext("ada", new_id(), turn, tool_use_id, "key", lambda words: None)


def reader(text: str, part: int = 100) -> Toolset:
    return Toolset(result_tools(Kept({(TURN, "toolu_1"): text}), part), max_result_chars=100)


async def read(tools: Toolset, **sent: object) -> Outcome:
    words = ", ".join(f'"{name}": {value!r}'.replace("'", '"') for name, value in sent.items())
    return await tools.run("read_result", f"{{{words}}}", calling())


async def test_a_part_comes_with_its_position_and_the_next_offset() -> None:
    outcome = await read(reader("0123456789"), tool_use_id="toolu_1", offset=3, length=4)
    assert outcome == Outcome("[characters 3 to 7 of 10]\n\n3456\n\n[3 more: go on with offset 7]")


async def test_the_last_part_is_marked_as_the_end() -> None:
    outcome = await read(reader("0123456789"), tool_use_id="toolu_1", offset=8)
    assert outcome == Outcome("[characters 8 to 10 of 10]\n\n89\n\n[this is the end]")


@pytest.mark.parametrize("length", [None, 10**9])
async def test_no_part_is_longer_than_allowed_nor_cut_again(length: int | None) -> None:
    sent = {} if length is None else {"length": length}
    outcome = await read(reader("x" * 4_000_000, part=1000), tool_use_id="toolu_1", **sent)
    assert outcome == Outcome(
        f"[characters 0 to 1000 of 4000000]\n\n{'x' * 1000}\n\n[3,999,000 more: go on with offset 1000]"
    )


async def test_an_offset_behind_the_end_is_answered_with_the_end() -> None:
    outcome = await read(reader("0123456789"), tool_use_id="toolu_1", offset=10)
    assert outcome == Outcome("This result has 10 characters: there is nothing at offset 10.", is_error=True)


async def test_a_result_that_was_not_cut_is_reported_as_complete() -> None:
    outcome = await read(reader("0123456789"), tool_use_id="toolu_2")
    assert outcome.kind == "error"
    assert outcome.text.startswith("There is no result 'toolu_2' in this conversation.")


async def test_the_results_of_another_branch_are_not_read() -> None:
    tools = reader("0123456789")
    outcome = await tools.run("read_result", '{"tool_use_id": "toolu_1"}', calling(turn=new_id()))
    assert outcome.kind == "error"
    assert "0123456789" not in outcome.text


@pytest.mark.parametrize("sent", [{"offset": -1}, {"length": 0}, {"offset": "some"}])
async def test_a_place_that_cannot_be_is_bad_input(sent: dict[str, object]) -> None:
    assert (await read(reader("0123456789"), tool_use_id="toolu_1", **sent)).kind == "bad_input"


@given(
    text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=11, max_size=500),
    part=st.integers(20, 100),
)
async def test_a_model_that_follows_the_hints_reads_the_whole(text: str, part: int) -> None:
    @tool(max_result_chars=10)
    async def recite() -> str:
        """Recite."""
        return text

    kept = Kept({})
    tools = Toolset([recite, *result_tools(kept, part)])
    first = await tools.run("recite", "{}", calling("toolu_1"))
    assert first.whole is not None
    kept.texts[TURN, "toolu_1"] = first.whole
    found, hint = first.text[:10], first.text[10:]
    while (more := re.search(r"offset (\d+)\.?\]$", hint)) is not None:
        outcome = await read(tools, tool_use_id="toolu_1", offset=int(more[1]))
        assert (outcome.kind, outcome.whole) == ("ok", None)
        head, hint = outcome.text.split("\n\n", 1)[0], outcome.text[-60:]
        start, end = map(int, re.findall(r"\d+", head)[:2])
        found += outcome.text[len(head) + 2 :][: end - start]
    assert found == text
