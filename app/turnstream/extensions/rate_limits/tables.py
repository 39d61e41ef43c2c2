"""The table of the rates of providers."""

from sqlalchemy import JSON, Column, DateTime, Table, Text, func

from turnstream.storage.ownership import owned
from turnstream.storage.tables import metadata

# The rest of the rate limits of a key of a provider for a model, and the shares that replicas hold. `key` names the
# key by a hash.
provider_rates = Table(
    "provider_rates",
    metadata,
    Column("key", Text, primary_key=True),
    Column("state", JSON, nullable=False),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    info=owned(None),
)
