"""The checks of texts before they are stored, shown or sent, as the engine awaits them. The guards of extensions
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
    """A check ends the turn, with this error."""

    def __init__(self, error: TurnError) -> None:
        super().__init__(error.message)
        self.error = error


class TextGate(Protocol):
    """Holds the texts of one reply back until they are checked. `begins_again`: a part of the reply was taken back, and
    `check` has returned all of the reply from its beginning. `ended` is the end of the turn after it.
    """

    begins_again: bool
    ended: TurnBlocked | None

    async def check(self, parts: Sequence[Part]) -> Sequence[Part]:
        """The parts that may be shown now."""
        ...


# Opens the gate of a reply: of the turn as its rows are, with so many characters at most, behind the text before.
OpenGate = Callable[[Callable[[], Turn], int, str], TextGate]
# The outcome of a call as it may be stored, by its turn (None for a report) and its tool. Raises TurnBlocked.
CheckResult = Callable[[Outcome, Turn | None, str], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True)
class TurnChecks:
    """The checks of the turns of one owner. `voids_interrupted`: the text of an interrupted reply is not kept."""

    open_gate: OpenGate | None = None
    check_result: CheckResult | None = None
    voids_interrupted: bool = False


class TextChecks(Protocol):
    """All checks of a server. `plan` is the name of the plan of the owner."""

    async def check_message(self, owner: str, plan: str | None, text: str, place: Place) -> str:
        """The text as it may be stored. Raises MessageBlocked, and GuardFailed if a check fails."""
        ...

    def of(self, owner: str, plan: str) -> TurnChecks: ...


class TextGuard(Protocol):
    """A guard of an extension. The first guard of a server makes the checks of all of them."""

    def joined(self, guards: Sequence[Any], plans: Plans) -> TextChecks: ...


class _NoChecks:
    async def check_message(self, owner: str, plan: str | None, text: str, place: Place) -> str:  # noqa: ARG002
        return text

    def of(self, owner: str, plan: str) -> TurnChecks:  # noqa: ARG002
        return TurnChecks()


NO_CHECKS: Final[TextChecks] = _NoChecks()
