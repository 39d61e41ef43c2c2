"""Tools of every kind whose calls end at random, and a record of all runs."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal

from turnstream.domain.turns import ToolSpec
from turnstream.tools.policy import Policy
from turnstream.tools.tool import Outcome, ToolContext, ToolError, ToolUnavailable
from turnstream.tools.toolset import Toolset

SCHEMA = '{"type":"object"}'
LARGE = 2  # for tools whose input decides, a larger `n` needs an approval

Verdict = Literal["well", "error", "raise", "away"]
VERDICTS: list[Verdict] = ["well", "well", "well", "well", "error", "raise", "away"]


@dataclass
class Run:
    """One run of a tool. `allowed` is true if a person had approved the call before the run."""

    key: str
    name: str
    input: str
    allowed: bool
    said: str | None = None
    gate: "asyncio.Future[Verdict]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Workshop:
    """The world outside of the chats: replicas come and go, but the effects of tools stay."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.leaves: set[str] = set()  # keys of calls for which somebody has sent an approval
        self.events: Counter[str] = Counter()

    def inside(self) -> list[Run]:
        return [run for run in self.runs if not run.gate.done()]

    async def run(self, name: str, context: ToolContext, input_json: str) -> str:
        allowed = context.idempotency_key in self.leaves
        run = Run(context.idempotency_key, name, input_json, allowed)
        self.runs.append(run)
        number = len(self.runs)
        try:
            verdict = await run.gate
        except asyncio.CancelledError:
            self.events["a run was cut short"] += 1
            raise
        self.events[f"a run ended: {verdict}"] += 1
        run.said = f"{name} did {input_json} in run {number}"
        if verdict == "well":
            return run.said
        run.said = None
        raise {"error": ToolError, "raise": ValueError, "away": ToolUnavailable}[verdict](f"no {name}")

    async def let_go(self, random: Random) -> None:
        """Ends one run after another in a random order, until it is cancelled."""
        while True:
            await asyncio.sleep(random.choice([0, 0.004, 0.01]))
            if inside := self.inside():
                run = random.choice(inside)
                self.events["runs overtook each other"] += run is not inside[0]
                run.gate.set_result(random.choice(VERDICTS))


@dataclass(frozen=True)
class Job:
    spec: ToolSpec
    policy: Policy
    workshop: Workshop

    async def __call__(self, context: ToolContext, input_json: str) -> Outcome:
        return Outcome(await self.workshop.run(self.spec.name, context, input_json))


def _is_large(sent: Mapping[str, Any]) -> bool:
    return bool(sent["n"] > LARGE)


PLAIN = Policy(breaker=None)
BY_INPUT = Policy(breaker=None, approval=_is_large)
_KINDS: list[tuple[ToolSpec, Policy]] = [
    (ToolSpec("look", "Only reads.", SCHEMA, read_only=True), replace(PLAIN, memo=True)),
    (ToolSpec("peek", "Only reads, perhaps with leave.", SCHEMA, read_only=True), replace(BY_INPUT, memo=True)),
    (ToolSpec("write", "Has effects.", SCHEMA), PLAIN),
    (ToolSpec("hurry", "Has effects, and little time.", SCHEMA), replace(PLAIN, timeout=0.02)),
    (ToolSpec("once", "Has effects, once in a turn.", SCHEMA), replace(BY_INPUT, calls_per_turn=1)),
    (ToolSpec("book", "May be run again.", SCHEMA, retry_safe=True), BY_INPUT),
    (ToolSpec("pay", "Needs leave.", SCHEMA), Policy(breaker=None, approval="always")),
    (ToolSpec("wire", "Needs leave soon.", SCHEMA), Policy(breaker=None, approval="always", approval_expiry=0.02)),
]
POLICIES: dict[str, Policy] = {spec.name: policy for spec, policy in _KINDS}
SPECS: tuple[ToolSpec, ...] = (
    *(spec for spec, _ in _KINDS),
    ToolSpec("find", "Run by the client.", SCHEMA, client=True),
    ToolSpec("style", "Run by the client.", SCHEMA, client=True),
)
NAMES = [*(spec.name for spec in SPECS), "look", "look", "look", "peek", "pay", "find", "ghost"]


def toolset_of(workshop: Workshop) -> Toolset:
    jobs = [Job(spec, policy, workshop) for spec, policy in _KINDS]
    return Toolset(jobs, max_result_chars=1000, patience=0.01, backoff=lambda _: 0.0)


def needs_leave(name: str, input_json: str) -> bool:
    """Repeats the rule for approvals, independent of the tested code."""
    if name in {"pay", "wire"}:
        return True
    if name not in {"peek", "once", "book"}:
        return False
    try:
        return int(json.loads(input_json)["n"]) > LARGE
    except (ValueError, KeyError, TypeError):
        return True
