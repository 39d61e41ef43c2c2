"""The table of jobs that are stopped elsewhere."""

from collections.abc import Mapping
from typing import Final

from turnstream.storage.ownership import Ownership, owned

TABLES: Final[Mapping[str, Ownership]] = {
    # Jobs that were stopped, or deleted, while they continued elsewhere: until their tools have stopped the work. The
    # turn may be gone.
    "stopped_jobs": owned("owner", closed=True),
}
