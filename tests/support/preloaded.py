"""Imports all modules that `turnstream serve` imports before its first answer."""

from turnstream.cli import commands
from turnstream.extension import installed

command = commands.get_command(None, "serve")  # type: ignore[arg-type]
for extension in installed().values():
    extension.calls()
