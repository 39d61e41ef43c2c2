"""The table of sign-ins at MCP servers."""

from collections.abc import Mapping
from typing import Final

from turnstream.storage.ownership import Ownership, owned

TABLES: Final[Mapping[str, Ownership]] = {
    # Sign-ins of owners to MCP servers, those that have begun, and servers of owners. `tokens` and `pending` are
    # sealed. `version` counts the tokens of a row: the replica that refreshes them holds the row for a while. `tools`
    # are digests of the tools of the server that the owner has accepted. `state`: SHA-256 of the `state` of the request
    # to the issuer.
    "sign_ins": owned("owner", "state"),
}
