"""`turnstream conformance`: checks clients, proxies and servers of any make, including our own."""

import asyncio
import sys
from pathlib import Path
from typing import Literal

import click

from turnstream_conformance import ag_ui as agents
from turnstream_conformance import client as clients
from turnstream_conformance import proxy as proxies
from turnstream_conformance import server as servers
from turnstream_conformance.report import Report

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
    """Examine a client, a proxy or a server.

    It is held to the promises of the protocol (docs/protocol.md).

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


@conformance.command()
@click.argument("url")
@click.option("--token", envvar="TURNSTREAM_TOKEN", show_envvar=True, help="Token of the owner whose chats are made.")
@click.option("--message", default=servers.MESSAGE, show_default=True, help="Message that the model is to answer.")
@click.option("--background", help="Message that makes the model call a tool in the background.")
@click.option("--patience", default=60.0, show_default=True, help="Seconds that an answer may take.")
@_FORMAT
@_OUTPUT
def server(
    url: str,
    token: str | None,
    message: str,
    background: str | None,
    patience: float,
    form: Format,
    output: Path | None,
) -> None:
    """Examine the server at URL, also through the proxies before it.

    About 30 messages are sent, in chats that are deleted at the end. With a real model they cost money.
    """
    _print(asyncio.run(servers.examine(url, token, message, patience, background)), form, output)


@conformance.command(name="ag-ui")
@click.argument("url")
@click.option("--token", envvar="TURNSTREAM_TOKEN", show_envvar=True, help="Token of the user whose threads are made.")
@click.option("--message", default=servers.MESSAGE, show_default=True, help="Message that the model is to answer.")
@click.option("--patience", default=60.0, show_default=True, help="Seconds that a run may take.")
@_FORMAT
@_OUTPUT
def ag_ui(url: str, token: str | None, message: str, patience: float, form: Format, output: Path | None) -> None:
    """Examine the agent of AG-UI at URL.

    It is held to the resumable profile (docs/ag-ui-profile.md). About 15 messages are sent, in threads that stay. With
    a real model they cost money.
    """
    _print(asyncio.run(agents.examine(url, token, message, patience)), form, output)


@conformance.command()
@click.argument("url")
@click.option("--listen", required=True, metavar="HOST:PORT", help="Address that the proxy passes requests on to.")
@click.option("--idle", default=31.0, show_default=True, help="Seconds without a byte that a stream must outlive.")
@click.option("--duration", default=60.0, show_default=True, help="Seconds that a stream with comments must outlive.")
@click.option("--heartbeat", default=15.0, show_default=True, help="Seconds between two comments.")
@_FORMAT
@_OUTPUT
def proxy(
    url: str, listen: str, idle: float, duration: float, heartbeat: float, form: Format, output: Path | None
) -> None:
    """Examine the proxy at URL, or any other program before a server.

    The command is the server behind it: let the proxy pass requests on to the address of --listen.
    """
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal():
        raise click.UsageError("--listen needs a host and a port, as in 127.0.0.1:8000.")
    report = asyncio.run(proxies.examine(url, host, int(port), idle, duration, heartbeat))
    _print(report, form, output)


def _print(report: Report, form: Format, output: Path | None) -> None:
    forms = {"text": report.as_text, "json": report.as_json, "junit": report.as_junit}
    text = forms[form]()
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
    sys.exit(report.exit_code)
