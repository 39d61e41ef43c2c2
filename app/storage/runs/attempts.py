"""The numbers of attempts. They grow by random steps, so that two databases with a common past, such as a backup and the
server that went on without it, do not give the same number to different attempts.

A step is one of about half a million numbers, fewer for a turn with hundreds of attempts: the numbers of all events fit
into what JavaScript can count (app.api.openai.events), and never reach the end of their column.
"""

from random import SystemRandom

from app.domain.turns import LEAST_STEP

_MOST = 2**27
_STEPS = 256
_random = SystemRandom()

# In an UPDATE of `turns`, the number of the next attempt.
NEXT_ATTEMPT = f"attempt + {LEAST_STEP} + CAST(floor(random() * greatest(1, ({_MOST} - attempt) / {_STEPS})) AS int)"


def next_attempt(attempt: int) -> int:
    """The number of the attempt after `attempt`."""
    return attempt + LEAST_STEP + _random.randrange(max(1, (_MOST - attempt) // _STEPS))
