"""The command line: `turnstream COMMAND`."""

import sys

import click

from app.cli import chat, doctor, documents, migrate, serve, tokens
from app.domain.errors import RequestRefused, TurnstreamError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def commands() -> None:
    """A chat backend that streams over SSE and never loses a conversation."""


commands.add_command(serve.serve)
commands.add_command(chat.chat)
commands.add_command(migrate.migrate)
commands.add_command(tokens.tokens)
commands.add_command(documents.docs)
commands.add_command(doctor.doctor)


def main() -> None:
    """What a person can mend is told in a sentence, not in a traceback."""
    try:
        commands()
    except TurnstreamError as error:
        detail = error.detail if isinstance(error, RequestRefused) else str(error)
        click.echo(f"turnstream: {detail}", err=True)
        sys.exit(1)
