"""Agents as tools: each call posts a turn in a new chat, and the answer of this turn is the result of the call."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from turnstream.config import Section, Settings
from turnstream.extension import Context, Extension, Work

if TYPE_CHECKING:
    from turnstream.libraries.tool_sources.kinds import SourceKind


class AgentSettings(Section):
    agent_depth: int = Field(3, ge=1, le=10, description="deepest nesting of agents")
    agent_children: int = Field(50, ge=1, description="calls of agents in one turn")


def _tool_sources(_: Settings) -> "Sequence[SourceKind]":
    from turnstream.extensions.agents.tool import AGENTS

    return [AGENTS]


def _work(context: Context) -> Work:
    from turnstream.extensions.agents.children import Children
    from turnstream.extensions.agents.tool import bind

    given = context.settings.section(AgentSettings)
    children = Children(context, given.agent_depth, given.agent_children)
    if not bind(context.toolset, children):
        return Work()
    return Work(hooks=[children], tasks=[children.run])


EXTENSION = Extension("agents", "agents as tools", settings=AgentSettings, tool_sources=_tool_sources, work=_work)
