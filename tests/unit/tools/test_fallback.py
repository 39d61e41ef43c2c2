"""A fallback may get its own input. A fallback is refused if no input can match its schema."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.unit.tools.doubles import Script
from turnstream.domain.errors import ConfigError
from turnstream.domain.turns import ToolSpec
from turnstream.libraries.tool_sources.declarations import read_declarations
from turnstream.tools.policy import Fallback, Policy
from turnstream.tools.tool import Outcome, ToolContext, ToolError, tool
from turnstream.tools.toolset import Toolset

Schema = Mapping[str, Any]


def spec(name: str, required: str = "", *, closed: bool = True, **members: Any) -> ToolSpec:
    properties = {member: {"type": kind} if isinstance(kind, str) else kind for member, kind in members.items()}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": required.split()}
    return ToolSpec(name, "Look.", json.dumps(schema | ({"additionalProperties": False} if closed else {})), True)


DAYS = spec("archive", "day", day="string")
NEWS = spec("news", "query", query="string", day="integer")
ARCHIVE = spec("archive", "words", words="string", year="integer", place="string")


def failing(fallback: str | Fallback, of: ToolSpec = NEWS) -> Script:
    return Script(of, Policy(fallback=fallback, retries=0), [ToolError("The news are away.")])


async def test_a_fallback_takes_its_members_from_those_of_the_call_and_some_of_its_own(context: ToolContext) -> None:
    archive = Script(ARCHIVE, Policy(), [Outcome("1921")])
    fallback = Fallback("archive", {"words": "query", "year": "day"}, {"place": "Brest"})
    outcome = await Toolset([failing(fallback), archive]).run("news", '{"query": "tides"}', context)
    sent = '{"words":"tides","place":"Brest"}'
    assert archive.calls == [(context, sent)]
    assert outcome.text == (
        f"[The tool that was called failed; this is the answer of archive with the input {sent}.]\n\n1921"
    )
    assert outcome.notes == {"fallback": {"tool": "archive", "because": "error", "input": sent}}


async def test_a_function_makes_the_input_or_members_are_added_to_the_same_one(context: ToolContext) -> None:
    archive = Script(ARCHIVE)
    by_function = Fallback("archive", lambda sent: {"words": sent["query"].upper()})
    await Toolset([failing(by_function), archive]).run("news", '{"query": "tides"}', context)
    added = Fallback("archive", add={"year": 1921})
    await Toolset([failing(added, spec("news", "words", words="string")), archive]).run(
        "news", '{"words": "x"}', context
    )
    assert [sent for _, sent in archive.calls] == ['{"words":"TIDES"}', '{"words":"x","year":1921}']


async def test_a_function_that_fails_is_the_failure_of_the_fallback(context: ToolContext) -> None:
    archive = Script(ARCHIVE)
    fallback = Fallback("archive", lambda sent: {"words": sent["missing"]})
    outcome = await Toolset([failing(fallback), archive]).run("news", '{"query": "tides"}', context)
    assert outcome.text == (
        "The news are away.\n\n[archive was run instead:]\n\nThe fallback's input could not be built (KeyError)."
    )
    assert archive.calls == []


async def test_a_long_input_is_shown_in_part(context: ToolContext) -> None:
    fallback = Fallback("archive", {"words": "query"})
    outcome = await Toolset([failing(fallback), Script(ARCHIVE)]).run(
        "news", json.dumps({"query": "x" * 9000}), context
    )
    assert len(outcome.text) < 700


@pytest.mark.parametrize(
    ("fallback", "of", "stand_in", "complaint"),
    [
        ("archive", NEWS, ARCHIVE, "it does not take `query`, which every call has; map the `input`"),
        ("archive", NEWS, spec("archive", "words", closed=False, words="string"), "it needs `words`: map it"),
        ("archive", spec("news", "day", day="integer"), spec("archive", day="string"), "its `day` must be of type"),
        ("archive", spec("news", day="integer"), spec("archive", "day", day=["string", "null"]), None),
        ("archive", spec("news", day="integer"), spec("archive", "day", day="string"), "string, and `day` is of type"),
        (Fallback("archive", {"words": "text"}), NEWS, ARCHIVE, "`input` takes `words` from `text`, which the tool"),
        (Fallback("archive", {"phrase": "query"}), NEWS, ARCHIVE, "`input` has `phrase`, which archive does not take"),
        (Fallback("archive", {"year": "day"}), NEWS, ARCHIVE, "it needs `words`: map it in `input` or give it in"),
        (Fallback("archive", {"words": "day"}), NEWS, ARCHIVE, "its `words` must be of type string, and `day` is of"),
        (Fallback("archive", {"words": "query"}, {"era": 1}), NEWS, ARCHIVE, "`add` has `era`, which archive does not"),
        (Fallback("archive", {"words": "query"}, {"year": "old"}), NEWS, ARCHIVE, "`add` has a wrong value. `year`"),
        ("nobody", NEWS, ARCHIVE, "news has the fallback nobody, which is not in the toolset"),
    ],
)
def test_a_fallback_whose_schema_cannot_fit_is_refused_at_the_start(
    fallback: str | Fallback, of: ToolSpec, stand_in: ToolSpec, complaint: str | None
) -> None:
    tools = [failing(fallback, of), Script(stand_in)]
    if complaint is None:
        Toolset(tools)
        return
    with pytest.raises(ValueError, match=complaint):
        Toolset(tools)


@pytest.mark.parametrize(
    ("fallback", "of", "stand_in"),
    [
        ("archive", spec("news", "day", day="integer"), spec("archive", "day", day="number")),
        ("archive", spec("news", "day", day={"anyOf": [{"type": "string"}, {"type": "null"}]}), DAYS),
        ("archive", spec("news", "day", day={"anyOf": [{"type": "null"}, {}]}), DAYS),
        ("archive", spec("news", "day", day={"enum": [1]}), DAYS),
        ("archive", ToolSpec("news", "", '{"type": "object"}', True), ARCHIVE),
        ("archive", spec("news", "query", query="string"), spec("archive", closed=False)),
        (Fallback("archive", lambda sent: sent), NEWS, ARCHIVE),
        (Fallback("archive", {"words": "query"}, {"era": 1}), NEWS, spec("archive", closed=False)),
    ],
)  # fmt: skip
def test_a_fallback_that_may_fit_is_taken(fallback: str | Fallback, of: ToolSpec, stand_in: ToolSpec) -> None:
    Toolset([failing(fallback, of), Script(stand_in)])


def test_a_tools_file_maps_the_input_of_a_fallback(tmp_path: Path) -> None:
    @tool(read_only=True)
    async def news(query: str) -> str:
        """News."""
        return query

    @tool(read_only=True)
    async def archive(words: str, year: int = 0) -> str:
        """Archive."""
        return f"{words} {year}"

    path = tmp_path / "tools.toml"
    table = '[policy.news]\nfallback = { tool = "archive", input = { words = "query" }, add = { year = 1921 } }\n'
    path.write_text(table, encoding="utf-8")
    (changed, _) = read_declarations(path, {}).apply_policies([news, archive])
    assert changed.policy.stand_in == Fallback("archive", {"words": "query"}, {"year": 1921})
    for wrong, complaint in [
        ('{ input = { words = "query" } }', "`fallback.tool`: is missing"),
        ('{ tool = "archive", inputs = {} }', "has no key `fallback.inputs`"),
        ('{ tool = "archive", input = 4 }', "`fallback.input`: input should be a valid dictionary"),
        ("7", "`fallback`: input should be a valid string"),
    ]:
        path.write_text(f"[policy.news]\nfallback = {wrong}\n", encoding="utf-8")
        with pytest.raises(ConfigError) as refused:
            read_declarations(path, {})
        assert str(refused.value) == f"{path}: [policy.news] {complaint}"
    path.write_text('[policy.news]\nfallback = { tool = "news", input = {} }\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="news cannot be its own `fallback`"):
        read_declarations(path, {}).apply_policies([news, archive])
