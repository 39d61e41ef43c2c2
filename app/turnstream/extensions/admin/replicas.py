"""The commands `turnstream replicas` and `turnstream drain`."""

import asyncio
from uuid import UUID

import click

from turnstream.extension import read_settings
from turnstream.extensions.admin.operations import Operations, ReplicaState
from turnstream.libraries.command_tables import print_table
from turnstream.setup.databases import open_present_database

_COLUMNS = ("replica", "address", "state", "lease", "running", "since")


@click.command()
def replicas() -> None:
    """List the replicas, with what is left of their leases.

    Leases are in seconds, and times are in UTC.
    """

    async def find() -> list[ReplicaState]:
        async with open_present_database(read_settings()) as database:
            return list(await Operations(database).replicas())

    print_table([_COLUMNS, *map(_cells, asyncio.run(find()))])


def _cells(each: ReplicaState) -> list[str]:
    lease, since = f"{each.lease_left:.0f}", f"{each.since:%Y-%m-%d %H:%M}"
    return [str(each.id), each.address, each.state, lease, str(each.running), since]


@click.command()
@click.argument("replica", type=click.UUID)
def drain(replica: UUID) -> None:
    """Let REPLICA take no more turns.

    After the grace period, REPLICA puts its open turns back into the queue. The process keeps running.
    """

    async def order() -> ReplicaState:
        async with open_present_database(read_settings()) as database:
            return await Operations(database).drain(replica)

    click.echo(f"{asyncio.run(order()).address} drains.")
