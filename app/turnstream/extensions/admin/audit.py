"""The command `turnstream audit`."""

import asyncio
from datetime import UTC

import click

from turnstream.extension import read_settings
from turnstream.libraries.audit_entries import newest_entries
from turnstream.libraries.command_values import OpenGroup
from turnstream.setup.databases import open_present_database
from turnstream.storage.rows import to_json

_PAGE = 500


@click.group(cls=OpenGroup, invoke_without_command=True)
@click.option("--owner", help="Entries about this owner.")
@click.option("--kind", help="Entries of this kind, such as `token.created`; or of all that begin so: `token`.")
@click.option("--days", type=click.FloatRange(min=0), default=30.0, show_default=True, help="How far back.")
@click.option("--limit", type=click.IntRange(min=1), help="The most entries.")
@click.pass_context
def audit(context: click.Context, owner: str | None, kind: str | None, days: float, limit: int | None) -> None:
    """Print the audit trail, newest entries first.

    The columns are time (UTC), kind, owner, actor, details.
    """

    async def run() -> None:
        left = limit
        async with open_present_database(read_settings()) as database:
            entries = await newest_entries(database, owner, kind, days, min(_PAGE, left or _PAGE))
            while entries:
                for each in entries:
                    at = each.created_at.astimezone(UTC).isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")
                    click.echo("\t".join((at, each.kind, each.owner or "-", each.actor or "-", to_json(each.detail))))
                left = None if left is None else left - len(entries)
                if left == 0:
                    return
                entries = await newest_entries(database, owner, kind, days, min(_PAGE, left or _PAGE), entries[-1].id)

    if context.invoked_subcommand is None:
        asyncio.run(run())
