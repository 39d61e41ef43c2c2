"""Archives of owners whose contents are encrypted: the file is in plain text, and an import encrypts the contents
again.
"""

from pathlib import Path

import pytest

from tests.extensions.encryption.test_codec import GET_FILES, codec_of, stored
from tests.support.harness import Harness
from turnstream.config import Settings
from turnstream.extensions.archives.commands import _export, _import
from turnstream.extensions.documents.store import Documents
from turnstream.extensions.owner_commands.owners import _erase
from turnstream.libraries.secrets.sealing import new_master_key
from turnstream.storage.contents import BYTES_MARK, TEXT_MARK
from turnstream.storage.owners.uploads import Uploads

pytestmark = pytest.mark.extensions("archives", "documents", "encryption")

TIDE = "Tide, été and a \u2028 line."


@pytest.mark.parametrize("sealed", [False, True], ids=["into_plain", "into_encrypted"])
async def test_an_archive_is_plain_and_its_import_is_as_the_server(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, sealed: bool
) -> None:
    monkeypatch.setattr("turnstream.extensions.owner_commands.owners.BELIEVED", 0)
    key, file, documents = new_master_key(), tmp_path / "ada.tar", Documents(harness.database)
    before = Settings(_env_file=None, database_url=harness.url, master_key=key, encrypt_texts=True)
    after = Settings(_env_file=None, database_url=harness.url, master_key=key, encrypt_texts=sealed)
    harness.database.codec = codec_of(harness, key)
    await documents.put("ada", "tide.md", TIDE)
    upload = await Uploads(harness.database).put("ada", "text/plain", b"pixels", "name.txt")
    await _export(before, "ada", file, None)
    assert b"tide.md" in file.read_bytes()
    assert TEXT_MARK.encode() not in file.read_bytes()
    assert TIDE.encode()[:4] in file.read_bytes()
    await _erase(before, "ada")
    counts = await _import(after, file, None, trusted=False)
    assert counts.made == {"documents": 1, "uploads": 1, "chats": 0, "recordings": 0}
    (text,) = await stored(harness)
    (row,) = await harness.database.rows(GET_FILES, owner="ada")
    assert text.startswith(TEXT_MARK) == sealed
    assert row["content"].startswith(BYTES_MARK) == sealed
    assert row["file_name"].startswith(TEXT_MARK) == sealed
    harness.database.codec = codec_of(harness, key, seals=sealed)
    assert await documents.read("ada", "tide.md") == TIDE
    assert [hit.path for hit in await documents.search("ada", "line", 5)] == ([] if sealed else ["tide.md"])
    found = await Uploads(harness.database).describe("ada", [upload.id])
    assert found[upload.id].name == "name.txt"
    assert await Uploads(harness.database).read("ada", upload.id) == ("text/plain", b"pixels")
