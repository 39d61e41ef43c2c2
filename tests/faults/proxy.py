"""The nginx of docs/deploy/nginx.conf, in front of the replicas of a test."""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.faults.replicas import ROOT
from tests.support.programs import path_of
from tests.support.server_process import free_port

CONFIGURATION = ROOT / "docs/deploy/nginx.conf"
# nginx needs folders for bodies that do not fit into memory, and Debian's belong to root.
_FOLDERS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


@dataclass(frozen=True)
class Line:
    """A line of the access log: the request, and the replicas that nginx tried, in order."""

    request: str
    status: int
    upstreams: tuple[str, ...]
    upstream_statuses: tuple[str, ...]


@dataclass(frozen=True)
class Proxy:
    url: str
    folder: Path

    def lines(self) -> list[Line]:
        found = re.findall(r'"(.*?)" (\d+) .* upstream=(.*) status=(.*)', (self.folder / "access.log").read_text())
        return [
            Line(request, int(status), tuple(addresses.split(", ")), tuple(statuses.split(", ")))
            for request, status, addresses, statuses in found
        ]

    def asked(self, path: str) -> list[Line]:
        return [line for line in self.lines() if path in line.request]


@asynccontextmanager
async def nginx(folder: Path, addresses: Sequence[str], read_timeout: int = 60) -> AsyncIterator[Proxy]:
    program = path_of("nginx")
    port = free_port()
    folder = folder / f"nginx-{port}"
    folder.mkdir()
    (folder / "nginx.conf").write_text(_configuration(port, folder, addresses, read_timeout))
    user = "user root; " if os.geteuid() == 0 else ""
    main = f"{user}daemon off; pid {folder}/nginx.pid;"
    process = await asyncio.create_subprocess_exec(
        program, "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(folder / "nginx.conf"), "-g", main
    )
    try:
        await _listening(process, port, folder)
        yield Proxy(f"http://127.0.0.1:{port}", folder)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def _configuration(port: int, folder: Path, addresses: Sequence[str], read_timeout: int) -> str:
    text = CONFIGURATION.read_text()
    folders = "".join(f"\n    {name}_temp_path {folder}/{name};" for name in _FOLDERS)
    changes = {
        r"listen 80;": f"listen 127.0.0.1:{port};",
        r"proxy_read_timeout 60s;": f"proxy_read_timeout {read_timeout}s;",
        r"/dev/stdout": f"{folder}/access.log",
        r"/dev/stderr": f"{folder}/error.log",
        r"http {": f"http {{{folders}",
        **{f"server-{number}:8000": address for number, address in enumerate(addresses, 1)},
    }
    for what, instead in changes.items():
        assert text.count(what) == 1, f"{CONFIGURATION} has no single {what!r} any more"
        text = text.replace(what, instead)
    return text


async def _listening(process: asyncio.subprocess.Process, port: int, folder: Path) -> None:
    async with asyncio.timeout(60):
        while True:
            log = folder / "error.log"
            assert process.returncode is None, (
                f"nginx ended with {process.returncode}: {log.exists() and log.read_text()}"
            )
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return
