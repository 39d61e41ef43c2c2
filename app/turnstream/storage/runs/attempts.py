"""The numbers of attempts grow by random steps. So two databases with a common past, such as a server and its restored
backup, never give the same number to different attempts.

After hundreds of attempts a turn makes small steps, so that the numbers of its events stay exact in JavaScript
(turnstream.extensions.openai_api.events).
"""

from random import SystemRandom
from typing import Final

from turnstream.domain.turns import LEAST_STEP

_FAR: Final = 2**26
_random: Final = SystemRandom()

# SQL for the number of the next attempt, in an UPDATE of `turns`.
NEXT_ATTEMPT: Final = f"attempt + CASE WHEN attempt < {_FAR} THEN CAST(:step AS int) ELSE {LEAST_STEP} END"


def draw_step() -> int:
    return LEAST_STEP + _random.randrange(2**19)


def next_attempt(attempt: int) -> int:
    """Returns the number of the attempt after `attempt`."""
    return attempt + (draw_step() if attempt < _FAR else LEAST_STEP)
