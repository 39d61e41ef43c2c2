"""The table of the rates of providers."""

from collections.abc import Mapping
from typing import Final

from turnstream.storage.ownership import Ownership, owned

TABLES: Final[Mapping[str, Ownership]] = {
    # The rest of the rate limits of a provider's key for a model, and the shares of replicas. `key` is a hash of the
    # key.
    "provider_rates": owned(None),
}
