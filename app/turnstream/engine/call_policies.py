"""Policies of extensions around the calls of tools."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from turnstream.domain.turns import Turn
from turnstream.engine.model_route import ModelAccess
from turnstream.tools.tool import Outcome


@dataclass(frozen=True, slots=True)
class PolicyCall:
    """A call of a tool in a turn, as its rows are. `label` names the tool in metrics. `models` is the way to the models
    of the replica. `check` returns an outcome as it may be stored; it raises TurnBlocked.
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
    """The first policy of a server is the outermost."""

    async def run(self, call: PolicyCall, run: Callable[[], Awaitable[Outcome]]) -> Outcome:
        """The outcome of a call, by `run` unless it is known."""
        ...

    async def settled(self, call: PolicyCall, outcome: Outcome) -> Outcome:
        """The outcome as it is stored and sent, also of a call that a job has run."""
        ...
