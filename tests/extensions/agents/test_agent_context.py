"""The task message of an agent contains the selected part of the calling conversation."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from tests.support.agents import call, ended, post, results, script
from tests.support.http_client import Client
from tests.support.http_server import serving
from tests.support.turns import USER_TURN, result, sealed, text, turn_of, words
from tests.support.turns import call as call_block
from turnstream.domain.blocks import Block
from turnstream.domain.errors import ConfigError
from turnstream.domain.history import COMPACTED
from turnstream.domain.turns import WITHDRAWN, Turn
from turnstream.extensions.agents.agent import Agent
from turnstream.extensions.agents.children import Children
from turnstream.extensions.agents.context import ContextTurns, message_of_task
from turnstream.extensions.agents.tool import AGENTS, AgentTable, AgentTool, agent_tool, bind
from turnstream.libraries.tool_sources.declarations import read_declarations
from turnstream.scripted import message_of
from turnstream.scripted import text as said
from turnstream.tools.toolset import Toolset

PICTURE = Block(1, 0, 0, "image", data='{"type":"image","source":{"type":"upload","id":"u"}}')
ALL = ("text", "files", "results")


def message(id: int, content: str, *more: Block, stop_reason: str | None = None) -> Turn:
    blocks = (text(0, 0, content), *more)
    return replace(turn_of(*blocks), id=UUID(int=id), role="user", request=None, stop_reason=stop_reason)


EARLIER = [
    message(10, "High?"),
    replace(turn_of(text(content="Very."), rounds=[sealed(1, "end_turn")]), id=UUID(int=11)),
]
CALLING = turn_of(text(content="I look."), call_block(1), result(2), words(3, content="Faster."), rounds=[sealed()])
PATH = [*EARLIER, replace(message(3, "Which hill?", PICTURE), id=USER_TURN), CALLING]


def given(path: Sequence[Turn], turns: ContextTurns, selected: Sequence[str]) -> list[str]:
    """Returns the blocks that precede the task: a text block as its text, and another block as its type."""
    blocks = message_of_task(path, turns, selected, "Go.")
    assert [block.index for block in blocks] == list(range(len(blocks)))
    assert blocks[-1].text == "Go."
    return [block.text if block.type == "text" else block.type for block in blocks[:-1]]


def test_without_context_the_task_is_all() -> None:
    assert given(PATH, "none", ALL) == []


def test_the_last_turn_is_the_message_and_the_answer_so_far() -> None:
    words, picture = given(PATH, "last_turn", ALL)
    assert words.split("\n\n")[1:] == [
        "[user]\nWhich hill?",
        "[assistant]\nI look.",
        "[result of look]\nseen",
        "[user]\nFaster.",
    ]
    assert picture == "image"


def test_the_path_begins_at_the_root() -> None:
    (words,) = given(PATH, "path", ["text"])
    assert words.split("\n\n")[1:3] == ["[user]\nHigh?", "[assistant]\nVery."]
    assert "seen" not in words


def test_a_summary_replaces_the_turns_before_it() -> None:
    note = Block(0, 1, 1, "summary", "They spoke of heights.", json.dumps({"through": str(EARLIER[-1].id)}))
    calling = replace(CALLING, blocks=(note, text(1, 2, "I look.")), rounds=(sealed(1, COMPACTED), sealed(2)))
    (words,) = given([*PATH[:-1], calling], "path", ["text"])
    assert words.split("\n\n")[1:] == [
        "[summary]\nThey spoke of heights.",
        "[user]\nWhich hill?",
        "[assistant]\nI look.",
    ]


def test_a_message_that_was_withdrawn_is_not_given() -> None:
    gone = message(20, "Forget it.", stop_reason=WITHDRAWN)
    (words,) = given([gone, *PATH], "path", ["text"])
    assert "Forget it." not in words


def test_selected_blocks_are_those_of_a_kind_or_the_results_of_a_tool() -> None:
    assert given(PATH, "path", ["files"]) == ["image"]
    (words,) = given(PATH, "path", ["look"])
    assert words.split("\n\n")[1:] == ["[result of look]\nseen"]
    assert given(PATH, "path", ["other"]) == []


async def test_an_agent_is_given_the_conversation_and_keeps_its_prompt(database_url: str) -> None:
    scout = Agent("scout", "Scouts.", "Scout.", context="path")
    async with serving(database_url, Toolset([agent_tool(scout)])) as server, Client(server.url) as api:
        model, provider = script(
            server,
            message_of(said("Hello.")),
            message_of(call("scout", "a", "Find the hill.")),
            message_of(said("A hill.")),
            message_of(said("So.")),
        )
        first = await ended(api, await api.json("POST", "/api/turns", 201, json=post(model)))
        more = {"blocks": [{"type": "text", "text": "Go on."}]}
        exchange = await api.json("POST", f"/api/chats/{first['chat_id']}/turns", 201, json=more)
        turn = await ended(api, exchange)
    assert results(turn) == {"a": "A hill."}
    (asked,) = [request for request in provider.requests if request.system == "Scout."]
    sent: Any = str(asked.messages)
    places = [sent.index(each) for each in ("Research it.", "Hello.", "Go on.", "Find the hill.")]
    assert places == sorted(places)


def test_blocks_of_the_context_that_are_no_kind_and_no_tool_stop_the_start() -> None:
    lost = agent_tool(Agent("lost", "Lost.", "Lost.", context="path", context_blocks=("texts",)))
    with pytest.raises(ConfigError, match=r"^The agent lost: `context_blocks`: There is no tool 'texts'"):
        bind(Toolset([lost]), cast("Children", None))


def test_the_context_of_the_tools_file(tmp_path: Path) -> None:
    file = tmp_path / "tools.toml"
    file.write_text(
        '[agents.scout]\ndescription = "Scouts."\nprompt = "Scout."\n'
        'context = "last_turn"\ncontext_blocks = ["results"]\n'
    )
    (made,) = AGENTS.make(read_declarations(file, {}, {"agents": AgentTable})).tools
    assert isinstance(made, AgentTool)
    assert (made.agent.context, made.agent.context_blocks) == ("last_turn", ("results",))
    assert "the last message of the user and your answer so far" in made.spec.input_schema
    file.write_text('[agents.scout]\ndescription = "Scouts."\nprompt = "Scout."\ncontext = "all"\n')
    with pytest.raises(ConfigError, match="context"):
        read_declarations(file, {}, {"agents": AgentTable})
