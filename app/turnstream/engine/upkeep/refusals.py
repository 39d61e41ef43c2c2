"""Refused logins: counted by their origin, and written to the audit trail once a minute as one entry per origin."""

import asyncio
from collections import Counter
from functools import partial

from turnstream.storage.database import retry_while_unavailable
from turnstream.storage.owners.audit import AuditTrail

LOGIN_REFUSED = "login.refused"
REFUSALS_KEPT_DAYS = 30.0

_PAUSE = 60.0  # seconds
# Most origins with an entry of their own in one minute. All other origins share one entry.
_MOST = 10
_OTHERS = ("others", "")


class RefusedLogins:
    def __init__(self, trail: AuditTrail, pause: float = _PAUSE) -> None:
        self._trail = trail
        self._pause = pause
        self._counts: Counter[tuple[str, str]] = Counter()
        self._any = asyncio.Event()

    def note(self, address: str, sent: str) -> None:
        """Counts a refusal. `sent` is the type of credential in the request."""
        origin = (address, sent)
        self._counts[origin if origin in self._counts or len(self._counts) < _MOST else _OTHERS] += 1
        self._any.set()

    async def run(self) -> None:
        """Writes until it is cancelled."""
        while True:
            await self._any.wait()
            await asyncio.sleep(self._pause)
            self._any.clear()
            counts, self._counts = self._counts, Counter()
            entries = [
                {"address": address, "sent": sent, "count": count} for (address, sent), count in counts.most_common()
            ]
            await retry_while_unavailable(partial(self._trail.note, LOGIN_REFUSED, None, *entries))
