"""Settings as they are read from the environment and from a file `.env`."""

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from tests.support.server_process import clean_environment
from turnstream.config import Section, Settings, secret_files, variables
from turnstream.domain.errors import ConfigError
from turnstream.extension import read_settings, sections
from turnstream.extensions.webhooks import WebhookSettings


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.environ", clean_environment())


def test_a_misspelt_name_is_refused_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTREAM_PROT", "9000")
    with pytest.raises(ConfigError, match=r"^TURNSTREAM_PROT is not a setting; did you mean TURNSTREAM_PORT\? Ext"):
        read_settings()


def test_a_misspelt_name_is_refused_in_the_file_too(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TURNSTREAM_PROT=9000\n")
    with pytest.raises(
        ConfigError, match=r"^\.env: TURNSTREAM_PROT is not a setting; did you mean TURNSTREAM_PORT\? Ext"
    ):
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
        ("REQUIRE_ENCRYPTION", "perhaps", "TURNSTREAM_REQUIRE_ENCRYPTION must be true or false."),
        (
            "MAX_TURN_BYTES",
            "1",
            "TURNSTREAM_MAX_TURN_BYTES is now twice TURNSTREAM_MAX_BODY_BYTES; remove it.",
        ),
        ("WEBHOOK_URL", "here", "TURNSTREAM_WEBHOOK_URL must be a URL, such as https://x.org."),
        (
            "QQQ",
            "1",
            "TURNSTREAM_QQQ is not a setting; `turnstream doctor --settings` lists all; extensions add others.",
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


SECTIONS: list[type[Section]] = [Settings, *sections()]
BOUNDED = [
    (section, name)
    for section in SECTIONS
    for name, field in section.model_fields.items()
    if any(
        kind in {int, float} or get_origin(kind) is Literal for kind in (field.annotation, *get_args(field.annotation))
    )
]


@pytest.mark.parametrize(("section", "name"), BOUNDED, ids=[name for _, name in BOUNDED])
def test_a_wrong_value_that_a_program_gives_is_refused_in_a_sentence(section: type[Section], name: str) -> None:
    wrong: dict[str, Any] = {name: "x"}
    with pytest.raises(ConfigError, match=rf"^{variables(section)[name]} must be .*\.$"):
        Settings(_env_file=None, **wrong).section(section)


def test_a_secret_may_stand_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-ant-1\n")
    monkeypatch.setenv("ANTHROPIC_API_KEY_FILE", str(tmp_path / "key"))
    (tmp_path / ".env").write_text("TURNSTREAM_WEBHOOK_SECRET_FILE=key\n")
    settings = read_settings()
    secrets = (settings.anthropic_api_key, settings.section(WebhookSettings).webhook_secret)
    assert [secret and secret.get_secret_value() for secret in secrets] == ["sk-ant-1"] * 2


@pytest.mark.parametrize(
    ("content", "given", "sentence"),
    [
        ("sk-1", "sk-2", "OPENAI_API_KEY and OPENAI_API_KEY_FILE are both set; set one of them"),
        ("\n", None, "OPENAI_API_KEY_FILE: key is empty; it must hold the value of OPENAI_API_KEY"),
        (None, None, r"OPENAI_API_KEY_FILE: key cannot be read: \[Errno 2\] No such file or directory"),
    ],
)
def test_a_secret_that_cannot_be_read_from_its_file_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None, given: str | None, sentence: str
) -> None:
    if content is not None:
        (tmp_path / "key").write_text(content)
    monkeypatch.setenv("OPENAI_API_KEY_FILE", "key")
    if given:
        monkeypatch.setenv("OPENAI_API_KEY", given)
    with pytest.raises(ConfigError, match=sentence):
        read_settings()


def test_the_page_names_every_secret_that_may_stand_in_a_file() -> None:
    page = (Path(__file__).parents[3] / "docs/settings.md").read_text(encoding="utf-8")
    files = secret_files(sections())
    assert [name for name in files if f"`{name}`" not in page] == []
    assert len(files) == 15
