"""Settings as they are read from the environment and from a file `.env`."""

from pathlib import Path

import pytest

from app.config import read_settings
from app.domain.errors import ConfigError
from tests.support.server_process import clean_environment


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.environ", clean_environment())


def test_a_misspelt_name_is_refused_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTREAM_PROT", "9000")
    with pytest.raises(ConfigError, match=r"^TURNSTREAM_PROT is no setting; is TURNSTREAM_PORT meant\?$"):
        read_settings()


def test_a_misspelt_name_is_refused_in_the_file_too(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TURNSTREAM_PROT=9000\n")
    with pytest.raises(ConfigError, match=r"^\.env: TURNSTREAM_PROT is no setting; is TURNSTREAM_PORT meant\?$"):
        read_settings()


def test_what_is_the_clients_and_what_is_nobodys_may_stand_in_the_file(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(
        "TURNSTREAM_TOKEN=ts_1\nTURNSTREAM_URL=http://x\nSECRET_OF_A_TOOL=1\nTURNSTREAM_PORT=9000\n"
    )
    assert read_settings().port == 9000
