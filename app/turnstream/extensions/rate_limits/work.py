"""The background work and the check for a server's pools of keys."""

import asyncio
from collections.abc import Sequence

from turnstream.engine.upkeep.sweeps import HOURS, Sweep
from turnstream.extension import Context, Work
from turnstream.extensions.rate_limits.pool import KeyPool
from turnstream.extensions.rate_limits.store import PostgresStore
from turnstream.kit.ids import new_id
from turnstream.llm.models.catalog import Models
from turnstream.llm.provider import Provider, ProviderWrapper

_FLUSH = 1.0  # seconds


def work(context: Context) -> Work:
    pools, store, replica = pools_in(context.models), PostgresStore(context.database), str(new_id())
    for pool in pools:
        pool.store, pool.replica = store, replica

    async def flush() -> None:
        while True:
            await asyncio.sleep(_FLUSH)
            for pool in pools:
                await pool.flush()

    return Work(tasks=[flush], sweeps=[Sweep("rate limits", 6 * HOURS, store.sweep)])


def pools_in(models: Models) -> Sequence[KeyPool]:
    found = (_unwrapped(entry.provider) for entry in models.providers)
    return list(dict.fromkeys(each for each in found if isinstance(each, KeyPool)))


def _unwrapped(provider: Provider) -> Provider:
    while isinstance(provider, ProviderWrapper):
        provider = provider.provider
    return provider


def described(pools: Sequence[KeyPool]) -> str:
    """Describes the keys and the limits of each provider."""
    return ", ".join(f"{pool.name}: {pool.described}" for pool in pools) or "no provider"
