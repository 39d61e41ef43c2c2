"""The table of jobs to stop elsewhere."""

from collections.abc import Mapping
from typing import Final

from turnstream.storage.ownership import Ownership, owned

TABLES: Final[Mapping[str, Ownership]] = {
    # Jobs that were stopped, or deleted, after they had continued elsewhere: until their tools have stopped the work.
    # The turn may be deleted.
    "stopped_jobs": owned("owner", closed=True),
}
