"""Policies that extensions wrap around tool calls."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from turnstream.domain.turns import Turn
from turnstream.engine.model_route import ModelAccess
from turnstream.tools.tool import Outcome


@dataclass(frozen=True, slots=True)
class PolicyCall:
    """A tool call of a turn, as its rows describe it. `label` names the tool in metrics. `models` calls models for the
    replica. `check` passes an outcome through the guards, and raises TurnBlocked if a guard ends the turn.
    """

    owner: str
    turn: Turn
    tool_use_id: str
    name: str
    input_json: str
    label: str
    models: ModelAccess
    check: Callable[[Outcome], Awaitable[Outcome]]


class CallPolicy(Protocol):
    """A policy that wraps every tool call. The first policy of a server is the outermost."""

    async def run(self, call: PolicyCall, run: Callable[[], Awaitable[Outcome]]) -> Outcome:
        """Returns the outcome of a call. A policy calls `run` for the outcome, or makes the outcome itself."""
        ...

    async def settled(self, call: PolicyCall, outcome: Outcome) -> Outcome:
        """Returns the outcome to store and send. It is called for the outcomes of jobs, too."""
        ...
