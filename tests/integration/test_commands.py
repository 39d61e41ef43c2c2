"""Commands that use the database, run as a person runs them."""

import asyncio
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.metadata import version
from pathlib import Path

import asyncpg
import pytest
import structlog
from click.testing import CliRunner

from tests.support.reference import command_paths
from tests.support.server_process import clean_environment, turnstream
from turnstream.cli import MODULES, commands
from turnstream.domain.errors import ConfigError
from turnstream.domain.identity import arriving_name
from turnstream.extensions.admin.statement_list import statements
from turnstream.storage.migrations import downgrade, oldest_in_versions

# A limit that only stops endless processes. The default of a minute would also have to cover the start of Postgres, the
# migrations and up to three processes, which take longer on a busy machine.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Restores the logging of the test process, which a command configures for its own process."""
    before, handlers = structlog.get_config(), [*logging.root.handlers]
    yield
    structlog.configure(**before)
    logging.root.handlers[:] = handlers


ID = "01a202bd-8dfd-72b2-8d5a-4d95abe4a6bf"
# The arguments of each command that needs an existing database.
NEED_A_DATABASE: Sequence[tuple[str, ...]] = (
    ("turns",),
    ("why", ID),
    ("replicas",),
    ("drain", ID),
    ("audit",),
    ("audit", "export", "audit.jsonl"),
    ("audit", "verify", __file__),
    ("docs", "import", "."),
    ("encryption", "apply"),
    ("encryption", "rotate"),
    ("keys", "encrypt"),
    ("keys", "rotate"),
    ("keys", "status"),
    ("tokens", "list"),
    ("tokens", "delete", "ada"),
    ("owners", "list"),
    ("owners", "export", "ada", "ada.tar"),
    ("owners", "erase", "ada", "--yes"),
    ("owners", "erase", arriving_name("x" * 100), "--yes"),  # left by an unfinished move of the longest name
    ("owners", "move", "ada", "--to", "08", "--url", "postgresql://127.0.0.1:9/08"),
    ("replay", ID, "--recordings", "."),
    ("usage",),
)
# The commands that create a database, and the commands that need none.
NEED_NONE = {"serve", "migrate", "tokens create", "owners import", "chat", "compare", "statements", "doctor"}


def test_each_command_is_among_them() -> None:
    needing = {" ".join(each[:count]) for each in NEED_A_DATABASE for count in (1, 2)}
    paths = {path for path in command_paths() if not path.startswith("conformance ")}
    assert paths - needing == NEED_NONE


@pytest.mark.parametrize("arguments", NEED_A_DATABASE, ids=" ".join)
def test_commands_that_need_a_database_do_not_create_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.environ", clean_environment() | {"TURNSTREAM_CELL": "07"})
    done = CliRunner().invoke(commands, arguments)
    assert done.exit_code == 1
    assert f"There is no database in {tmp_path / '.data'}: change to the folder" in f"{done.exception} {done.output}"
    assert not (tmp_path / ".data").exists()


def test_token_commands_name_the_database_without_its_password(
    monkeypatch: pytest.MonkeyPatch, database_url: str, tmp_path: Path
) -> None:
    url = database_url.replace("postgresql://postgres@", "postgresql://postgres:hunter2@")
    assert "hunter2" in url
    done = turnstream(tmp_path, "tokens", "create", "Ada L. (phone)", "--owner", "ada@example.org", DATABASE_URL=url)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ts_")
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr.startswith("Created a token of ada@example.org in the database of DATABASE_URL (")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.environ", clean_environment() | {"DATABASE_URL": url})
    listed, migrated, checked = (
        CliRunner().invoke(commands, arguments) for arguments in (("tokens", "list"), ("migrate",), ("doctor",))
    )
    assert listed.stdout.startswith("Ada L. (phone)\tada@example.org\t")
    assert "DATABASE_URL (" in migrated.stdout
    assert "database     the database of DATABASE_URL (" in checked.stdout
    assert checked.exit_code == 0
    assert "hunter2" not in done.stderr + listed.output + migrated.output + checked.output


def test_the_version_is_that_of_the_package() -> None:
    done = CliRunner().invoke(commands, ["--version"])
    assert (done.exit_code, done.output) == (0, f"turnstream {version('turnstream')}\n")


def test_the_list_of_commands_describes_each_in_one_line() -> None:
    for group in ((), ("tokens",), ("owners",), ("docs",), ("conformance",)):
        help = CliRunner().invoke(commands, [*group, "--help"], terminal_width=80).output
        assert "..." not in help.partition("Commands:")[2]


