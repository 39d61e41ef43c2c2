"""Another PostgreSQL for the servers that tests start, in place of the embedded one. POSTGRES_PROGRAMS is the folder of
its programs, such as /usr/lib/postgresql/15/bin.
"""

import os
from pathlib import Path

from turnstream.extensions.embedded import cluster

PROGRAMS = os.environ.get("POSTGRES_PROGRAMS")
# The options of the wheel include a locale provider that exists since version 17.
_INITDB = ("--username=postgres", "--auth-local=trust", "--auth-host=reject", "--encoding=UTF8", "--locale=C.UTF-8")


def use_other_postgres() -> None:
    """Must be called before the import of the modules of tests."""
    if PROGRAMS is not None:
        folder = Path(PROGRAMS)
        vars(cluster).update(program=lambda name: str(folder / name), _INITDB=_INITDB)
