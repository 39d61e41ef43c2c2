"""`turnstream usage`."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import cast, get_args

import click

from turnstream.config import Settings
from turnstream.extension import read_settings
from turnstream.libraries.command_tables import print_table
from turnstream.libraries.usage_sums import UsageGroup, UsageSum, usage_sums
from turnstream.setup.databases import open_present_database

_DAY = click.DateTime(["%Y-%m-%d"])
_MOST = 1_000_000


@click.command()
@click.option("--by", default="owner,model", show_default=True, help="Groups: owner, day, model, chat; with commas.")
@click.option("--owner", help="Only what this owner has used.")
@click.option("--since", type=_DAY, help="The first day, of UTC.  [default: the first of the month]")
@click.option("--until", type=_DAY, help="The last day.  [default: today]")
def usage(by: str, owner: str | None, since: datetime | None, until: datetime | None) -> None:
    """List what owners have used and what it cost.

    The last line is the sum.
    """
    today = datetime.now(UTC).date()
    groups = [group.strip() for group in by.split(",")]
    if wrong := next((group for group in groups if group not in get_args(UsageGroup)), None):
        raise click.BadParameter(
            f"it must name some of {', '.join(get_args(UsageGroup))}, not {wrong!r}", param_hint="--by"
        )
    first = today.replace(day=1) if since is None else since.date()
    last = today if until is None else until.date()
    by_groups = cast("Sequence[UsageGroup]", groups)
    total, *rows = asyncio.run(_usage(read_settings(), owner, by_groups, first, last))
    figures = ["calls", "input", "cache_read", "cache_write", "output", "cost"]
    # A row of embeddings has no chat, so a dash is printed.
    lines = [[*(str(getattr(row, group) or "-") for group in groups), *_figures(row)] for row in rows]
    print_table([[*groups, *figures], *lines, ["total", *([""] * (len(groups) - 1)), *_figures(total)]])


async def _usage(
    settings: Settings, owner: str | None, by: Sequence[UsageGroup], since: date, until: date
) -> Sequence[UsageSum]:
    async with open_present_database(settings) as database:
        return await usage_sums(database, owner, by, since, until, _MOST)


def _figures(row: UsageSum) -> list[str]:
    """Returns the figures of a row. The cost has a plus if it excludes calls without a price, and is a dash if no call
    has a price.
    """
    tokens = row.tokens
    cost = "-" if row.cost is None else f"{row.cost:.6f}{'+' if row.unpriced else ''}"
    return [str(n) for n in (row.calls, tokens.input, tokens.cache_read, tokens.cache_write, tokens.output)] + [cost]
