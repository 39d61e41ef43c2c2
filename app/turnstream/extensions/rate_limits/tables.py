"""The table of the rates of providers."""

from collections.abc import Mapping
from typing import Final

from turnstream.storage.ownership import Ownership, owned

TABLES: Final[Mapping[str, Ownership]] = {
    # The rest of the rate limits of a key of a provider for a model, and the shares that replicas hold. `key` names the
    # key by a hash.
    "provider_rates": owned(None),
}
