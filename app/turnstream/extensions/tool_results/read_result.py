"""The tool `read_result`, which reads the rest of a truncated result."""

from typing import Annotated, Protocol
from uuid import UUID

from pydantic import Field

from turnstream.domain.blocks import READ_RESULT
from turnstream.tools.tool import Tool, ToolContext, ToolError, tool

_FRAME = 200  # maximum characters that the tool adds around a part


class ResultStore(Protocol):
    async def whole(self, turn: UUID, tool_use_id: str) -> str | None:
        """Returns the full text of a result on the path to `turn`, or None if there is no such result."""
        ...


def result_tools(results: ResultStore, part: int = 50_000) -> list[Tool]:
    """Returns the tool. One call of it returns at most `part` characters."""

    @tool(name=READ_RESULT, read_only=True, max_result_chars=part + _FRAME)
    async def read_result(
        context: ToolContext,
        tool_use_id: Annotated[str, "the id that is told where the result was cut"],
        offset: Annotated[int, Field(ge=0, description="how many characters to skip")] = 0,
        length: Annotated[
            int | None, Field(ge=1, description="how many to read at most; all that fits if left out")
        ] = None,
    ) -> str:
        """Read more of an earlier tool result of which a part was left out because it is long.

        Use it only if a result says so, with the tool_use_id that is given there.
        """
        whole = await results.whole(context.turn_id, tool_use_id)
        if whole is None:
            raise ToolError(
                f"There is no result {tool_use_id!r} in this conversation. "
                "Take the tool_use_id from where a result says that it was cut; a result that does not is complete."
            )
        if offset >= len(whole):
            raise ToolError(f"This result has {len(whole):,} characters: there is nothing at offset {offset}.")
        end = min(offset + min(length or part, part), len(whole))
        more = f"{len(whole) - end:,} more: go on with offset {end}" if end < len(whole) else "this is the end"
        return f"[characters {offset} to {end} of {len(whole)}]\n\n{whole[offset:end]}\n\n[{more}]"

    return [read_result]
