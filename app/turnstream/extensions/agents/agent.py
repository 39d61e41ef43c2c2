"""Defines an agent: a named set of a prompt, tools and limits."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from turnstream.domain.output import is_of_an_object
from turnstream.domain.turns import OutputSpec
from turnstream.extensions.agents.context import ALL_FILES, TEXTS, ContextTurns


@dataclass(frozen=True, slots=True)
class Agent:
    """A named agent, which works in turns of its own.

    `prompt` is its system prompt, and `tools` are names of tools of the server. Without `model` or `max_rounds`, the
    values of the calling turn apply. `output` is a JSON schema that the agent's answer must meet; `max_rounds` then
    limits the model calls of each attempt at the output.

    `context` selects the turns of the conversation that the agent sees. `context_blocks` selects the blocks of these
    turns: `text`, `files`, `results`, or a tool's name for the results of that tool.

    With `as_model`, the agent's name is also a model name: a turn that names this model is a turn of the agent. With
    `handoff`, the agent's answer becomes the answer of the calling turn.
    """

    name: str
    description: str
    prompt: str
    model: str | None = None
    tools: tuple[str, ...] = ()
    max_rounds: int | None = None
    output: Mapping[str, Any] | None = None
    context: ContextTurns = "none"
    context_blocks: tuple[str, ...] = (TEXTS, ALL_FILES)
    as_model: bool = False
    handoff: bool = False


def output_spec(agent: Agent) -> OutputSpec | None:
    """Returns the output that the agent's turns must produce, if any."""
    if agent.output is None:
        return None
    wrapped = not is_of_an_object(agent.output)
    spec = OutputSpec(json.dumps(agent.output), wrapped=wrapped)
    return spec if agent.max_rounds is None else replace(spec, max_iterations=agent.max_rounds)
