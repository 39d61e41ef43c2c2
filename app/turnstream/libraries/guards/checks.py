"""Runs the checks of a server's guards with a time limit, metrics and traces, and applies their rulings to messages and
to results of tools.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

import structlog

from turnstream.domain.errors import GuardFailed, MessageBlocked
from turnstream.domain.guards import GUARDRAIL, GUARDRAIL_FAILED, Place
from turnstream.domain.plans import Plans
from turnstream.domain.turns import Turn, TurnError
from turnstream.engine.text_checks import TurnBlocked
from turnstream.kit.text import storable
from turnstream.libraries.guards.guard import (
    MASK,
    EndTurn,
    Guard,
    Mask,
    Pass,
    Passage,
    Replace,
    Ruling,
    TakeBack,
    masked,
)
from turnstream.telemetry import GUARD_CHECKS, GUARD_SECONDS
from turnstream.tools.serialize import serialize
from turnstream.tools.tool import Outcome
from turnstream.tracing import TRACING

log = structlog.get_logger(__name__)

_LONGEST_REASON = 1000  # characters
_WITHHELD = "The result of this call was withheld: the guardrail {} could not check it."
_NAMES = {Pass: "pass", Mask: "mask", Replace: "replace", TakeBack: "retract", EndTurn: "end"}


class CheckFailed(Exception):
    """The check of a closed guard failed, so no text passes."""

    def __init__(self, guard: Guard, place: Place) -> None:
        super().__init__(f"the check of the guardrail {guard.name} failed")
        self.guard = guard
        self.place = place

    @property
    def error(self) -> TurnError:
        message = f"The guardrail {self.guard.name} could not check the text, so it is not shown. Try again."
        return TurnError(GUARDRAIL_FAILED, message, details=_details(self.guard, self.place))


def blocked(guard: Guard, place: Place, ruling: EndTurn) -> TurnBlocked:
    return TurnBlocked(TurnError(GUARDRAIL, _reason(guard, ruling), details=_details(guard, place)))


async def rule(guard: Guard, passage: Passage) -> Ruling:
    """Returns the ruling of a guard. Raises CheckFailed if the check of a closed guard fails."""
    start = perf_counter()
    try:
        with TRACING.span(f"guard {guard.name}", turnstream__guard=guard.name, turnstream__place=passage.place) as span:
            async with asyncio.timeout(guard.timeout):
                ruling = await guard.check(passage)
            name = "pass" if isinstance(ruling, Mask) and not ruling.spans else _NAMES[type(ruling)]
            span.set(turnstream__ruling=name)
    except Exception as error:  # the check is foreign code
        GUARD_CHECKS.labels(guard.name, passage.place, "failed").inc()
        # The error's message may contain the text.
        log.error(
            "guard.failed", guard=guard.name, place=passage.place, error=type(error).__name__, policy=guard.on_failure
        )
        if guard.on_failure == "closed":
            raise CheckFailed(guard, passage.place) from error
        return Pass()
    finally:
        GUARD_SECONDS.labels(guard.name).observe(perf_counter() - start)
    GUARD_CHECKS.labels(guard.name, passage.place, name).inc()
    if name != "pass":
        log.info("guard.ruled", guard=guard.name, place=passage.place, ruling=name)
    return ruling


class InputGuards:
    """Checks messages, and results of tools in clients' histories, before they are stored."""

    def __init__(self, guards: Sequence[Guard], plans: Plans) -> None:
        self._guards = guards
        self._plans = plans

    async def check(self, owner: str, plan: str | None, text: str, place: Place) -> str:
        """Returns the text to store. Raises MessageBlocked, and GuardFailed if a check fails."""
        if not self._guards or not text:
            return text
        name = self._plans.of(owner, plan).name
        for guard in self._guards:
            if guard.applies(place, name):
                try:
                    ruling = await rule(guard, Passage(place, text, owner))
                except CheckFailed:
                    raise GuardFailed(
                        f"The guardrail {guard.name} could not check the message; nothing was stored. Try again."
                    ) from None
                if isinstance(ruling, EndTurn):
                    raise MessageBlocked(_reason(guard, ruling))
                text = applied(ruling, text) or MASK
        return text


class ResultGuards:
    """Checks the results of tools in one turn before the model and the client receive them."""

    def __init__(self, guards: Sequence[Guard], owner: str) -> None:
        self._guards = guards
        self._owner = owner

    async def check(self, outcome: Outcome, turn: Turn | None, tool: str) -> Outcome:
        """Returns the outcome to store. Data for clients is dropped unless it passes unchanged. `turn` is None for the
        report of a job. Raises TurnBlocked.
        """
        for guard in self._guards:
            passage = Passage("tool_result", "", self._owner, turn=turn, tool=tool)
            try:
                outcome = await _checked(guard, passage, outcome)
            except CheckFailed:
                return Outcome(_WITHHELD.format(guard.name), is_error=True)
        return outcome


async def _checked(guard: Guard, passage: Passage, outcome: Outcome) -> Outcome:
    async def allowed(text: str) -> str:
        if not text:
            return text
        ruling = await rule(guard, replace(passage, text=text))
        if isinstance(ruling, EndTurn):
            raise blocked(guard, "tool_result", ruling)
        return applied(ruling, text)

    checked = replace(
        outcome,
        text=await allowed(outcome.text),
        more=tuple([await allowed(part) if isinstance(part, str) else part for part in outcome.more]),
        whole=None if outcome.whole is None else await allowed(outcome.whole),
    )
    if outcome.layout is not None and checked.text != outcome.text:
        checked = replace(checked, layout=None)  # the layout refers to positions in the original text
    if outcome.data is not None:
        data = serialize(outcome.data, "json")
        checked = checked if await allowed(data) == data else replace(checked, data=None)
    if checked == outcome:
        return outcome
    return replace(checked, notes={**checked.notes, "guards": [*checked.notes.get("guards", ()), guard.name]})


def applied(ruling: Pass | Mask | Replace | TakeBack, text: str) -> str:
    """Returns the complete text after the ruling."""
    match ruling:
        case Pass():
            return text
        case Mask(spans):
            return storable(masked(text, spans))
        case Replace(instead) | TakeBack(instead):
            return storable(instead)


def _reason(guard: Guard, ruling: EndTurn) -> str:
    reason = storable(ruling.reason[:_LONGEST_REASON]).strip()
    return reason or f"The guardrail {guard.name} does not allow this."


def _details(guard: Guard, place: Place) -> dict[str, str]:
    return {"guardrail": guard.name, "place": place}
