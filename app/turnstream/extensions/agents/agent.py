"""An agent: a prompt, tools and limits under a name."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from turnstream.domain.output import is_of_an_object
from turnstream.domain.turns import OutputSpec
from turnstream.extensions.agents.context import ALL_FILES, TEXTS, ContextTurns


@dataclass(frozen=True, slots=True)
class Agent:
    """`prompt` is its system prompt, `tools` are names of tools of the server. The defaults of `model` and of the
    limits are the values of the calling turn. With `output`, a JSON schema, its answer is JSON that meets the schema;
    `max_rounds` are then the model calls of one attempt at the output. `context` selects turns of the conversation for
    the agent, and `context_blocks` their blocks: `text`, `files`, `results`, or names of tools for their results. With
    `as_model` the agent's name is also a model name: a turn with that model is a turn of the agent. With `handoff`, its
    answer becomes the answer of the calling turn.
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
    """The required output of the agent's turns, if any."""
    if agent.output is None:
        return None
    wrapped = not is_of_an_object(agent.output)
    spec = OutputSpec(json.dumps(agent.output), wrapped=wrapped)
    return spec if agent.max_rounds is None else replace(spec, max_iterations=agent.max_rounds)
