"""The cache of results."""

from collections.abc import Mapping
from typing import Final

from turnstream.storage.ownership import Ownership, owned

TABLES: Final[Mapping[str, Ownership]] = {
    # Answers of read-only tools with a declared lifetime. `key` is a SHA-256 of tool and input.
    "tool_cache": owned("owner"),
}
