"""The tables of schedules and triggers."""

from collections.abc import Mapping
from typing import Final

from turnstream.storage.ownership import Ownership, owned

TABLES: Final[Mapping[str, Ownership]] = {
    # Messages that the server posts at ticks. `request` is the message in the form of the API; `every` is in seconds.
    # Without a chat each run has a new one. `paused` is the reason why no tick is due. A `trigger` has the secrets for
    # signed messages, which start runs instead of ticks; `next_at` is infinity. `busy_until` is the time up to which
    # past messages use the rate.
    "schedules": owned("owner", "content"),
    # The ticks of schedules. The key prevents a second run of a tick. `turn_id`: no foreign key, because a run outlasts
    # its chat.
    "schedule_runs": owned("owner", "state"),
}
