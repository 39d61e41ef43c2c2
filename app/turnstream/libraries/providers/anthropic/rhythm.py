"""Decides, by the rhythm of requests, whether the provider caches a prompt for an hour or for five minutes."""

from collections.abc import Sequence
from itertools import pairwise

from turnstream.domain.rounds import Round, billed_tokens

# Only the last requests count, because the rhythm of a chat changes.
_COUNTED = 21
# Prices relative to an uncached token. Writing a token to the cache costs 2 for an hour and 1.25 for five minutes;
# reading a cached token costs 0.1.
_MORE_FOR_WRITING = 0.75
_LESS_FOR_READING = 1.15


def hour_pays(past: Sequence[Round]) -> bool:
    """Returns whether a cache of one hour would have been cheaper for the past requests of a path."""
    saved = 0.0
    for before, after in pairwise(past[-_COUNTED:]):
        if before.started_at and after.started_at:
            pause = (after.started_at - before.started_at).total_seconds()
            cached, asked = (billed.total - billed.output for billed in map(billed_tokens, (before.usage, after.usage)))
            written = max(asked - cached, 0) if pause < 3600 else asked
            saved += cached * _LESS_FOR_READING * (300 <= pause < 3600) - written * _MORE_FOR_WRITING
    return saved > 0
