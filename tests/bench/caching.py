"""The share of a long turn's input tokens that the provider reads from its cache, according to the bills of a fake
provider.
"""

import asyncio
from collections.abc import Sequence

from tests.bench.billing import billing
from tests.bench.database import new_database
from tests.bench.trials import Rows, Site
from tests.support.harness import Harness
from turnstream.domain.rounds import Round
from turnstream.domain.turns import Limits, Turn
from turnstream.libraries.providers.anthropic.provider import AnthropicProvider
from turnstream.storage.database import connect
from turnstream.storage.migrations import upgrade
from turnstream.telemetry import configure_logging
from turnstream.tools.tool import tool

ROUNDS = 10
TARGET = 95.0  # per cent
SYSTEM = "You look at places, and say what you see. " * 400  # the usual length of such prompts

_KINDS = ("cache_read_input_tokens", "cache_creation_input_tokens", "input_tokens")


@tool(read_only=True)
async def look(place: int) -> str:
    """Look somewhere."""
    return f"a sight of place {place}. " * 10


async def turn_of_ten_rounds(harness: Harness, most: int = ROUNDS + 1) -> Turn:
    """Runs a turn with the real adapter and engine. `most` is the limit of its rounds with tools."""
    async with (
        billing(ROUNDS) as bills,
        AnthropicProvider("key", bills.url) as provider,
        harness.replica(provider, [look]) as replica,
    ):
        limits = Limits(max_rounds=most)
        asked = await harness.ask("Look at everything.", tools=[look], limits=limits, system=SYSTEM)
        return await harness.finish(replica, asked)


def billed(rounds: Sequence[Round]) -> list[int]:
    """Returns the tokens that were read from the cache, the tokens that were written to it, and all other tokens."""
    return [sum(round.usage[kind] for round in rounds) for kind in _KINDS]


def share_read(rounds: Sequence[Round]) -> float:
    """Returns the percentage of tokens that were read from the cache."""
    read, *others = billed(rounds)
    return 100 * read / (read + sum(others))


def caching(site: Site) -> Rows:
    configure_logging("critical")
    with new_database(site.database.url) as database:
        upgrade(database.url)
        below, at = asyncio.run(_both(database.url))
    calls = f"calls 2 to {ROUNDS + 1}"
    return {
        "the first call": (*billed(below[:1]), share_read(below[:1]), None),
        calls: (*billed(below[1:]), share_read(below[1:]), TARGET),
        f"{calls}, the last one told to use no tools": (*billed(at[1:]), share_read(at[1:]), None),
    }


async def _both(url: str) -> tuple[Sequence[Round], Sequence[Round]]:
    async with connect(url, size=4) as database:
        harness = Harness(url, database)
        return (await turn_of_ten_rounds(harness)).rounds, (await turn_of_ten_rounds(harness, ROUNDS)).rounds
