"""The table of sign-ins at MCP servers."""

from collections.abc import Mapping
from typing import Final

from turnstream.storage.ownership import Ownership, owned

TABLES: Final[Mapping[str, Ownership]] = {
    # Sign-ins of owners to MCP servers, including started sign-ins, and servers of owners. `tokens` and `pending` are
    # encrypted. `version` counts the changes of the tokens. A replica claims the row for a while before it refreshes
    # the tokens. `tools` has digests of the server's tools that the owner has accepted. `state` is the SHA-256 of the
    # `state` in the request to the issuer.
    "sign_ins": owned("owner", "state"),
}
