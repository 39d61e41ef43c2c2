"""Encodes and checks the lines of an audit file, each of which has the hash of the line before it.

If a line is changed, removed or inserted, the next line no longer matches. If a forger rewrites all later lines, too,
the hash of the last line no longer matches the database's audit trail.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC
from hashlib import sha256
from typing import Any

from turnstream.domain.errors import ConfigError
from turnstream.libraries.audit_entries import AuditEntry

# The value of `previous` in the first line.
BEGIN = "0" * 64


@dataclass(frozen=True, slots=True)
class ChainedEntry:
    """A line of the file. `head` is the hash of the line, which the next line has as its `previous`. `size` is in
    bytes.
    """

    number: int
    entry: dict[str, Any]
    head: str
    size: int


def values_of(entry: AuditEntry) -> dict[str, Any]:
    """Returns the members of a line, with the types that they have after a round trip through JSON."""
    return {
        "id": entry.id,
        "created_at": entry.created_at.astimezone(UTC).isoformat(timespec="microseconds"),
        "kind": entry.kind,
        "owner": entry.owner,
        "actor": entry.actor,
        "detail": entry.detail,
    }


def line_of(entry: AuditEntry, previous: str) -> bytes:
    values = {**values_of(entry), "previous": previous}
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def hash_of(line: bytes) -> str:
    return sha256(line).hexdigest()


def chained(lines: Iterable[bytes]) -> Iterator[ChainedEntry]:
    """Yields the entries of a file. Raises ConfigError at the first line that does not continue the chain."""
    head, last = BEGIN, 0
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
            previous, id = values.pop("previous"), values["id"]
        except (ValueError, TypeError, AttributeError, LookupError):
            raise ConfigError(f"Line {number} is no entry of an audit file.") from None
        if previous != head:
            raise ConfigError(f"Line {number} does not continue the chain: this line or an earlier line was changed.")
        if not isinstance(id, int) or id <= last:
            raise ConfigError(
                f"Line {number} is out of order: its `id` must be greater than the `id` of the previous line."
            )
        head, last = hash_of(line), id
        yield ChainedEntry(number, values, head, len(line))
