"""`turnstream compare`."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import uuid4

import click
import msgspec
from rich.console import Console

from app.cli.chat import local_server_url
from app.domain.errors import TurnstreamError
from app.lab.comparison import Plan, Result, as_json, read_plan, result_of, table_of
from app.terminal.assembler import Assembler, Json
from app.terminal.errors import TerminalError
from app.terminal.http_client import Client, TurnFollower

_NARROWEST = 160  # columns, where nobody says how wide the output is


@click.command()
@click.argument("questions", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--first", multiple=True, metavar="NAME=VALUE", help="a setting of the first run; may come often")
@click.option("--second", multiple=True, metavar="NAME=VALUE", help="the same, of the second")
@click.option("--at-once", type=click.IntRange(min=1), default=4, show_default=True, help="turns that run at one time")
@click.option("--json", "wants_json", is_flag=True, help="print JSON")
@click.option("--server", envvar="TURNSTREAM_URL", help="URL of the server  [default: the one on this machine]")
@click.option("--token", envvar="TURNSTREAM_TOKEN", help="who you are, where the server asks for it")
def compare(
    questions: Path,
    first: tuple[str, ...],
    second: tuple[str, ...],
    at_once: int,
    wants_json: bool,
    server: str | None,
    token: str | None,
) -> None:
    """Ask every question of a file under two settings, each in a new chat of a running server, and table what came.

    QUESTIONS has a question in each line; or it is a TOML file with a list `questions` and tables [first] and [second].

    \b
    Settings: model=NAME  tools=NAME,NAME  max_rounds=3  params.max_tokens=500
    and whatever else the POST of a turn takes.
    """
    plan = read_plan(questions, first, second)
    found = asyncio.run(_compare(Client(server or local_server_url(), token), plan, at_once))
    if wants_json:
        click.echo(msgspec.json.format(msgspec.json.encode(as_json(plan, found)), indent=2))
    else:
        console = Console(highlight=False)
        if not console.is_terminal:
            console.width = max(console.width, _NARROWEST)
        console.print(table_of(plan, found))


async def _compare(client: Client, plan: Plan, at_once: int) -> Mapping[str, Sequence[Result]]:
    """Both settings at the same time, so that a busy hour is one for both."""
    gate = asyncio.Semaphore(at_once)

    async def ask(question: str, side: str) -> Result:
        async with gate:
            return result_of(
                await _answer(client, question, {"chat": {"title": f"compare: {side}"}, **plan.sides[side]})
            )

    try:
        async with asyncio.TaskGroup() as group:
            asked = {side: [] for side in plan.sides}  # type: dict[str, list[asyncio.Task[Result]]]
            for question in plan.questions:
                for side, tasks in asked.items():
                    tasks.append(group.create_task(ask(question, side)))
    except* (TurnstreamError, TerminalError) as errors:
        raise errors.exceptions[0] from None
    finally:
        await client.aclose()
    return {side: [task.result() for task in tasks] for side, tasks in asked.items()}


async def _answer(client: Client, question: str, options: Json) -> Json:
    """The turn at its end. One that waits for a person has nobody to wait for."""
    exchange = await client.post_turn(None, question, None, str(uuid4()), options)
    turn: Json = exchange["assistant_turn"]
    place, state = (turn["chat_id"], turn["id"]), Assembler.of(turn)
    async for event in TurnFollower(client, *place, turn["cursor"]).events():
        state.apply(event.name, event.data)
        if state.waits:
            await client.cancel(*place)
    return await client.turn(*place)
