"""Masked headers of HTTP tools. The API shows secret headers masked; a client may send the masks back."""

from collections.abc import Sequence
from typing import Any

from turnstream.api.schemas.tools import HttpToolIn, ToolIn
from turnstream.domain.errors import RequestRefused
from turnstream.domain.secret_headers import MASK


def unmasked(tools: Sequence[ToolIn], stored: Sequence[Any], field: str) -> list[ToolIn]:
    """The tools with the values of masked headers: the headers of the stored tool with the same name and URL, so that
    no other host gets them. Raises RequestRefused for a mask of nothing.
    """
    known = {(tool["name"], tool["url"]): tool for tool in stored if isinstance(tool, dict) and "url" in tool}
    found: list[ToolIn] = []
    for place, tool in enumerate(tools):
        if isinstance(tool, HttpToolIn) and MASK in tool.headers.values():
            before = known.get((tool.name, tool.url), {}).get("headers", {})
            for name in [name for name, value in tool.headers.items() if value == MASK and name not in before]:
                where = f"{field}.{place}.headers.{name}"
                raise RequestRefused(
                    f"`{where}` must be the value itself: the chat has no tool with this name, URL and header whose"
                    " value could stay.",
                    field=where,
                )
            headers = {name: before[name] if value == MASK else value for name, value in tool.headers.items()}
            found.append(tool.model_copy(update={"headers": headers}))
        else:
            found.append(tool)
    return found
