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
    with pytest.raises(ConfigError, match=r"^TURNSTREAM_PROT is not a setting; did you mean TURNSTREAM_PORT\?$"):
        read_settings()


def test_a_misspelt_name_is_refused_in_the_file_too(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TURNSTREAM_PROT=9000\n")
    with pytest.raises(ConfigError, match=r"^\.env: TURNSTREAM_PROT is not a setting; did you mean TURNSTREAM_PORT\?$"):
        read_settings()


def test_the_file_may_hold_settings_of_the_client_and_foreign_variables(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(
        "TURNSTREAM_TOKEN=ts_1\nTURNSTREAM_URL=http://x\nSECRET_OF_A_TOOL=1\nTURNSTREAM_PORT=9000\n"
    )
    assert read_settings().port == 9000


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("PORT", "http", "TURNSTREAM_PORT must be a whole number."),
        ("PORT", "65536", "TURNSTREAM_PORT must be at most 65535."),
        ("LEASE", "0", "TURNSTREAM_LEASE must be greater than 0."),
        ("RECOVERY", "hope", "TURNSTREAM_RECOVERY must be 'retry' or 'continue'."),
        ("CONTINUE_AFTER_TOOLS", "perhaps", "TURNSTREAM_CONTINUE_AFTER_TOOLS must be true or false."),
        ("WEBHOOK_URL", "here", "TURNSTREAM_WEBHOOK_URL must be a URL, such as https://x.org."),
        (
            "QQQ",
            "1",
            "TURNSTREAM_QQQ is not a setting; `turnstream doctor` lists all settings.",
        ),
    ],
)
def test_a_wrong_setting_is_refused_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, sentence: str
) -> None:
    monkeypatch.setenv(f"TURNSTREAM_{name}", value)
    with pytest.raises(ConfigError) as refused:
        read_settings()
    assert str(refused.value) == sentence
