"""How much is tried by tests that find more the longer they try. FULL_TESTS=1, as in `.ci/run`, asks for all of it."""

import os

FULL = os.environ.get("FULL_TESTS") == "1"


def tries(most: int) -> int:
    """All of them where all is asked for, a fifth otherwise."""
    return most if FULL else -(-most // 5)
