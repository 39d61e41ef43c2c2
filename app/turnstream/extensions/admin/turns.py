"""The commands `turnstream turns` and `turnstream why`."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC
from typing import TypeVar
from uuid import UUID

import click

from turnstream.extension import read_settings, selected
from turnstream.libraries.command_tables import print_table
from turnstream.libraries.explanations.reasons import OpenJob, TurnState, reasons
from turnstream.libraries.explanations.rows import TurnStates
from turnstream.setup.databases import open_present_database
from turnstream.setup.plans import read_plans

T = TypeVar("T")

_COLUMNS = ("turn", "owner", "status", "age", "attempt", "replica", "stage", "silent", "tools", "readers", "waits for")


@click.command()
@click.option("--limit", default=100, show_default=True, help="The most turns that are listed.")
def turns(limit: int) -> None:
    """List the turns that have not ended, oldest first.

    Times are in seconds.
    """
    found = _with_states(lambda states: states.open(limit))
    print_table([_COLUMNS, *map(_cells, found)])


@click.command()
@click.argument("turn", type=click.UUID)
def why(turn: UUID) -> None:
    """Say why TURN does not move, or how it ended.

    The history of TURN is printed below, with times in UTC.
    """

    async def find(states: TurnStates) -> None:
        state = await states.of(turn)
        click.echo(f"{state.status}, attempt {state.attempt}, owner {state.owner}, chat {state.chat}")
        if state.replica is not None:
            reported = f"reported {state.reported:.0f} s ago" if state.activity else "which has reported nothing of it"
            click.echo(f"on the replica {state.replica}, {reported}")
        if state.declined:
            click.echo(f"declined by the replicas {', '.join(state.declined)}, which lack its model or a tool")
        for job in state.jobs:
            if job.replica is not None:
                click.echo(f"job {job.id} on the replica {job.replica}")
            if job.works is not None:
                click.echo(f"job {job.id}: the turn {job.works.id} in chat {job.works.chat}")
        if state.trace is not None:
            click.echo(f"trace {state.trace}")
        for sentence in reasons(state):
            click.echo(sentence)
        if state.recoveries:  # the row of a dead replica is deleted
            click.echo("The log event `replicas.gone` with this turn has the addresses of the replicas that died.")
        click.echo()
        for event in await states.life(turn):
            click.echo(f"{event.at.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}\t{event.what}")

    _with_states(find)


def _with_states(work: Callable[[TurnStates], Awaitable[T]]) -> T:
    settings = read_settings()
    most = read_plans(settings, selected(settings)).default.running_turns

    async def run() -> T:
        async with open_present_database(settings) as database:
            return await work(TurnStates(database, most))

    return asyncio.run(run())


def _cells(turn: TurnState) -> list[str]:
    activity = turn.activity
    is_gone = turn.status == "running" and (turn.lease_left is None or turn.lease_left < 0)
    return [
        str(turn.id),
        turn.owner,
        turn.status,
        f"{turn.seconds:.0f}",
        str(turn.attempt),
        f"{turn.replica or '-'}{' (gone)' if is_gone else ''}",
        (activity and activity.stage) or "-",
        "-" if turn.silent is None else f"{turn.silent:.0f}",
        ", ".join(f"{call.name} {call.seconds:.0f}" for call in turn.known_calls) or "-",
        str(turn.readers),
        ", ".join(
            [f"{ask.kind} of {ask.name} {ask.seconds:.0f}" for ask in turn.asks]
            + [f"job of {job.name} {_place_of(job)} {job.seconds:.0f}" for job in turn.jobs]
        )
        or _queued_for(turn),
    ]


def _queued_for(turn: TurnState) -> str:
    if turn.status != "queued":
        return "-"
    if turn.behind is not None:
        return f"turn {turn.behind}"
    if turn.owner_limit is not None and turn.owner_running >= turn.owner_limit:
        return "another turn of its owner"
    if len(turn.declined) >= turn.claiming:
        return "a replica" if not turn.claiming else "a replica with its model and tools"
    return "room on a replica" if turn.room == 0 else "-"


def _place_of(job: OpenJob) -> str:
    if job.child is not None:
        return f"by turn {job.child}"
    if not job.detached:
        return f"on {job.replica or '-'}"
    return "detached" if job.due is None else f"detached, due in {job.due:.0f},"
