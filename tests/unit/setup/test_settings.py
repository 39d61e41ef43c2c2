"""Settings, as they are read from the environment and from a file `.env`."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import HttpUrl
from pydantic.fields import FieldInfo

from tests.support.server_process import clean_environment
from turnstream.config import OF_THE_CLIENT, Section, Settings, secret_files, variables
from turnstream.domain.errors import ConfigError
from turnstream.extension import read_settings, sections
from turnstream.extensions.anthropic import AnthropicSettings
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


ROOT = Path(__file__).parents[3]


def test_the_variables_of_benchmarks_examples_and_deployments_are_settings() -> None:
    every: list[type[Section]] = [Settings, *sections()]
    names = {name for section in every for name in variables(section).values()} | set(secret_files(sections()))
    text = "".join(
        file.read_text(encoding="utf-8")
        for folder in ("tests/bench", "tests/faults", "tests/acceptance", "examples", "docs/deploy", ".ci")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in {".py", ".sh", ".yaml", ".yml", ".toml", ".env", ""} and file.is_file()
    )
    used = set(re.findall(r"\bTURNSTREAM_[A-Z_]+", text))
    assert used - names - OF_THE_CLIENT == set()


def wrong_values(field: FieldInfo) -> Iterator[tuple[str, str]]:
    """Yields texts that are invalid for the setting, each with the requirement that the error must name."""
    kinds = {each for kind in (field.annotation, *get_args(field.annotation)) for each in (kind, get_origin(kind))}
    if bool in kinds:
        yield "perhaps", "true or false"
    if HttpUrl in kinds:
        yield "here", "a URL, such as https://x.org"
    if Literal in kinds:
        options = next(get_args(kind) for kind in (field.annotation, *get_args(field.annotation)) if get_args(kind))
        yield "perhaps", " or ".join(", ".join(map(repr, part)) for part in (options[:-1], options[-1:]))
    if pattern := next((each.pattern for each in field.metadata if getattr(each, "pattern", None)), None):
        yield "\n", f"the pattern {pattern}"
    if not kinds & {int, float} or bool in kinds:
        return
    yield "x", "a whole number" if int in kinds else "a number"
    yield "1e400", "a whole number" if int in kinds else "a finite number"
    yield "nan", "a whole number" if int in kinds else "a finite number"
    for sign, names, words in (
        (-1, ("ge", "gt"), ("at least", "greater than")),
        (1, ("le", "lt"), ("at most", "less than")),
    ):
        for name, word in zip(names, words, strict=True):
            for bound in (getattr(each, name) for each in field.metadata if hasattr(each, name)):
                yield f"{bound + sign}", f"{word} {bound:.15g}"
    if not any(hasattr(each, name) for each in field.metadata for name in ("le", "lt")):
        yield f"{2**31}", f"at most {2**31 - 1}"


SECTIONS: list[type[Section]] = [Settings, *sections()]
CODE = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "app").rglob("*.py")))


OF_A_PROVIDER = re.compile(r"\w+_(api_key|base_url)")  # settings that are read by the name of their provider


@pytest.mark.parametrize("section", SECTIONS)
def test_each_setting_is_read(section: type[Section]) -> None:
    names = [name for name in section.model_fields if not OF_A_PROVIDER.fullmatch(name)]
    assert [name for name in names if not re.search(rf"\.{name}\b", CODE)] == []


WRONG = [
    pytest.param(section, name, value, wanted, id=f"{section.__name__} {name} {value!r}")
    for section in SECTIONS
    for name, field in section.model_fields.items()
    for value, wanted in wrong_values(field)
]


@pytest.mark.parametrize(("section", "name", "value", "wanted"), WRONG)
def test_a_wrong_value_is_refused_in_a_sentence_with_the_setting_and_the_correct_form(
    monkeypatch: pytest.MonkeyPatch, section: type[Section], name: str, value: str, wanted: str
) -> None:
    sentence = rf"^{variables(section)[name]} must (be|match) {re.escape(wanted)}\.$"
    given: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=sentence):  # a program passes the value
        section(_env_file=None, **given)
    monkeypatch.setenv(variables(section)[name], value)
    with pytest.raises(ConfigError, match=sentence):
        section(_env_file=None)


def test_every_number_has_a_bound_at_both_ends() -> None:
    numbers = {param.values[1] for param in WRONG if param.values[2] == "x"}
    below = {param.values[1] for param in WRONG if str(param.values[3]).startswith(("at least", "greater than"))}
    above = {param.values[1] for param in WRONG if str(param.values[3]).startswith(("at most", "less than"))}
    assert numbers - below == {"chaos_seed"}
    assert numbers - above == set()
    assert len(numbers) >= 60


def test_a_secret_may_be_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-ant-1\n")
    monkeypatch.setenv("ANTHROPIC_API_KEY_FILE", str(tmp_path / "key"))
    (tmp_path / ".env").write_text("TURNSTREAM_WEBHOOK_SECRET_FILE=key\n")
    settings = read_settings()
    secrets = (
        settings.section(AnthropicSettings).anthropic_api_key,
        settings.section(WebhookSettings).webhook_secret,
    )
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


def test_the_page_names_every_secret_that_may_be_in_a_file() -> None:
    page = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    files = secret_files(sections())
    assert [name for name in files if f"`{name}`" not in page] == []
    assert len(files) == 15
