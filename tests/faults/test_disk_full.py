"""A disk of Postgres is full for a while: the disk of the data, or the disk of the write-ahead log (WAL), which stops
Postgres.
"""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from secrets import token_hex

import asyncpg
import pytest

from tests.faults.fifty_turns import fifty_turns, finish, refusal
from tests.faults.postgres import Postgres, own_postgres
from tests.support.http_client import Client, said

pytestmark = pytest.mark.timeout(300)

MEGABYTES = 128


class Disk:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._filler = folder / "filler"

    def fill(self) -> None:
        with self._filler.open("wb", buffering=0) as filler, suppress(OSError):  # Postgres writes to the same disk
            while True:
                filler.write(bytes(65_536))

    def clear(self) -> None:
        self._filler.unlink()


async def test_while_the_disk_of_the_data_is_full_reads_continue_and_turns_wait(tmp_path: Path) -> None:
    async with _postgres_on_a_disk(tmp_path, "base") as (postgres, disk), fifty_turns(postgres.url, tmp_path) as site:
        disk.fill()
        site.go_on()
        for replica in site.replicas:
            async with Client(replica.url) as client:
                needs_new_pages = token_hex(200_000)
                await refusal(client, "PUT", f"/api/documents/{replica.port}.md", content=needs_new_pages)
                assert (await client.get("/api/chats")).status_code == 200
                assert (await client.get("/readyz")).status_code == 200
        await asyncio.sleep(2 * site.lease)  # the fault must last for longer than a lease
        disk.clear()
        await finish(site)


async def test_a_postgres_that_died_of_a_full_disk_for_its_log_and_is_started_again_costs_no_turn(
    tmp_path: Path,
) -> None:
    async with _postgres_on_a_disk(tmp_path, "pg_wal") as (postgres, disk), fifty_turns(postgres.url, tmp_path) as site:
        disk.fill()
        await _write_until_it_dies(postgres)
        site.go_on()
        for replica in site.replicas:
            async with Client(replica.url) as client:
                await refusal(client, "POST", "/api/turns", json=said("Is anybody there?"))
                await refusal(client, "GET", "/readyz")
        await asyncio.sleep(2 * site.lease)  # the fault must last for longer than a lease
        disk.clear()
        await postgres.leave()
        await postgres.start()
        await finish(site)


async def _write_until_it_dies(postgres: Postgres) -> None:
    with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        async with postgres.connected() as connection:
            while True:
                await connection.execute("SELECT pg_logical_emit_message(false, '', repeat('x', 1000000))")


@asynccontextmanager
async def _postgres_on_a_disk(folder: Path, part: str) -> AsyncIterator[tuple[Postgres, Disk]]:
    """Moves the folder `part` of the cluster to a small disk of its own."""
    async with own_postgres(folder) as postgres:
        await postgres.leave()
        with _moved_to_a_disk(postgres.folder / "postgres" / part) as disk:
            await postgres.start()
            try:
                yield postgres, disk
            finally:
                await postgres.leave()


@contextmanager
def _moved_to_a_disk(folder: Path) -> Iterator[Disk]:
    owner, before = folder.stat(), folder.rename(folder.parents[1] / f"{folder.name}-before")
    folder.mkdir()
    options = f"size={MEGABYTES}m,mode=0700,uid={owner.st_uid},gid={owner.st_gid}"
    mounted = _run("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder))
    if mounted.returncode:
        folder.rmdir()
        before.rename(folder)
        pytest.skip(f"it is not permitted to mount a disk here: {mounted.stdout.strip()}")
    try:
        _run("cp", "--archive", f"{before}/.", str(folder)).check_returncode()
        shutil.rmtree(before)
        yield Disk(folder)
    finally:
        _run("umount", "--lazy", str(folder)).check_returncode()


def _run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
