"""One set of questions under two settings of a running server, and what came of it."""

import asyncio
import json
import os
import sys
from pathlib import Path

import click
import pytest

from app.domain.rounds import Prices
from app.lab.comparison import options_of, read_plan
from app.llm.models.catalog import Model, ProviderModels
from app.llm.scripted import ScriptedProvider, message_of, text, tool_use
from app.tools.tool import tool
from app.tools.toolset import Toolset
from tests.support.http_server import serving

USAGE = {"input_tokens": 100, "cache_read_input_tokens": 900, "output_tokens": 50}


@tool(read_only=True)
async def look(what: str) -> str:
    """Look at something."""
    return f"seen {what}"


@tool(approval="always")
async def write(what: str) -> str:
    """Write something."""
    return f"wrote {what}"


async def turnstream(*arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-c", "from app.cli import main; main()", *arguments]
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_both_settings_are_asked_everything_and_tabled(database_url: str, tmp_path: Path) -> None:
    questions = tmp_path / "questions.txt"
    questions.write_text("# about the sea\nIs it high?\n\nWhen does it turn?\n")

    def thorough(request: object) -> object:
        answered = "tool_result" in str(request)
        call = tool_use("look", {"what": "tides"}, "toolu_1")
        return message_of(text("It is high.") if answered else call, usage=USAGE)

    offer = ProviderModels(ScriptedProvider(thorough), [Model("thorough", prices=Prices(1.0, 10.0, 0.1))])  # type: ignore[arg-type]
    async with serving(database_url, Toolset([look])) as server:
        server.scripts.offers.append(offer)
        where = ("--server", server.url, "--second", "model=thorough", "--second", "tools=look")
        code, out, err = await turnstream("compare", str(questions), *where, "--json")
        assert (code, err) == (0, "")
        found = json.loads(out)
        code, table, _ = await turnstream("compare", str(questions), *where)
    assert found["settings"] == {"first": {}, "second": {"model": "thorough", "tools": ["look"]}}
    assert [asked["question"] for asked in found["questions"]] == ["Is it high?", "When does it turn?"]
    plain, other = found["questions"][0]["first"], found["questions"][0]["second"]
    assert (plain["answer"], plain["rounds"], plain["tools"], plain["cost"]) == ("Hello.", 1, {}, None)
    assert (other["answer"], other["rounds"], other["tools"]) == ("It is high.", 2, {"look": 1})
    assert (other["input_tokens"], other["cached_tokens"], other["output_tokens"]) == (2000, 1800, 100)
    assert other["cost"] == pytest.approx(2 * (100 * 1.0 + 900 * 0.1 + 50 * 10.0) / 1_000_000)
    assert found["totals"]["second"]["calls"] == 2
    assert code == 0
    for words in ("Is it high?", "first: Hello.", "second: It is high.", "look 1", "second: 2 of 2 complete"):
        assert words in table


async def test_a_turn_that_waits_for_a_person_is_ended(database_url: str, tmp_path: Path) -> None:
    questions = tmp_path / "questions.toml"
    questions.write_text('questions = ["Write."]\n[first]\ntools = ["write"]\n[second]\nlimits.max_rounds = 1\n')
    async with serving(database_url, Toolset([write])) as server:
        name = server.scripts.model(message_of(tool_use("write", {"what": "x"}, "toolu_1")))
        found = await turnstream(
            "compare", str(questions), "--server", server.url, "--first", f"model={name}", "--json"
        )
    assert json.loads(found[1])["questions"][0]["first"]["status"] == "cancelled"


async def test_a_refusal_of_the_server_is_printed_as_a_sentence(database_url: str, tmp_path: Path) -> None:
    questions = tmp_path / "questions.txt"
    questions.write_text("Hello?\n")
    async with serving(database_url) as server:
        code, out, err = await turnstream("compare", str(questions), "--server", server.url, "--first", "model=nobody")
    assert (code, out) == (1, "")
    assert "there is no model 'nobody' here" in err


def test_settings_are_members_of_the_request() -> None:
    words = [
        "model=x",
        "tools=",
        "max_rounds=3",
        "compaction=provider",
        "params.max_tokens=9",
        "params.thinking.type=adaptive",
    ]
    assert options_of(words) == {
        "model": "x",
        "tools": [],
        "limits": {"max_rounds": 3, "compaction": "provider"},
        "params": {"max_tokens": 9, "thinking": {"type": "adaptive"}},
    }


def test_options_go_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text('questions = ["a"]\n[first]\nmodel = "x"\nlimits = {max_rounds = 1, max_recoveries = 2}\n')
    plan = read_plan(file, ["max_rounds=5"], [])
    assert plan.sides == {"first": {"model": "x", "limits": {"max_rounds": 5, "max_recoveries": 2}}, "second": {}}


@pytest.mark.parametrize(
    ("name", "said", "words"),
    [
        ("a.txt", "# nothing\n", "must hold at least one question"),
        ("a.toml", "questions =", "a.toml is not TOML: "),
        ("a.toml", 'questions = ["a"]\nthird = 1\n', "`third` of .* is not known; known are questions, first, second"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, name: str, said: str, words: str) -> None:
    (tmp_path / name).write_text(said)
    with pytest.raises(click.UsageError, match=words):
        read_plan(tmp_path / name, [], [])


def test_a_word_that_is_no_setting_is_refused() -> None:
    with pytest.raises(click.UsageError, match="must have the form NAME=VALUE"):
        options_of(["model"])
