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

_PIPE_WIDTH = 160  # columns of the table when the output is not a terminal


@click.command()
@click.argument("questions", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--first", multiple=True, metavar="NAME=VALUE", help="A setting of the first run; repeatable.")
@click.option("--second", multiple=True, metavar="NAME=VALUE", help="A setting of the second run; repeatable.")
@click.option("--at-once", type=click.IntRange(min=1), default=4, show_default=True, help="Turns that run at once.")
@click.option("--json", "print_json", is_flag=True, help="Print JSON.")
@click.option("--server", envvar="TURNSTREAM_URL", help="URL of the server.  [default: the one on this machine]")
@click.option("--token", envvar="TURNSTREAM_TOKEN", help="Token that says who you are, if the server asks for one.")
def compare(
    questions: Path,
    first: tuple[str, ...],
    second: tuple[str, ...],
    at_once: int,
    print_json: bool,
    server: str | None,
    token: str | None,
) -> None:
    """Ask a server the same questions under two settings.

    The results of both are printed as a table. QUESTIONS is a text file with one question per line, or a TOML file with
    a list `questions` and tables [first] and [second]. Each question is asked in a new chat.

    \b
    Settings: model=NAME  tools=NAME,NAME  max_rounds=3  params.max_tokens=500
    and every other member of the POST of a turn.
    """
    plan = read_plan(questions, first, second)
    found = asyncio.run(_compare(Client(server or local_server_url(), token), plan, at_once))
    if print_json:
        click.echo(msgspec.json.format(msgspec.json.encode(as_json(plan, found)), indent=2))
    else:
        console = Console(highlight=False)
        if not console.is_terminal:
            console.width = max(console.width, _PIPE_WIDTH)
        console.print(table_of(plan, found))


async def _compare(client: Client, plan: Plan, at_once: int) -> Mapping[str, Sequence[Result]]:
    """Runs both settings at the same time, so that a busy provider slows both alike."""
    slots = asyncio.Semaphore(at_once)

    async def ask(question: str, side: str) -> Result:
        options = {"chat": {"title": f"compare: {side}"}, **plan.sides[side]}
        async with slots:
            exchange = await client.post_turn(None, question, None, str(uuid4()), options)
            turn: Json = exchange["assistant_turn"]
            ids, state = (turn["chat_id"], turn["id"]), Assembler.of(turn)
            async for event in TurnFollower(client, *ids, turn["cursor"]).events():
                state.apply(event.name, event.data)
                if state.waits:  # for a person, and nobody is there to answer
                    await client.cancel(*ids)
            return result_of(await client.turn(*ids))

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
