"""The queues of webhooks."""

from collections.abc import Mapping
from typing import Final

from turnstream.storage.ownership import Ownership, owned

TABLES: Final[Mapping[str, Ownership]] = {
    # The end of a turn, for delivery to an operator's server. A trigger inserts the row (`keep_webhook`), so that every
    # statement that ends a turn does so. The row is due until its webhook is delivered or given up. `answer` is the
    # receiver's last response.
    "webhooks": owned("turn_id", "state"),
    # The same for turns that start to wait for a person. `asked` is the turn's value; a turn may wait several times.
    # `calls` are the calls that waited then.
    "waiting_webhooks": owned("turn_id", "state"),
}
