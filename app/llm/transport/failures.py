"""How failures of all providers are sorted: what will be the same next time, and what will not. Pure."""

from collections.abc import Collection, Iterable

from app.domain.errors import PermanentError, TransientError

LONGEST_MESSAGE = 1_000  # characters, of what a provider says of its failure

_TRANSIENT_STATUSES = frozenset({408, 409, 425, 429})


def kind_of(
    names: Iterable[str | None],
    status: int,
    should_retry: str | None,
    permanent: Collection[str],
    transient: Collection[str],
) -> type[TransientError] | type[PermanentError]:
    """The server's own word first, then what it calls the failure, then the status, which in mid-stream is 200."""
    if should_retry in {"true", "false"}:
        return TransientError if should_retry == "true" else PermanentError
    for name in names:
        if name in permanent or name in transient:
            return PermanentError if name in permanent else TransientError
    refused = 400 <= status < 500 and status not in _TRANSIENT_STATUSES
    return PermanentError if refused else TransientError
