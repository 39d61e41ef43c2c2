"""The queues of webhooks."""

from collections.abc import Mapping
from typing import Final

from turnstream.storage.ownership import Ownership, owned

TABLES: Final[Mapping[str, Ownership]] = {
    # The end of a turn, for delivery to an operator's server. A trigger inserts the row (`keep_webhook`), so that no
    # statement that ends a turn can forget it. It is due until it is delivered or given up. `answer` is the receiver's
    # last response.
    "webhooks": owned("turn_id", "state"),
    # The same for turns that begin to wait for a person. `asked` is that of the turn, which may wait several times.
    # `calls` are those that waited then.
    "waiting_webhooks": owned("turn_id", "state"),
}
