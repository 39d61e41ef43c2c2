"""Commands for the keys of secrets: their state, a new master key, and the encryption of rows from before."""

from turnstream.extension import Extension

EXTENSION = Extension(
    "keys",
    "the change of the master key, and the encryption of secrets from before it",
    commands={"keys": "turnstream.extensions.keys.command"},
)
