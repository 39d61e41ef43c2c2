"""The page of benchmarks has the figures of its JSON file, and the check for interrupted texts can fail."""

import json

import pytest

from tests.bench.board import CHARTS, DATA, FOLDER, PAGE, chart, median_of, medians, table
from tests.bench.interrupted import DELTAS, Follower, is_whole
from tests.bench.load import Dialect

RESULT = json.loads(DATA.read_text(encoding="utf-8"))


def test_the_page_has_the_figures_of_the_json_in_at_most_8_kb() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert f"<!-- scoreboard: start -->\n{table(RESULT)}\n<!-- scoreboard: end -->" in page
    assert len(page.encode()) <= 8192


@pytest.mark.parametrize("name", CHARTS)
def test_each_chart_is_drawn_from_the_json(name: str) -> None:
    drawn = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert drawn == chart(CHARTS[name], medians(RESULT, CHARTS[name]))


@pytest.mark.parametrize(("waited", "latency"), [(19.0, 5.0), (21.0, None)])
def test_a_server_that_waited_for_its_cpu_has_no_latencies(waited: float, latency: float | None) -> None:
    figures = {"waited for its CPU, %": [waited] * 3, "first delta, p50, ms": [5.0] * 3, "CPU of a turn, ms": [7.0] * 3}
    assert median_of(figures, "first delta, p50, ms") == latency
    assert median_of(figures, "CPU of a turn, ms") == 7.0


def tokens(places: list[int]) -> list[str]:
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    return [f"|00700{digits[place // 36]}{digits[place % 36]}0000000" for place in places]


ENCODED = {
    "relay": lambda text: {"event": "content_block_delta", "data": json.dumps({"delta": {"text": text}})},
    "chat-completions": lambda text: {"data": json.dumps({"choices": [{"delta": {"content": text}}]})},
    "ui-messages": lambda text: {"data": json.dumps({"type": "text-delta", "delta": text})},
    "agent-protocol": lambda text: {"event": "messages", "data": json.dumps([{"content": text}, {}])},
}


@pytest.mark.parametrize("dialect", ENCODED)
@pytest.mark.parametrize(
    ("places", "whole"),
    [
        (list(range(DELTAS)), True),
        ([place for place in range(DELTAS) if place != 3], False),
        ([0, *range(DELTAS)], False),
        ([1, 0, *range(2, DELTAS)], False),
    ],
    ids=["whole", "lost", "repeated", "swapped"],
)
def test_a_text_is_whole_with_each_delta_once_and_in_order(dialect: Dialect, places: list[int], whole: bool) -> None:
    follower = Follower(dialect, 0, "007")
    for text in tokens(places):
        follower._take(ENCODED[dialect](text))
    assert not is_whole(follower), "the turn has not ended"
    follower.ended = True
    assert is_whole(follower) is whole
