from pathlib import Path
from typing import Any

import pytest

from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.domain.plans import Plan
from turnstream.extensions.plans import EXTENSION
from turnstream.setup.plans import read_plans

FILE = """
default = "free"

[plans.free]
requests_per_minute = 20
tokens_per_day = 200_000
calls_per_day = 500
running_turns = 2
uploads = 100
upload_bytes = 50_000_000

[plans.pro]
cost_per_month = 20.5

[owners]
ada = "pro"
"""


def _settings(tmp_path: Path, content: str, **values: Any) -> Settings:
    file = tmp_path / "plans.toml"
    file.write_text(content, encoding="utf-8")
    return Settings(_env_file=None, plans_file=file, **values)


def test_the_settings_for_every_owner_hold_where_a_plan_does_not_name_a_limit(tmp_path: Path) -> None:
    plans = read_plans(_settings(tmp_path, FILE, owner_running_turns=4, owner_streams=9), [EXTENSION])
    rates = {"requests_per_minute": 20, "tokens_per_day": 200_000, "calls_per_day": 500}
    kept = {"uploads": 100, "upload_bytes": 50_000_000}
    assert plans.of("bob") == Plan("free", rates, running_turns=2, queued_turns=40, streams=9, **kept)
    assert plans.of("ada") == Plan("pro", {"cost_per_month": 20.5}, running_turns=4, queued_turns=40, streams=9)


def test_without_a_file_the_settings_are_the_plan() -> None:
    plans = read_plans(Settings(_env_file=None, owner_running_turns=3), [EXTENSION], Plan)
    default = Plan("default", running_turns=3, queued_turns=30, streams=200)
    assert (plans.default, plans.of("ada")) == (default, Plan("ada"))


def test_zero_takes_a_limit_away() -> None:
    settings = Settings(_env_file=None, owner_running_turns=0, owner_streams=0)
    assert read_plans(settings, []).default == Plan("default")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[plans.free]\ntokens_per_week = 1", "plans.free.tokens_per_week is no limit; those are requests_per_minute"),
        ("[plans.free]\nuploads = 1.5", "plans.free.uploads must be a whole number, not 1.5"),
        ("[plans.free]\nuploads = 0", "plans.free.uploads must be"),
        ("default = 'gone'", "default must be one of the plans in the file, not 'gone'"),
        ("[owners]\nada = 'gone'", "owners.ada must be one of the plans"),
        ("plans = ", "TURNSTREAM_PLANS_FILE"),
        ("limits = 1", "limits"),
    ],
)
def test_a_mistake_in_the_file_stops_the_start_with_a_sentence(tmp_path: Path, content: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_plans(_settings(tmp_path, content), [EXTENSION])
    assert words in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        read_plans(Settings(_env_file=None, plans_file=tmp_path / "nowhere.toml"), [EXTENSION])


def test_the_file_is_that_of_the_page() -> None:
    assert FILE.strip() in (Path(__file__).parents[3] / "docs/limits.md").read_text(encoding="utf-8")
