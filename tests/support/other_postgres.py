"""Replaces the embedded PostgreSQL of the servers that tests start. POSTGRES_PROGRAMS is the folder with the programs
of the other PostgreSQL, such as /usr/lib/postgresql/15/bin.
"""

import os
from pathlib import Path

from turnstream.extensions.embedded import cluster

PROGRAMS = os.environ.get("POSTGRES_PROGRAMS")
# The options for the embedded PostgreSQL include a locale provider that only version 17 and later have.
_INITDB = ("--username=postgres", "--auth-local=trust", "--auth-host=reject", "--encoding=UTF8", "--locale=C.UTF-8")


def use_other_postgres() -> None:
    """Replaces the programs of the embedded PostgreSQL. It must be called before the modules of tests are imported."""
    if PROGRAMS is not None:
        folder = Path(PROGRAMS)
        vars(cluster).update(program=lambda name: str(folder / name), _INITDB=_INITDB)
