"""Errors of the client as sentences for the person at the terminal."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import click

from turnstream_client.errors import ClientError, ConnectionLost, NotTurnstream, RequestRejected, ServerUnreachable


def explained(error: ClientError) -> str:
    """Returns the text of the error, with a remedy if there is one."""
    match error:
        case ServerUnreachable():
            return f"{error}; start one with `turnstream serve`, or name another one with --server URL"
        case ConnectionLost():
            return f"{error}; try again in a moment"
        case NotTurnstream():
            return f"{error}; check --server and TURNSTREAM_URL"
        case RequestRejected(status=401):
            how = "Make one where the server runs with `turnstream tokens create NAME`"
            return f"{error}. {how}, then set TURNSTREAM_TOKEN or give --token"
        case _:
            return str(error)


class CommandFailed(click.ClickException):
    """Exits a command with code 1, after one sentence on standard error."""

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"turnstream: {self.message}", file, err=file is None)


@contextmanager
def client_errors_explained() -> Iterator[None]:
    """Raises CommandFailed with a remedy if the enclosed command raises an error of the client."""
    try:
        yield
    except ClientError as error:
        raise CommandFailed(explained(error)) from error
