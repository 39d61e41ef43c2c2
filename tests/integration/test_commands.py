"""The commands that go to the database, as they are called."""

import logging
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from click.testing import CliRunner

from app.cli import commands
from app.setup.samples import offer_samples
from app.storage.database import connect
from app.storage.documents import Documents
from tests.support.server_process import TURNSTREAM, clean_environment


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """A command decides how its process logs; the process of these tests has others to run."""
    before, handlers = structlog.get_config(), [*logging.root.handlers]
    yield
    structlog.configure(**before)
    logging.root.handlers[:] = handlers


def turnstream(folder: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [TURNSTREAM, *arguments],
        cwd=folder,
        env=clean_environment() | settings,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("docs", "import", "."),
        ("tokens", "list"),
        ("tokens", "delete", "ada"),
        ("doctor",),
        ("replay", "01a202bd-8dfd-72b2-8d5a-4d95abe4a6bf", "--recordings", "."),
    ],
)
def test_commands_that_need_a_database_do_not_create_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.environ", clean_environment())
    done = CliRunner().invoke(commands, arguments)
    assert done.exit_code == 1
    assert f"There is no database in {tmp_path / '.data'}: change to the folder" in f"{done.exception} {done.output}"
    assert not (tmp_path / ".data").exists()


async def test_a_folder_is_imported_and_skipped_files_are_named(database_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "config").write_text("hidden")
    (folder / ".env").write_text("SECRET=1")
    (folder / "notes.md").write_text("Tide.")
    (folder / "same.md").symlink_to("notes.md")
    (folder / "secret.md").symlink_to(".env")
    (folder / "data.bin").write_bytes(b"\xff")
    (folder / "gone.md").symlink_to("nowhere")
    (folder / "round.md").symlink_to("round.md")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "passwords.txt").write_text("secret")
    (folder / "link.txt").symlink_to("../outside/passwords.txt")
    (folder / "elsewhere").symlink_to("../outside")
    (folder / "again").symlink_to(".")

    done = turnstream(tmp_path, "docs", "import", "project", "--owner", "ada", DATABASE_URL=database_url)

    assert (done.returncode, done.stderr) == (0, "")
    first, *left_out = done.stdout.splitlines()
    assert first.startswith("2 documents imported for ada into the database of DATABASE_URL (")
    assert first.endswith(", 9 left out:")
    assert left_out == [
        "  .env: hidden",
        "  .git: hidden",
        "  again: a link to a folder",
        "  data.bin: not UTF-8 text",
        "  elsewhere: a link out of the folder",
        "  gone.md: no file",
        "  link.txt: a link out of the folder",
        "  round.md: no file",
        "  secret.md: hidden",
    ]
    async with connect(database_url, size=2) as database:
        assert [document.path for document in await Documents(database).tree("ada")] == ["notes.md", "same.md"]


async def test_the_first_imported_documents_replace_the_samples(database_url: str, tmp_path: Path) -> None:
    async with connect(database_url, size=2) as database:
        documents = Documents(database)
        await offer_samples(documents, "local")
        await documents.put("local", "handbook/setup.md", "My own words.")
        (tmp_path / "empty").mkdir()
        turnstream(tmp_path, "docs", "import", "empty", DATABASE_URL=database_url)
        assert len(await documents.tree("local")) == 6
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "a.md").write_text("A.")
        done = turnstream(tmp_path, "docs", "import", "mine", DATABASE_URL=database_url)
        assert done.stdout.startswith("1 document imported for local into ")
        assert [document.path for document in await documents.tree("local")] == ["a.md", "handbook/setup.md"]


def test_token_commands_name_the_database_without_its_password(database_url: str, tmp_path: Path) -> None:
    url = database_url.replace("postgresql://postgres@", "postgresql://postgres:hunter2@")
    assert "hunter2" in url
    done = turnstream(tmp_path, "tokens", "create", "Ada L. (phone)", "--owner", "ada@example.org", DATABASE_URL=url)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ts_")
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr.startswith("a token of ada@example.org, in the database of DATABASE_URL (")
    listed = turnstream(tmp_path, "tokens", "list", DATABASE_URL=url).stdout
    assert listed.startswith("Ada L. (phone)\tada@example.org\t")
    migrated = turnstream(tmp_path, "migrate", DATABASE_URL=url)
    assert "DATABASE_URL (" in migrated.stdout
    assert "hunter2" not in done.stderr + migrated.stdout


@pytest.mark.parametrize("name", ["", " ", "a\tb", "a\nb", "x" * 101, " ada", "\u202eada"])
def test_an_unprintable_or_long_name_is_rejected(name: str) -> None:
    for arguments in (
        ("tokens", "create", name),
        ("tokens", "create", "ada", "--owner", name),
        ("docs", "import", ".", "--owner", name),
    ):
        done = CliRunner().invoke(commands, arguments)
        assert done.exit_code == 2
        assert "wanted are 1 to 100 printable characters, without a blank at the ends" in done.output


def test_an_unknown_model_is_reported_before_a_database_is_created(tmp_path: Path) -> None:
    done = turnstream(tmp_path, "serve", TURNSTREAM_MODEL="nope")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "turnstream: TURNSTREAM_MODEL must be one of demo: there is no model 'nope' here.\n"
    assert not (tmp_path / ".data").exists()