class Hidden(MetaPathFinder):
    """Hides a package, as if it were not installed."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == self._package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize(
    ("command", "package"),
    [("chat", "turnstream_terminal"), ("chat", "turnstream_client"), ("conformance", "turnstream_conformance")],
)
def test_a_command_whose_distribution_is_not_installed_names_it(
    monkeypatch: pytest.MonkeyPatch, command: str, package: str
) -> None:
    for module in [*sys.modules]:
        if module in MODULES.values() or module.partition(".")[0] == package:
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [Hidden(package), *sys.meta_path])
    distribution = package.replace("_", "-")
    listed = CliRunner().invoke(commands, ["--help"], terminal_width=80)
    assert re.search(rf"^  {command} +Not installed: needs {distribution}\.$", listed.output, re.MULTILINE)
    for arguments in ([], ["--help"], ["--server", "http://127.0.0.1:9", "Hello"]):
        done = CliRunner().invoke(commands, [command, *arguments])
        assert isinstance(done.exception, ConfigError)
        assert str(done.exception) == (
            f"`turnstream {command}` needs the distribution {distribution}, which is not installed;"
            f" install it from app/{package} of turnstream's repository."
        )


@pytest.mark.parametrize("name", ["", " ", "a\tb", "a\nb", "x" * 101, " ada", "\u202eada"])
def test_an_unprintable_or_long_name_is_rejected(name: str) -> None:
    for arguments in (
        ("tokens", "create", name),
        ("tokens", "create", "ada", "--owner", name),
        ("docs", "import", ".", "--owner", name),
    ):
        done = CliRunner().invoke(commands, arguments)
        assert done.exit_code == 2
        assert "a name must have 1 to 100 printable characters" in done.output


@pytest.mark.parametrize("name", ["ada (arriving)", "ada (moved to 08)"])
def test_names_reserved_for_moves_are_refused_in_other_commands(name: str) -> None:
    for arguments in (
        ("tokens", "create", name),
        ("tokens", "create", "ada", "--owner", name),
        ("docs", "import", ".", "--owner", name),
        ("owners", "import", "-", "--owner", name),
        ("owners", "move", name, "--to", "08"),
    ):
        done = CliRunner().invoke(commands, arguments)
        assert done.exit_code == 2
        assert "moves between cells give such names" in " ".join(done.output.split())


def test_an_unknown_model_is_reported_before_a_database_is_created(tmp_path: Path) -> None:
    done = turnstream(tmp_path, "serve", TURNSTREAM_MODEL="nope")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "turnstream: TURNSTREAM_MODEL must be one of demo: there is no model 'nope' here.\n"
    assert not (tmp_path / ".data").exists()


async def test_every_statement_is_printed_as_psql_takes_it(database_url: str, tmp_path: Path) -> None:
    done = await asyncio.to_thread(turnstream, tmp_path, "statements", "--plan", DATABASE_URL=database_url)
    assert done.returncode == 0, done.stderr
    connection = await asyncpg.connect(database_url)
    await connection.execute(f"BEGIN; {done.stdout}")
    prepared = await connection.fetch(
        "SELECT name, parameter_types::text[] AS types FROM pg_prepared_statements WHERE from_sql"
    )
    await connection.close()
    planned = {id(each) for each in statements().values() if not each.sql.lstrip().startswith("LOCK")}
    assert len(prepared) == len(planned), "LOCK has no plan"
    (claim,) = (row["types"] for row in prepared if row["name"] == "runs_queue_claim_turns")
    assert claim == ["integer", "uuid", "bigint", "integer"]
    assert "ix_turns_queue" in done.stdout.partition("runs_queue_claim_turns")[2].partition("PREPARE")[0]


def test_statements_are_found_by_their_name_or_that_of_their_module(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    by_name = CliRunner().invoke(commands, ["statements", "OPEN_ACCOUNT"]).output
    assert by_name.startswith("-- owners.accounts.OPEN_ACCOUNT\n--   $1 ")
    assert by_name.count("PREPARE") == 1
    assert by_name in CliRunner().invoke(commands, ["statements", "accounts"]).output
    refused = CliRunner().invoke(commands, ["statements", "NONE"])
    assert str(refused.exception) == "There is no statement named NONE; `turnstream statements` prints all statements."
    downgrade(database_url, oldest_in_versions())
    older = CliRunner().invoke(commands, ["statements", "OPEN_ACCOUNT"])
    assert "run `turnstream migrate` first" in str(older.exception)
