"""Which tools a request omits, and how tools are ranked."""

from dataclasses import replace
from typing import Any

import pytest

from turnstream.config import Settings
from turnstream.domain.deferred import CALL_TOOL, FIND_TOOLS
from turnstream.domain.errors import ConfigError
from turnstream.domain.turns import ToolSpec, TurnRequest
from turnstream.extensions.tool_search import EXTENSION
from turnstream.extensions.tool_search.deferral import Deferral
from turnstream.libraries.tool_ranking import ranked
from turnstream.libraries.tool_sources.declarations import Declarations
from turnstream.libraries.tool_sources.kinds import kinds_of
from turnstream.llm.models.catalog import Models

SPECS = tuple(ToolSpec(f"mail__{each}", "Mails.", "{}") for each in ("send", "list", "delete", "move"))
CLIENT, OUTPUT = ToolSpec("theirs", "", "{}", client=True), ToolSpec("output", "", "{}", role="output")
REQUEST = TurnRequest("m", tools=(*SPECS, CLIENT, OUTPUT))
DEFERRAL = Deferral(3, None, ["mail__move"])


def seen(request: TurnRequest) -> list[str]:
    return [spec.name for spec in request.tools if not spec.deferred]


def test_tools_of_clients_outputs_and_those_that_are_kept_or_chosen_stay() -> None:
    assert seen(DEFERRAL.offer(REQUEST)) == ["mail__move", "theirs", "output", FIND_TOOLS, CALL_TOOL]
    chosen = replace(REQUEST, params={"tool_choice": {"type": "tool", "name": "mail__send"}})
    assert seen(DEFERRAL.offer(chosen))[:2] == ["mail__send", "mail__move"]


@pytest.mark.parametrize("deferral", [DEFERRAL, Deferral(None, 10), Deferral(3, None, by_provider=["m"])])
def test_a_deferral_of_its_own_result_changes_nothing(deferral: Deferral) -> None:
    once = deferral.offer(REQUEST)
    assert once != REQUEST
    assert deferral.offer(once) == once
    assert Deferral(100, None).offer(once) == REQUEST  # a server whose settings defer none of these tools


def test_for_some_models_the_provider_searches() -> None:
    request = Deferral(3, None, by_provider=["m"]).offer(REQUEST)
    assert request.tools == REQUEST.tools
    search, *marks = request.provider_tools
    assert search == '{"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}'
    assert marks == [
        f'{{"name": "mail__{each}", "defer_loading": true}}' for each in ("send", "list", "delete", "move")
    ]


@pytest.mark.parametrize(
    "definition",
    ['{"type":"tool_search_tool_regex_20251119","name":"s"}', '{"name":"mail__send","defer_loading":true}'],
)
def test_a_request_that_searches_by_itself_is_left_alone(definition: str) -> None:
    request = replace(REQUEST, provider_tools=(definition,))
    assert DEFERRAL.offer(request) == request


@pytest.mark.parametrize("name", [FIND_TOOLS, CALL_TOOL])
@pytest.mark.parametrize("spec", [ToolSpec("", "", "{}", client=True), ToolSpec("", "Theirs.", "{}")])
def test_a_request_with_another_tool_of_these_names_is_left_alone(spec: ToolSpec, name: str) -> None:
    request = replace(REQUEST, tools=(*REQUEST.tools, replace(spec, name=name)))
    assert DEFERRAL.offer(request) == request


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("create an event in the calendar", "calendar_createEvent"),
        ("add appointment", "calendar_createEvent"),
        ("remove a meeting", "calendar_delete_event"),
        ("which invoices are unpaid", "list_invoices"),
        ("weather", "forecast"),
        ("forecast", "forecast"),
        ("расписание", "timetable"),
    ],
)
def test_a_tool_is_found_by_words_of_its_name_description_and_parameters(query: str, best: str) -> None:
    specs = [
        ToolSpec("calendar_createEvent", "Creates an event.", '{"properties": {"title": {"type": "string"}}}'),
        ToolSpec("calendar_delete_event", "Deletes an event.", '{"properties": {"id": true}}'),
        ToolSpec(
            "list_invoices", "Bills of a customer.", '{"properties": {"state": {"description": "paid or unpaid"}}}'
        ),
        ToolSpec("forecast", "The weather of the next days.", "{}"),
        ToolSpec("timetable", "Расписание поездов.", "{}"),
    ]
    assert ranked(specs, query, 3)[0].name == best
    assert ranked([], query, 3) == []
    assert ranked([ToolSpec("_", "", "{}")], query, 3) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "off: the definitions of all tools are in each request"),
        ({"tool_search_above": 40}, "above 40 tools"),
        (
            {"tool_search_above": 1000, "tool_search_above_chars": 9000},
            "above 1,000 tools or 9,000 characters of definitions",
        ),
    ],
)
async def test_settings_decide_above_which_number_or_size(given: dict[str, Any], said: str) -> None:
    settings = Settings(_env_file=None, **given)
    (kind,) = kinds_of(EXTENSION, settings)
    loaded = kind.make(Declarations())
    assert (loaded.offer is not None, len(loaded.sources)) == (bool(given), int(bool(given)))
    assert await EXTENSION.checks["tool search"](settings, Models(), False) == said


async def test_a_model_that_is_not_there_is_named() -> None:
    settings = Settings(_env_file=None, tool_search_above=1, tool_search_by_provider="none-such")
    with pytest.raises(ConfigError, match="TURNSTREAM_TOOL_SEARCH_BY_PROVIDER must be"):
        await EXTENSION.checks["tool search"](settings, Models(), False)
