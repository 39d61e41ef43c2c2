"""Checks texts with all guards of a server."""

from collections.abc import Sequence
from functools import partial

from turnstream.domain.guards import Place
from turnstream.domain.plans import Plans
from turnstream.engine.text_checks import TurnChecks
from turnstream.libraries.guards.checks import InputGuards, ResultGuards
from turnstream.libraries.guards.guard import Guard
from turnstream.libraries.guards.reply_gate import ReplyGate


class GuardChecks:
    """Each text must pass all guards, in order."""

    def __init__(self, guards: Sequence[Guard], plans: Plans) -> None:
        self._guards = guards
        self._inputs = InputGuards(guards, plans)

    async def check_message(self, owner: str, plan: str | None, text: str, place: Place) -> str:
        return await self._inputs.check(owner, plan, text, place)

    def of(self, owner: str, plan: str) -> TurnChecks:
        guards = [guard for guard in self._guards if not guard.plans or plan in guard.plans]
        of_replies = [guard for guard in guards if guard.on & {"text", "thinking"}]
        of_results = [guard for guard in guards if "tool_result" in guard.on]
        return TurnChecks(
            partial(ReplyGate, of_replies, owner) if of_replies else None,
            ResultGuards(of_results, owner).check if of_results else None,
            # Such a guard has not checked the end of an interrupted text, and could not replace the text of a kept
            # round.
            any("text" in guard.on and guard.window is not None and not guard.continues for guard in guards),
        )
