"""The commands for tokens, and for the erasure of owners."""

from turnstream.extension import Extension

EXTENSION = Extension(
    "owner_commands",
    "the commands for tokens, and for the erasure of owners",
    commands={
        "tokens": "turnstream.extensions.owner_commands.tokens",
        "owners": "turnstream.extensions.owner_commands.owners",
    },
)
