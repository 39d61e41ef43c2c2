"""The proxies of docs/deploy in front of the replicas of a test."""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.faults.replicas import ROOT
from tests.support.programs import path_of
from tests.support.server_process import free_port

DEPLOY = ROOT / "docs/deploy"
# nginx needs folders for bodies that do not fit into memory. Debian's folders belong to root.
_FOLDERS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


@dataclass(frozen=True)
class Line:
    """A line of the access log: the request, and the replicas that nginx tried, in their order."""

    request: str
    status: int
    upstreams: tuple[str, ...]
    upstream_statuses: tuple[str, ...]


@dataclass(frozen=True)
class Proxy:
    url: str
    folder: Path

    def lines(self) -> list[Line]:
        found = re.findall(r'"(.*?)" (\d+) .* upstream=(.*) status=(.*) id=', (self.folder / "access.log").read_text())
        return [
            Line(request, int(status), tuple(addresses.split(", ")), tuple(statuses.split(", ")))
            for request, status, addresses, statuses in found
        ]

    def asked(self, path: str) -> list[Line]:
        return [line for line in self.lines() if path in line.request]


@asynccontextmanager
async def haproxy(folder: Path, addresses: Sequence[str], file: str = "haproxy.cfg") -> AsyncIterator[str]:
    """Starts HAProxy, and yields its URL."""
    port = free_port()
    changes = {
        "maxconn 20000": "maxconn 1000",
        "    bind :8000\n": f"    bind 127.0.0.1:{port}\n",
        **_replicas(addresses),
    }
    configuration = folder / f"haproxy-{port}.cfg"
    configuration.write_text(_changed(DEPLOY / file, changes))
    async with _running(port, folder, path_of("HAProxy"), "-db", "-f", str(configuration)) as url:
        yield url


@asynccontextmanager
async def caddy(folder: Path, addresses: Sequence[str]) -> AsyncIterator[str]:
    """Starts Caddy, and yields its URL."""
    port = free_port()
    changes = {"\n:8000 {": f"\nhttp://127.0.0.1:{port} {{", **_replicas(addresses)}
    configuration = folder / f"Caddyfile-{port}"
    configuration.write_text(_changed(DEPLOY / "Caddyfile", changes))
    command = (path_of("Caddy"), "run", "--adapter", "caddyfile", "--config", str(configuration))
    async with _running(port, folder, *command) as url:
        yield url


def _replicas(addresses: Sequence[str]) -> dict[str, str]:
    return {f"server-{number}:8000": address for number, address in enumerate(addresses, 1)}


@asynccontextmanager
async def _running(port: int, folder: Path, *command: str) -> AsyncIterator[str]:
    log = folder / f"proxy-{port}.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=output, stderr=output, env={"HOME": str(folder), "PATH": os.environ["PATH"]}
        )
    try:
        await _listening(process, port, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@asynccontextmanager
async def nginx(
    folder: Path,
    addresses: Sequence[str],
    read_timeout: int = 60,
    file: str = "nginx.conf",
    further: str = "",
    certificate: Path | None = None,
) -> AsyncIterator[Proxy]:
    """Starts nginx. The directives in `further` follow the port. With a `certificate`, whose key is in the same file,
    the commented directives are active: TLS, HTTP/2 and limits.
    """
    program = path_of("nginx")
    port = free_port()
    folder = folder / f"nginx-{port}"
    folder.mkdir()
    configuration = _configuration(file, port, folder, addresses, read_timeout, further)
    if certificate is not None:
        configuration = _with_tls(configuration, port, certificate)
    (folder / "nginx.conf").write_text(configuration)
    user = "user root; " if os.geteuid() == 0 else ""
    main = f"{user}daemon off; pid {folder}/nginx.pid;"
    process = await asyncio.create_subprocess_exec(
        program, "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(folder / "nginx.conf"), "-g", main
    )
    try:
        await _listening(process, port, folder / "error.log")
        yield Proxy(f"{'https' if certificate else 'http'}://127.0.0.1:{port}", folder)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def _configuration(
    file: str, port: int, folder: Path, addresses: Sequence[str], read_timeout: int, further: str
) -> str:
    folders = "".join(f"\n    {name}_temp_path {folder}/{name};" for name in _FOLDERS)
    changes = {
        r"listen 80;": f"listen 127.0.0.1:{port}; {further}",
        r"proxy_read_timeout 60s;": f"proxy_read_timeout {read_timeout}s;",
        r"/dev/stdout": f"{folder}/access.log",
        r"/dev/stderr": f"{folder}/error.log",
        r"http {": f"http {{{folders}",
        **_replicas(addresses),
    }
    return _changed(DEPLOY / file, changes)


def _with_tls(configuration: str, port: int, certificate: Path) -> str:
    changes = {
        f"listen 127.0.0.1:{port};": "",
        "listen 443": f"listen 127.0.0.1:{port}",
        "/etc/nginx/tls/fullchain.pem": str(certificate),
        "/etc/nginx/tls/privkey.pem": str(certificate),
    }
    return _replaced(re.sub(r"^( *)#(?! )", r"\1", configuration, flags=re.MULTILINE), changes)


def _changed(configuration: Path, changes: Mapping[str, str]) -> str:
    return _replaced(configuration.read_text(), changes)


def _replaced(text: str, changes: Mapping[str, str]) -> str:
    for what, instead in changes.items():
        assert text.count(what) == 1, f"the file has no single {what!r} any more"
        text = text.replace(what, instead)
    return text


async def _listening(process: asyncio.subprocess.Process, port: int, log: Path) -> None:
    async with asyncio.timeout(60):
        while True:
            assert process.returncode is None, (
                f"the proxy ended with {process.returncode}: {log.exists() and log.read_text()}"
            )
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return
