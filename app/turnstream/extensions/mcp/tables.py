"""The table of sign-ins at MCP servers."""

from collections.abc import Mapping
from typing import Final

from turnstream.storage.ownership import Ownership, owned

TABLES: Final[Mapping[str, Ownership]] = {
    # Sign-ins of owners to MCP servers, including started ones, and servers of owners. `tokens` and `pending` are
    # encrypted. `version` counts the tokens of a row: the refreshing replica holds the row for a while. `tools` are
    # digests of the server's tools that the owner has accepted. `state`: SHA-256 of the `state` of the request to the
    # issuer.
    "sign_ins": owned("owner", "state"),
}
