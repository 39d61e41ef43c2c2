import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from turnstream.domain import plans as module
from turnstream.domain.limits import ReachedLimit
from turnstream.domain.plans import MEASURES, RATES, Plan, Plans, Refusal, rate_sentence, reached_rate, seconds_to_next

PRO, FREE, OWN = Plan("pro"), Plan("free", {"tokens_per_day": 100}), Plan("own")
USED = dict.fromkeys(RATES, 0.0)


def test_a_plan_names_rates_that_there_are() -> None:
    with pytest.raises(ValueError, match="no rate 'tokens_per_week'"):
        Plan("odd", {"tokens_per_week": 1})
    assert FREE.has("cost", "tokens")
    assert not FREE.has("calls")


def test_the_program_comes_before_the_credentials_and_these_before_the_file() -> None:
    plans = Plans(FREE, {"pro": PRO, "free": FREE}, {"ada": "pro"})
    assert [plans.of("ada"), plans.of("bob"), plans.of("bob", "pro"), plans.of("ada", "free")] == [PRO, FREE, PRO, FREE]

    def choose(owner: str) -> Plan | str | None:
        return OWN if owner == "ada" else "pro" if owner == "bob" else None

    by_program = Plans(FREE, {"pro": PRO, "free": FREE}, plan_of=choose)
    assert [by_program.of(owner, "free") for owner in ("ada", "bob", "eve")] == [OWN, PRO, FREE]
    assert [Plans().vary, plans.vary, Plans(plan_of=choose).vary] == [False, True, True]


def test_a_plan_that_is_not_known_has_the_least_of_each_limit() -> None:
    small = Plan("small", {"tokens_per_day": 10, "calls_per_day": 5}, running_turns=7)
    large = Plan("large", {"tokens_per_day": 99}, running_turns=3, uploads=2)
    plans = Plans(Plan("default", streams=9), {"small": small, "large": large}, plan_of={"eve": "gone"}.get)
    least = Plan("least", {"tokens_per_day": 10, "calls_per_day": 5}, running_turns=3, streams=9, uploads=2)
    assert plans.of("ada", "gone") == plans.of("eve") == least
    assert plans.of("ada") == plans.default


@pytest.mark.parametrize(
    ("rates", "used", "adding", "reached"),
    [
        ({"tokens_per_day": 100}, {"tokens_per_day": 99}, {"tokens": 5000}, None),
        ({"tokens_per_day": 100}, {"tokens_per_day": 100}, {"tokens": 0}, "tokens_per_day"),
        ({"requests_per_minute": 2}, {"requests_per_minute": 1}, {"requests": 1}, None),
        ({"requests_per_minute": 2}, {"requests_per_minute": 2}, {"requests": 1}, "requests_per_minute"),
        ({"calls_per_day": 3}, {"calls_per_day": 2}, {"calls": 2}, "calls_per_day"),
        ({"calls_per_day": 3}, {"calls_per_day": 3}, {"tokens": 1}, None),
    ],
)
def test_amounts_counted_in_advance_must_fit_and_others_need_only_some_room(
    rates: dict[str, float], used: dict[str, float], adding: dict[str, float], reached: str | None
) -> None:
    found = reached_rate(Plan("x", rates), USED | used, adding)
    assert (None if found is None else found.name) == reached


def test_a_period_ends_with_its_minute_day_or_month_of_utc() -> None:
    now = datetime(2026, 12, 31, 23, 58, 30, tzinfo=UTC)
    assert [seconds_to_next(period, now) for period in ("minute", "day", "month")] == [31, 91, 91]
    with pytest.raises(ValueError, match="week"):  # no period is taken for a month in silence
        seconds_to_next("week", now)


def test_the_sentence_has_the_figures() -> None:
    assert rate_sentence(ReachedLimit("calls_per_month", 1000.0, 1000.0)) == (
        "The owner has used 1,000 tool calls of this month, and the limit `calls_per_month` of the plan is 1,000."
    )
    assert "has used 5.75 in cost of this day" in rate_sentence(ReachedLimit("cost_per_day", 5.5, 5.75))


@pytest.mark.parametrize(("passing", "seconds"), [(False, 11), (True, 5)])
def test_a_refusal_knows_when_there_may_be_room(passing: bool, seconds: int) -> None:
    at = datetime(2026, 11, 28, 12, 0, 50, tzinfo=UTC)
    assert Refusal(ReachedLimit("requests_per_minute", 1, 1), at, passing).retry_after == seconds


# The modules that create chats for an owner, and the measure of a plan that counts each creation. A limit of new chats
# must consider all of them.
MAKERS = {
    "api/chats.py": "writes",
    "api/exchange.py": "requests",
    "extensions/agents/children.py": "calls",
    "extensions/mcp/app_turns.py": "writes",
    "libraries/copies/rows.py": "writes",
    "libraries/dialects/past_exchanges.py": "writes",
    "libraries/dialects/posting.py": "requests",
}
MAKES_A_CHAT = re.compile(r"chats\.create\(|exchanges\.in_new_chat\(|\.row\(\s*(?:CREATE|COPY)_CHAT\b|INTO chats\b")


def test_each_module_that_makes_chats_has_its_measure() -> None:
    app = Path(module.__file__).parents[1]
    found = {str(path.relative_to(app)) for path in app.rglob("*.py") if MAKES_A_CHAT.search(path.read_text("utf-8"))}
    assert found - {"storage/chats/chats.py", "storage/chats/exchanges.py"} == MAKERS.keys()
    assert set(MAKERS.values()) <= MEASURES.keys()
