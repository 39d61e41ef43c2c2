"""Policies of extensions around the calls of tools."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from turnstream.domain.turns import Turn
from turnstream.engine.model_route import ModelAccess
from turnstream.tools.tool import Outcome


@dataclass(frozen=True, slots=True)
class PolicyCall:
    """PolicyCall: A tool call of a turn, from its rows. `label` names the tool in metrics. `models` calls models of the
    replica. `check` returns the outcome after the guards; it raises TurnBlocked.
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
    """A policy around each tool call. The first policy of a server is the outermost."""

    async def run(self, call: PolicyCall, run: Callable[[], Awaitable[Outcome]]) -> Outcome:
        """Returns the outcome of a call: from `run`, or without it."""
        ...

    async def settled(self, call: PolicyCall, outcome: Outcome) -> Outcome:
        """Returns the outcome to store and send; called for outcomes of jobs, too."""
        ...
