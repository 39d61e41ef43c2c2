"""The command `turnstream docs`."""

from pathlib import Path

import pytest

from tests.support.server_process import turnstream
from turnstream.extensions.documents.samples import offer_samples
from turnstream.extensions.documents.store import Documents
from turnstream.storage.database import connect

pytestmark = pytest.mark.timeout(300)  # see tests/integration/test_commands.py


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
    first, second, *left_out = done.stdout.splitlines()
    assert first.startswith("Imported 2 documents for ada into the database of DATABASE_URL (")
    assert second == "Left out 9:"
    assert left_out == [
        "  .env: hidden",
        "  .git: hidden",
        "  again: link to a folder",
        "  data.bin: not UTF-8 text",
        "  elsewhere: link out of the folder",
        "  gone.md: not a file",
        "  link.txt: link out of the folder",
        "  round.md: not a file",
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
        first, second = done.stdout.splitlines()
        assert first.startswith("Imported 1 document for local into ")
        assert second.startswith("Deleted the unchanged samples of the demo: ")
        assert second.count(".md") == 5
        assert "handbook/setup.md" not in second
        assert [document.path for document in await documents.tree("local")] == ["a.md", "handbook/setup.md"]
