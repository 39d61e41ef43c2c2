"""Finds the account under which the embedded PostgreSQL runs. PostgreSQL refuses to run as root, so root runs it under
an account without rights.
"""

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, STDOUT

from turnstream.domain.errors import ConfigError

ELSEWHERE = "name another folder with TURNSTREAM_DATA_DIR, or your own server with DATABASE_URL"

_UNPRIVILEGED = ("postgres", "nobody")
# initdb and pg_ctl find other programs with access(2). Without this bit, access(2) ignores the capability that the
# account was granted.
_ALSO_ACCESS = "--securebits=+no_setuid_fixup"
_TRY = """
    "$0" --version >/dev/null || exit
    for folder; do test -x "$folder" || { echo "$folder is closed to it"; exit 1; }; done
"""


@dataclass(frozen=True, slots=True)
class Account:
    """An account of the operating system. `prefix` is put before a command that must run under this account. It is
    empty if this process already runs under the account.
    """

    uid: int
    gid: int
    prefix: tuple[str, ...] = ()

    def own(self, path: Path) -> None:
        if self.prefix:
            os.chown(path, self.uid, self.gid)


def account_for(cluster: Path, program: str, *folders: Path | str) -> Account:
    """Returns the account that owns `cluster`, if the folder exists, otherwise an account without rights. The account
    can run `program` and open `folders`.
    """
    owner = cluster.stat() if cluster.exists() else None
    if os.geteuid() != 0:
        if owner and owner.st_uid != os.geteuid():
            raise ConfigError(f"The folder {cluster} belongs to user {_name(owner.st_uid)}; {ELSEWHERE}.")
        return Account(os.geteuid(), os.getegid())
    if owner and owner.st_uid != 0:
        return _borrowed(owner.st_uid, owner.st_gid, program, folders)
    return _borrowed(*_unprivileged(), program, folders)


def _borrowed(uid: int, gid: int, program: str, folders: tuple[Path | str, ...]) -> Account:
    """Returns the account without any right of root, if PostgreSQL can run so. Otherwise, the account also gets root's
    right to open folders, such as /root.
    """
    setpriv = shutil.which("setpriv") or "setpriv"
    become = (setpriv, f"--reuid={uid}", f"--regid={gid}", "--clear-groups")
    enter_folders = ("--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override", _ALSO_ACCESS)
    obstacle = ""
    for prefix in (become, (*become, *enter_folders)):
        obstacle = _obstacle(*prefix, "/bin/sh", "-c", _TRY, program, *map(str, folders))
        if not obstacle:
            return Account(uid, gid, prefix)
    raise ConfigError(
        f"PostgreSQL does not run as root, and cannot be run as user {_name(uid)} ({obstacle});"
        f" run turnstream as an ordinary user, {ELSEWHERE}."
    )


def _unprivileged() -> tuple[int, int]:
    for name in _UNPRIVILEGED:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return entry.pw_uid, entry.pw_gid
    raise ConfigError(f"PostgreSQL does not run as root, and there is no user {_UNPRIVILEGED[-1]}; {ELSEWHERE}.")


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _obstacle(*command: str) -> str:
    try:
        subprocess.run(command, cwd="/", stdout=PIPE, stderr=STDOUT, text=True, errors="replace", check=True)
    except subprocess.CalledProcessError as error:
        return error.output.strip() or str(error)
    except OSError as error:
        return str(error)
    return ""
