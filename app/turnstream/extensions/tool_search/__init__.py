"""A search among many tools: requests omit the definition of a tool, and the model searches for the tool when it needs
it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from turnstream.config import Section, Settings
from turnstream.domain.errors import ConfigError, RequestRefused
from turnstream.extension import Extension

if TYPE_CHECKING:
    from turnstream.libraries.tool_sources.declarations import Declarations
    from turnstream.libraries.tool_sources.kinds import SourceKind
    from turnstream.llm.models.catalog import Models
    from turnstream.tools.sources import LoadedTools


class ToolSearchSettings(Section):
    tool_search_above: int | None = Field(
        None, ge=1, description="highest number of definitions of tools in a request; with more the model searches"
    )
    tool_search_above_chars: int | None = Field(
        None, ge=1, description="the same in characters of the definitions; 4 are about a token"
    )
    tool_search_keep: str = Field(
        "read_result,doc_*",
        description="tools in each request, separated by commas; `*` matches any characters",
    )
    tool_search_by_provider: str | None = Field(
        None,
        description="models of the Anthropic API whose provider searches (`defer_loading`), separated by commas",
    )


def _tool_sources(settings: Settings) -> "Sequence[SourceKind]":
    from turnstream.libraries.tool_sources.kinds import SourceKind
    from turnstream.tools.sources import LoadedTools

    given = settings.section(ToolSearchSettings)

    def make(_: "Declarations") -> "LoadedTools":
        if given.tool_search_above is None and given.tool_search_above_chars is None:
            return LoadedTools()
        from turnstream.extensions.tool_search.deferral import Deferral, SearchTools

        deferral = Deferral(
            given.tool_search_above,
            given.tool_search_above_chars,
            _names(given.tool_search_keep),
            frozenset(_names(given.tool_search_by_provider or "")),
        )
        return LoadedTools(sources=[SearchTools()], offer=deferral.offer)

    return [SourceKind("tool_search", None, make)]


async def _check(settings: Settings, models: "Models", _: bool) -> str:
    given = settings.section(ToolSearchSettings)
    above, chars = given.tool_search_above, given.tool_search_above_chars
    if above is None and chars is None:
        return "off: the definitions of all tools are in each request"
    for name in _names(given.tool_search_by_provider or ""):
        try:
            models.check(name)
        except RequestRefused as error:
            raise ConfigError(error.detail.replace("`model`", "TURNSTREAM_TOOL_SEARCH_BY_PROVIDER", 1)) from None
    limits = [f"{above:,} tools"] if above is not None else []
    limits += [f"{chars:,} characters of definitions"] if chars is not None else []
    return f"above {' or '.join(limits)}"


def _names(text: str) -> list[str]:
    return [name for each in text.split(",") if (name := each.strip())]


EXTENSION = Extension(
    "tool_search",
    "a search among many tools",
    settings=ToolSearchSettings,
    checks={"tool search": _check},
    tool_sources=_tool_sources,
)
