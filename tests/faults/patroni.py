"""A Patroni cluster of two members, each configured by docs/deploy/patroni.yml, with an etcd of one node."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import psutil
import yaml  # type: ignore[import-untyped]

from tests.faults.replicas import ROOT
from tests.support.programs import path_of
from tests.support.server_process import free_port
from turnstream.extensions.embedded.account import Account, account_for
from turnstream.extensions.embedded.cluster import program

EXAMPLE = ROOT / "docs/deploy/patroni.yml"
# The times of the example suit loaded machines: with them, a test would wait half a minute for a failover.
_QUICK = {"ttl": 8, "loop_wait": 1, "retry_timeout": 3}
_PASSWORD = "change-me"


@dataclass
class Member:
    name: str
    folder: Path
    rest: str
    port: int
    process: asyncio.subprocess.Process | None = None

    @property
    def postgres(self) -> int:
        """The process id of the member's Postgres."""
        return int((self.folder / "data/postmaster.pid").read_text().split()[0])

    async def kill(self) -> None:
        """Kills Patroni, Postgres and all its processes with SIGKILL, as when the machine crashes."""
        assert self.process is not None
        server = psutil.Process(self.postgres)
        for each in (psutil.Process(self.process.pid), server, *server.children()):
            each.kill()
        await self.process.wait()
        self.process = None

    async def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            await self.process.wait()


@dataclass
class Patroni:
    """The cluster. Its `url` names both members."""

    members: Mapping[str, Member]
    client: httpx2.AsyncClient
    url: str = field(init=False)

    def __post_init__(self) -> None:
        hosts = ",".join(f"127.0.0.1:{member.port}" for member in self.members.values())
        self.url = f"postgresql://turnstream:{_PASSWORD}@{hosts}/turnstream?target_session_attrs=read-write"

    async def until(self, condition: Callable[[Mapping[str, str]], bool]) -> Mapping[str, str]:
        """Returns the roles of the running members, as Patroni names them, once the roles meet the condition."""
        while not condition(roles := await self._roles()):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        return roles

    async def until_whole(self) -> Member:
        """Returns the primary, once the other member is its synchronous standby."""
        roles = await self.until(lambda roles: sorted(roles.values()) == ["leader", "sync_standby"])
        return self.members[next(name for name, role in roles.items() if role == "leader")]

    async def switch_over(self, primary: Member) -> None:
        response = await self.client.post(
            f"{primary.rest}/switchover", json={"leader": primary.name}, auth=("patroni", _PASSWORD)
        )
        assert response.status_code == 200, response.text

    async def _roles(self) -> Mapping[str, str]:
        for member in self.members.values():
            try:
                listed = (await self.client.get(f"{member.rest}/cluster")).json()["members"]
            except httpx2.TransportError:
                continue
            return {each["name"]: each["role"] for each in listed if each["state"] in {"running", "streaming"}}
        return {}


@asynccontextmanager
async def patroni(folder: Path) -> AsyncIterator[Patroni]:
    account = account_for(folder / "none", path_of("Patroni"), folder)
    etcd_port = free_port()
    etcd = await _start_etcd(folder, account, etcd_port)
    members = {}
    for name in ("one", "two"):
        home = folder / name
        home.mkdir()
        account.own(home)
        members[name] = Member(name, home, f"http://127.0.0.1:{free_port()}", free_port())
    async with httpx2.AsyncClient(timeout=30) as client:
        cluster = Patroni(members, client)
        try:
            for member in members.values():
                await _start(member, account, etcd_port)
            await _make_database(await cluster.until_whole())
            yield cluster
        finally:
            for member in members.values():
                await member.stop()
            etcd.terminate()
            await etcd.wait()


async def _start_etcd(folder: Path, account: Account, port: int) -> asyncio.subprocess.Process:
    home = folder / "etcd"
    home.mkdir()
    account.own(home)
    own, peers = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}"
    with (folder / "etcd.log").open("ab") as log:
        return await asyncio.create_subprocess_exec(
            *account.prefix,
            path_of("etcd"),
            *(f"--data-dir={home}/data", f"--listen-client-urls={own}", f"--advertise-client-urls={own}"),
            *(f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}"),
            f"--initial-cluster=default={peers}",
            stdout=log,
            stderr=log,
        )


async def _start(member: Member, account: Account, etcd_port: int) -> None:
    configuration = member.folder / "patroni.yml"
    configuration.write_text(yaml.safe_dump(_configured(member, etcd_port)))
    with (member.folder / "patroni.log").open("ab") as log:
        member.process = await asyncio.create_subprocess_exec(
            *(*account.prefix, path_of("Patroni"), str(configuration)), cwd=member.folder, stdout=log, stderr=log
        )


def _configured(member: Member, etcd_port: int) -> dict[str, Any]:
    """Returns the example with the values of this member, and with short times."""
    example: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    example["name"] = member.name
    example["etcd3"]["hosts"] = [f"127.0.0.1:{etcd_port}"]
    address = member.rest.removeprefix("http://")
    example["restapi"].update(listen=address, connect_address=address)
    example["bootstrap"]["dcs"].update(_QUICK)
    example["postgresql"].update(
        listen=f"127.0.0.1:{member.port}",
        connect_address=f"127.0.0.1:{member.port}",
        data_dir=str(member.folder / "data"),
        bin_dir=str(Path(program("postgres")).parent),
        pgpass=str(member.folder / "pgpass"),
        parameters={"unix_socket_directories": ""},
    )
    return example


async def _make_database(primary: Member) -> None:
    connection = await asyncpg.connect(f"postgresql://postgres:{_PASSWORD}@127.0.0.1:{primary.port}/postgres")
    await connection.execute("SET synchronous_commit = remote_apply")  # the commits also wait for the standby
    await connection.execute(f"CREATE ROLE turnstream LOGIN PASSWORD '{_PASSWORD}'")
    await connection.execute("CREATE DATABASE turnstream OWNER turnstream")
    await connection.close()
