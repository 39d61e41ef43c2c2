"""The tool of an agent. It is a background tool, so a call holds no slot while the agent works."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from turnstream.domain.errors import ConfigError, RequestRefused
from turnstream.domain.turns import Preset, ToolSpec
from turnstream.extensions.agents.agent import Agent, output_spec
from turnstream.extensions.agents.context import ALL_FILES, KINDS_OF_BLOCKS, TEXTS, ContextTurns
from turnstream.libraries.tool_sources.declarations import Declarations
from turnstream.libraries.tool_sources.kinds import SourceKind
from turnstream.libraries.tool_sources.tables import PolicyTable
from turnstream.tools.policy import Policy, policy_of
from turnstream.tools.sources import LoadedTools
from turnstream.tools.tool import GOES_ON, Detached, Outcome, ToolContext, check_name
from turnstream.tools.toolset import Toolset

if TYPE_CHECKING:
    from turnstream.extensions.agents.children import Children

_MOST_ANSWER = 1_000_000  # maximum characters of an answer that is handed over
_LOOK = 30.0  # seconds between two checks of a child's progress; a check also detects an end that was not reported
_SEES: Mapping[ContextTurns, str] = {
    "none": "it sees nothing else",
    "last_turn": "it sees nothing else but the last message of the user and your answer so far",
    "path": "it sees nothing else but the conversation so far",
}


class AgentTable(PolicyTable):
    description: str = Field(min_length=1)
    prompt: str = Field(min_length=1)
    model: str | None = None
    tools: list[str] = Field(default_factory=list)
    max_rounds: int | None = Field(None, ge=1)
    output: dict[str, Any] | None = None
    context: ContextTurns = "none"
    context_blocks: list[str] = Field(default_factory=lambda: [TEXTS, ALL_FILES])
    as_model: bool = False
    handoff: bool = False


@dataclass(slots=True)
class _Place:
    """Holds the `Children` of the server that offers the tool."""

    children: "Children | None" = None


@dataclass(frozen=True, slots=True)
class AgentTool:
    """Runs the calls of one agent."""

    job_kind: ClassVar = "child"

    agent: Agent
    spec: ToolSpec
    policy: Policy
    place: _Place = field(default_factory=_Place)

    @property
    def preset(self) -> Preset | None:
        """Returns the fixed options for turns that name the agent as their model. Returns None if the agent's name is
        no model name.
        """
        agent = self.agent
        if not agent.as_model:
            return None
        output = output_spec(agent)
        return Preset(agent.description, agent.prompt, agent.model, agent.tools, agent.max_rounds, output)

    async def __call__(self, context: ToolContext, input_json: str) -> Outcome:
        children = self.place.children
        if children is None:
            return Outcome(f"The agent {self.spec.name} does not work on this server.", kind="unavailable")
        task = _task_of(input_json)
        if not task:
            return Outcome("`task` must be a text, and not empty.", kind="bad_input")
        handle = context.handle
        if handle is None:
            begun = await children.begin(self.agent, context, task)
            if isinstance(begun, Outcome):
                return begun
            handle = begun
        outcome = await children.look(self.agent, context.owner, handle)
        if outcome is not None:
            return outcome
        seconds = self.policy.seconds
        handle = await children.progress(handle, context.job, seconds)
        context.detach(Detached(handle, min(_LOOK, seconds / 3)))
        return Outcome(GOES_ON)


def agent_tool(agent: Agent, **options: Any) -> AgentTool:
    """Returns the tool of an agent; `options` are the options of its policy. Raises ValueError."""
    check_name(agent.name)
    if agent.handoff:
        if options.get("reports"):
            raise ValueError("`handoff` must be left out for an agent with `reports`: its turn waits for no answer")
        options = {"max_result_chars": _MOST_ANSWER, **options}  # the turn's answer must not be shortened
    # The start of a child can be repeated, because the job is its idempotency key.
    task = {"type": "string", "description": f"all that the agent must know: {_SEES[agent.context]}"}
    schema = {"type": "object", "properties": {"task": task}, "required": ["task"], "additionalProperties": False}
    spec = ToolSpec(agent.name, agent.description, json.dumps(schema), retry_safe=True)
    return AgentTool(agent, spec, policy_of(spec, {**options, "background": True}))


def bind(toolset: Toolset, children: "Children") -> bool:
    """Connects the agents of the toolset to `children`. Returns False if the toolset has no agents. Raises ConfigError
    if an agent names a missing tool or has an invalid output schema.
    """
    found = [tool for tool in toolset.own if isinstance(tool, AgentTool)]
    for tool in found:
        field = "tools"
        try:
            toolset.specs(tool.agent.tools)
            field = "context_blocks"
            toolset.specs([name for name in tool.agent.context_blocks if name not in KINDS_OF_BLOCKS])
            field = "output"
            if (output := output_spec(tool.agent)) is not None:
                toolset.outputs.check(output)
        except (ValueError, TypeError, RequestRefused) as error:
            raise ConfigError(f"The agent {tool.spec.name}: `{field}`: {error}") from None
        tool.place.children = children
    return bool(found)


def _task_of(input_json: str) -> str:
    try:
        task = json.loads(input_json)["task"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return task.strip() if isinstance(task, str) else ""


def _make(declarations: Declarations) -> LoadedTools:
    def make(name: str, table: AgentTable) -> AgentTool:
        tools = tuple(table.tools)
        agent = Agent(
            name,
            table.description,
            table.prompt,
            table.model,
            tools,
            table.max_rounds,
            table.output,
            table.context,
            tuple(table.context_blocks),
            table.as_model,
            table.handoff,
        )
        return agent_tool(agent, **table.options())

    return LoadedTools(declarations.each("agents", make))


AGENTS = SourceKind("agents", AgentTable, _make)
