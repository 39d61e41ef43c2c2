"""The table of jobs whose work elsewhere must be stopped."""

from collections.abc import Mapping
from typing import Final

from turnstream.storage.ownership import Ownership, owned

TABLES: Final[Mapping[str, Ownership]] = {
    # Jobs that were stopped or deleted while they continued elsewhere. A row exists until the tool of the job has
    # stopped the work, even if the turn is deleted.
    "stopped_jobs": owned("owner", closed=True),
}
