"""Programs that some tests run, and how to install them. `python -m tests.support.programs` names the missing
programs.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class Program:
    """A program. `commands` are its possible names, of which one must exist; `package` is its package in Debian."""

    commands: tuple[str, ...]
    package: str

    @property
    def path(self) -> str | None:
        return next(filter(None, map(shutil.which, self.commands)), None)


PROGRAMS: Mapping[str, Program] = {
    "Chromium": Program(("chromium", "chromium-browser", "google-chrome"), "chromium"),
    "Firefox": Program(("firefox-esr",), "firefox-esr"),
    "nginx": Program(("nginx", "/usr/sbin/nginx"), "nginx"),
    "PgBouncer": Program(("pgbouncer", "/usr/sbin/pgbouncer"), "pgbouncer"),
    "HAProxy": Program(("haproxy", "/usr/sbin/haproxy"), "haproxy"),
    "Caddy": Program(("caddy",), "caddy"),
    "Patroni": Program(("patroni",), "patroni"),
    "etcd": Program(("etcd",), "etcd-server"),
    "promtool": Program(("promtool",), "prometheus"),
    "prometheus": Program(("prometheus",), "prometheus"),
    "buildah": Program(("buildah",), "buildah"),
    "debootstrap": Program(("debootstrap", "/usr/sbin/debootstrap"), "debootstrap"),
    "systemd-analyze": Program(("systemd-analyze",), "systemd"),
    "Node": Program(("node",), "nodejs"),
    "npm": Program(("npm",), "npm"),
    "git": Program(("git",), "git"),
    "curl": Program(("curl",), "curl"),
    "a C compiler": Program(("cc",), "gcc libc6-dev"),
}


@cache
def missing(*names: str) -> str | None:
    """Names the programs that this machine lacks, and the command that installs them. Returns None if no program is
    missing.
    """
    absent = [name for name in names if PROGRAMS[name].path is None]
    if not absent:
        return None
    packages = " ".join(PROGRAMS[name].package for name in absent)
    return f"not on this machine: {', '.join(absent)} (on Debian: apt-get install {packages})"


def path_of(name: str) -> str:
    """Returns the program's path. Call it only in tests that are marked `needs(name)`."""
    path = PROGRAMS[name].path
    assert path, missing(name)
    return path


if __name__ == "__main__":
    if line := missing(*PROGRAMS):
        print(f"Tests will be left out and named at the end, because programs are {line}")
