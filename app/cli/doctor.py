"""`turnstream doctor`."""

import click
from pydantic import SecretStr

from app.cli.tokens import with_tokens
from app.config import Settings, read_settings
from app.domain.errors import TurnstreamError
from app.setup.models import default_model


@click.command()
def doctor() -> None:
    """Show every setting with its value, and check the database."""
    settings = read_settings()
    for name, field in Settings.model_fields.items():
        variable = getattr(field.validation_alias, "choices", [name])[0]
        value = getattr(settings, name)
        shown = "(not set)" if value is None else "(set)" if isinstance(value, SecretStr) else str(value)
        click.echo(f"{variable} = {shown}\n    {field.description}")
    click.echo(f"\nmodel: {default_model(settings)}")
    try:
        count = len(with_tokens(settings, lambda stored: stored.list()))
    except TurnstreamError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"database: reachable, up to date\ntokens: {count or 'none (local use only)'}")
