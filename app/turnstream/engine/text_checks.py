"""Checks of texts before the texts are stored, shown or sent. The engine awaits the checks, and guards of extensions
implement them. A server without guards has `NO_CHECKS`.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from turnstream.domain.guards import Place
from turnstream.domain.plans import Plans
from turnstream.domain.turns import Turn, TurnError
from turnstream.llm.provider import Part
from turnstream.tools.tool import Outcome


class TurnBlocked(Exception):
    """Raised if a check ends the turn with this error."""

    def __init__(self, error: TurnError) -> None:
        super().__init__(error.message)
        self.error = error


class TextGate(Protocol):
    """Holds the text of a reply back until it is checked. If `begins_again` is true, recorded text must be voided, and
    `check` has returned the whole reply from its start. `ended` is the error that ends the turn after the returned
    parts.
    """

    begins_again: bool
    ended: TurnBlocked | None

    async def check(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Returns the parts that may be shown now."""
        ...


# Opens the gate of a reply. Gets the turn (as a function), the most characters of the reply, and the text before it.
OpenGate = Callable[[Callable[[], Turn], int, str], TextGate]
# Gets owner, plan, text and place; returns the text to store. Raises MessageBlocked, or GuardFailed if a check fails.
CheckMessage = Callable[[str, str | None, str, Place], Awaitable[str]]
# Gets an outcome, its turn (None for a report) and its tool; returns the outcome to store. Raises TurnBlocked.
CheckResult = Callable[[Outcome, Turn | None, str], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True)
class TurnChecks:
    """The checks of one owner's turns. If `voids_interrupted` is true, the text of an interrupted reply is voided."""

    open_gate: OpenGate | None = None
    check_result: CheckResult | None = None
    voids_interrupted: bool = False


class TextChecks(Protocol):
    """All checks of a server. `plan` names the owner's plan. `check_message` is None if messages are not checked."""

    @property
    def check_message(self) -> CheckMessage | None: ...

    def of(self, owner: str, plan: str) -> TurnChecks: ...


class TextGuard(Protocol):
    """A guard of an extension. The first guard of a server combines all guards into the checks of the server."""

    def joined(self, guards: Sequence[Any], plans: Plans) -> TextChecks: ...


class _NoChecks:
    check_message = None

    def of(self, owner: str, plan: str) -> TurnChecks:  # noqa: ARG002
        return TurnChecks()


NO_CHECKS: Final[TextChecks] = _NoChecks()
