"""The numbers of attempts. They grow by random steps, so that two databases with a common past, such as a backup and the
server that went on without it, do not give the same number to different attempts.

A step is one of about four million numbers, fewer for a turn with hundreds of attempts: they keep nine digits, which is
what cursors of the version before may have, and never reach the end of their column.
"""

from random import SystemRandom

_MOST = 1_000_000_000
_STEPS = 256
_random = SystemRandom()

# In an UPDATE of `turns`, the number of the next attempt.
NEXT_ATTEMPT = f"attempt + 1 + CAST(floor(random() * greatest(1, ({_MOST} - attempt) / {_STEPS})) AS int)"


def next_attempt(attempt: int) -> int:
    """The number of the attempt after `attempt`."""
    return attempt + 1 + _random.randrange(max(1, (_MOST - attempt) // _STEPS))
