"""The server reads the master key from its settings, or from the key file of an embedded database."""

import asyncio
import base64
import stat
import sys
from pathlib import Path

import pytest

from tests.support.server_process import clean_environment
from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.extension import installed, read_settings
from turnstream.libraries.secrets.master_keys import master_keys
from turnstream.libraries.secrets.sealing import MasterKeys, new_master_key

MAKE = """
from turnstream.extension import read_settings
from turnstream.libraries.secrets.master_keys import master_keys
print(master_keys(read_settings()).first.hex())
"""


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.environ", clean_environment())


def settings(**given: object) -> Settings:
    return Settings(_env_file=None, **given)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("", "there must be at least one key"),
        (" , ", "there must be at least one key"),
        ("tell-nobody", "key 1 must be base64 of 32 bytes"),
        (base64.b64encode(b"telltale").decode(), "key 1 must have 32 bytes, not 8"),
        (f"{new_master_key()},dGVsbHRhbGU=", "key 2 must have 32 bytes, not 8"),
        (f"{new_master_key()} tell!", "key 2 must be base64 of 32 bytes"),
    ],
    ids=["none", "separators", "no base64", "short", "second short", "second no base64"],
)
def test_a_wrong_key_is_named_and_not_shown(value: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        master_keys(settings(database_url="postgresql://x", master_key=value))
    (text,) = refused.value.args
    assert text == f"TURNSTREAM_MASTER_KEY: {sentence}."
    assert "tell" not in text


def test_a_file_has_the_keys_and_only_one_of_the_two_settings_may_be_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    new, old = new_master_key(), new_master_key()
    file = tmp_path / "keys"
    file.write_text(f"{new}\n{old}\n")
    monkeypatch.setenv("DATABASE_URL", "postgresql://x")
    monkeypatch.setenv("TURNSTREAM_MASTER_KEY_FILE", str(file))
    found = master_keys(read_settings())
    assert found is not None
    assert found.ids == (*MasterKeys.read(new).ids, *MasterKeys.read(old).ids)
    monkeypatch.setenv("TURNSTREAM_MASTER_KEY", new)
    with pytest.raises(ConfigError, match="TURNSTREAM_MASTER_KEY and TURNSTREAM_MASTER_KEY_FILE are both set"):
        read_settings()
    monkeypatch.delenv("TURNSTREAM_MASTER_KEY")
    monkeypatch.setenv("TURNSTREAM_MASTER_KEY_FILE", str(tmp_path / "gone"))
    with pytest.raises(ConfigError, match=r"TURNSTREAM_MASTER_KEY_FILE: .*gone cannot be read"):
        read_settings()


def test_a_named_database_has_a_key_only_by_a_setting() -> None:
    assert master_keys(settings(database_url="postgresql://x")) is None
    with pytest.raises(
        ConfigError, match="TURNSTREAM_MASTER_KEY must be set, because TURNSTREAM_REQUIRE_ENCRYPTION is"
    ):
        master_keys(settings(database_url="postgresql://x", require_encryption=True))


def test_a_server_without_the_extension_has_no_key_and_refuses_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [each for each in installed().values() if each.name != "keys"]
    assert master_keys(settings(), others) is None
    monkeypatch.setenv("TURNSTREAM_EXTENSIONS", "embedded")
    monkeypatch.setenv("TURNSTREAM_MASTER_KEY", new_master_key())
    with pytest.raises(ConfigError, match="TURNSTREAM_MASTER_KEY is a setting of the extension keys, which"):
        master_keys(read_settings())


async def test_an_embedded_database_has_one_key_however_many_processes_make_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert master_keys(settings(), make=False) is None
    environment = {**clean_environment(), "TURNSTREAM_DATA_DIR": str(tmp_path / "new" / "data")}
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", MAKE, env=environment, stdout=asyncio.subprocess.PIPE
        )
        for _ in range(4)
    ]
    ids = {(await process.communicate())[0] for process in processes}
    assert len(ids) == 1
    file = tmp_path / "new" / "data" / "master.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in file.parent.iterdir()] == ["master.key"]
    monkeypatch.setenv("TURNSTREAM_DATA_DIR", str(file.parent))
    found = master_keys(settings())
    assert found is not None
    assert found.first.hex().encode() in ids.pop()
    file.write_text("nonsense")
    with pytest.raises(ConfigError, match=r"master\.key: key 1 must have 32 bytes, not 6"):
        master_keys(settings())


def test_a_folder_in_which_no_key_can_be_made_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TURNSTREAM_DATA_DIR", str(tmp_path / "file"))
    with pytest.raises(
        ConfigError, match=r"The file of the master key, .*/file/master\.key, cannot be created or read"
    ):
        master_keys(settings())
