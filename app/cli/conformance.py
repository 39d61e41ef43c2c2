"""`turnstream conformance`: examines clients, proxies and servers of other makes, and our own."""

import asyncio
import sys
from pathlib import Path
from typing import Literal

import click

from app.conformance import client as clients
from app.conformance.report import Report

Format = Literal["text", "json", "junit"]

_FORMAT = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "junit"]),
    default="text",
    show_default=True,
    help="Form of the report: text, JSON, or JUnit XML.",
)
_OUTPUT = click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="File for the report.")


@click.group()
def conformance() -> None:
    """Examine a client, a proxy or a server against the protocol (docs/protocol.md).

    \b
    Exit codes: 0  every promise that was examined is held
                1  one is not
                2  the command was used wrongly
    """


@conformance.command()
@click.argument("command", required=False)
@click.option("--post", help="Command of a client that sends a message and follows its answer.")
@click.option("--port", default=0, show_default="a free one", help="Port of the scripted server.")
@click.option("--patience", default=60.0, show_default=True, help="Seconds that the client may take for a scenario.")
@_FORMAT
@_OUTPUT
def client(
    command: str | None, post: str | None, port: int, patience: float, form: Format, output: Path | None
) -> None:
    """Examine a client of streams.

    COMMAND starts the client, once for each scenario. {url}, {chat} and {turn} in it are replaced. The client follows
    the turn to its end and prints it as JSON, with `status` and `blocks`.

    Without COMMAND a scripted server waits for a client that reads GET /scenarios, goes through them, and posts what it
    assembled to /reports/CHAT.
    """
    if post and not command:
        raise click.UsageError("--post needs a COMMAND too, of a client that follows a turn.")

    async def run() -> Report:
        async with clients.scripted_server(port, patience) as (url, server):
            if command is None:
                click.echo(f"The scenarios are at {url}/scenarios.", err=True)
                return await clients.examine(url, server, clients.visitor, "of its own")
            return await clients.examine(url, server, clients.command(command, post), command)

    _print(asyncio.run(run()), form, output)


def _print(report: Report, form: Format, output: Path | None) -> None:
    forms = {"text": report.as_text, "json": report.as_json, "junit": report.as_junit}
    text = forms[form]()
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
    sys.exit(report.exit_code)
