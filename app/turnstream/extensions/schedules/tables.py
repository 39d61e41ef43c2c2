"""The tables of schedules and triggers."""

from collections.abc import Mapping
from typing import Final

from turnstream.storage.ownership import Ownership, owned

TABLES: Final[Mapping[str, Ownership]] = {
    # Messages that the server posts at ticks. `request` is the message as the API takes it; `every` is in seconds.
    # Without a chat each run has a new one. `paused` says why no tick is due. A `trigger` has the secrets of signed
    # messages, which start runs in place of ticks; `next_at` is infinity. Up to `busy_until` its messages have used
    # their rate.
    "schedules": owned("owner", "content"),
    # The ticks of schedules. The key is what keeps a tick from being run twice. `turn_id`: no foreign keys: a run
    # outlasts its chat.
    "schedule_runs": owned("owner", "state"),
}
