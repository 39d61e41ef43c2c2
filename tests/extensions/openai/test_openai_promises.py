"""One chat that three APIs answer in turn: each API accepts the rows of all three, and each request begins like the
previous request.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.extensions.openai.test_openai_render import called, thought
from tests.extensions.openai.test_openai_translation import cited
from tests.extensions.openai.test_responses_render import SEARCH, THOUGHT, mused, own
from tests.support.effort import tries
from tests.support.legal import anthropic as legal
from tests.support.legal import openai as openai_legal
from tests.support.legal import responses as responses_legal
from tests.support.model_requests import REQUEST, assistant, result, returned, text, user
from tests.unit.llm.test_message_promises import (
    BLOCKS,
    PARTS,
    WORDS,
    Chat,
    any_round,
    forked,
    without_abandoned,
    without_stand_in,
)
from turnstream.domain.blocks import Block
from turnstream.domain.steps import CallModel
from turnstream.domain.turns import Limits, Turn
from turnstream.extensions.openai.chat import render as openai_render
from turnstream.extensions.openai.quirks import QUIRKS, Quirks
from turnstream.extensions.openai.responses import render as responses_render
from turnstream.libraries.providers.anthropic import render as anthropic_render
from turnstream.llm.conversation.messages import GO_ON, PROGRAM_CUT, build_messages
from turnstream.llm.provider import Message, ModelRequest

OPENAI_MODEL = "gpt-6-sol"
RESPONSES_MODEL = "gpt-6-luna"
IDS = st.sampled_from(["a", "functions.look:0", "functions.look:1", "chatcmpl-tool-" + "0" * 32, "ä b"])
NAMES = st.sampled_from(["look", "look at!", None, "n" * 100])
INPUT_TEXTS = ["", "{}", '{"q": ', "[1]", '{"q":"\\ud83d"}']
INPUTS = st.sampled_from(INPUT_TEXTS)
SHELL = {"type": "shell_call", "id": "sh_1", "call_id": "sh"}
BOUND = st.sampled_from([None, "rs_1", "rs_2"])
ASKED_SHELL = own("server_tool_use", SHELL, "{}", tool_use_id="sh", name="shell")
SHELL_SAID = own("shell_tool_result", {**SHELL, "type": "shell_call_output"}, tool_use_id="sh")
PROGRAM = own("server_tool_use", {"type": "program", "id": "cm", "call_id": "p"}, "{}", tool_use_id="p", name="program")
PROGRAM_SAID = own("program_tool_result", {"type": "program_output", "id": "po", "call_id": "p"}, tool_use_id="p")
CALLED_BY = {"caller": {"type": "program", "caller_id": "p"}}
ASKED_WEB = own("server_tool_use", words="{}", tool_use_id="ws", name="web_search")
WEB_SAID = BOUND.map(lambda bound: own("web_search_tool_result", SEARCH, tool_use_id="ws", thought=bound))
OF_RESPONSES = st.one_of(
    st.sampled_from([THOUGHT, {**THOUGHT, "id": "rs_2"}, {**THOUGHT, "encrypted_content": ""}]).map(mused),
    st.builds(lambda words, phase: own("text", words=words, phase=phase), WORDS, st.sampled_from([None, "commentary"])),
    st.builds(lambda bound: own("openai_dream", {"type": "dream", "id": "d"}, thought=bound), BOUND),
    st.builds(
        lambda id, words: own("tool_use", {"type": "custom_tool_call"}, words, tool_use_id=id, name="sql"),
        IDS,
        st.sampled_from(['{"input":"x"}', *INPUT_TEXTS]),
    ),
    st.builds(
        lambda id, words: own("tool_use", {"namespace": "web"}, words, tool_use_id=id, name="look"),
        IDS,
        st.sampled_from(INPUT_TEXTS),
    ),
)
# The API's own tools have already finished when their calls arrive.
WHOLE = st.one_of(
    OF_RESPONSES.map(lambda block: [block]),
    WEB_SAID.map(lambda said: [ASKED_WEB, said]),
    st.just([ASKED_SHELL, SHELL_SAID]),
)
REPLIES = st.lists(WHOLE, max_size=4).map(lambda replies: [block for reply in replies for block in reply])
SOMEBODYS = st.one_of(
    BLOCKS,
    OF_RESPONSES,
    WEB_SAID,
    st.sampled_from([ASKED_WEB, ASKED_SHELL, SHELL_SAID, PROGRAM, PROGRAM_SAID]),
    st.builds(lambda id: own("tool_use", CALLED_BY, "{}", tool_use_id=id, name="look"), IDS),
    st.builds(thought, st.sampled_from(["reasoning", "thinking"]), WORDS),
    st.builds(lambda words: thought("reasoning_details", words, reasoning_details=[{"data": "s"}]), WORDS),
    WORDS.map(cited),
    st.builds(called, IDS, INPUTS, NAMES),
    st.builds(result, IDS, WORDS, is_error=st.booleans()),
    st.builds(returned, IDS, PARTS, is_error=st.booleans()),
)
REQUESTS = st.sampled_from([REQUEST, *(replace(REQUEST, model=model) for model in (OPENAI_MODEL, RESPONSES_MODEL))])
KINDS = st.sampled_from(sorted(QUIRKS))
# The request to continue replaces another provider's way to continue an answer. Once the answer has continued, later
# requests omit it.
ASKED_TO_GO_ON = f"\n<user>{GO_ON}"


@st.composite
def any_turn(draw: st.DrawFn) -> Turn:
    if draw(st.booleans()):
        return user(*draw(st.lists(WORDS.map(text), max_size=2)))
    rounds = draw(st.lists(st.lists(SOMEBODYS, max_size=6), max_size=4))
    cut = [[replace(block, interrupted=draw(st.booleans())) for block in blocks] for blocks in rounds]
    turn = assistant(*cut, request=draw(REQUESTS))
    return replace(turn, rounds=tuple(draw(any_round(round.number)) for round in turn.rounds))


@st.composite
def any_path(draw: st.DrawFn) -> list[Turn]:
    path = draw(st.lists(any_turn(), max_size=3))
    return [*path, draw(any_turn().filter(lambda turn: turn.role == "assistant"))]


def openai_body(messages: tuple[Message, ...], quirks: Quirks) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(openai_render.render(ModelRequest(OPENAI_MODEL, messages), quirks))
    return found


def responses_body(messages: tuple[Message, ...]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(responses_render.render(ModelRequest(RESPONSES_MODEL, messages)))
    return found


def anthropic_body(messages: tuple[Message, ...]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(anthropic_render.render(ModelRequest("claude-opus-5-5", messages)))
    return found


@given(any_path() | forked(any_path()), KINDS)
@settings(max_examples=tries(150))
def test_every_path_of_blocks_of_any_gives_a_request_that_each_server_accepts(path: list[Turn], kind: str) -> None:
    messages, quirks = build_messages(path), QUIRKS[kind]
    body = openai_body(messages, quirks)
    assert openai_legal.request_problems(body, ids=quirks.call_ids.pattern, thoughts=quirks.thoughts_go_back) == []


@given(any_path() | forked(any_path()))
@settings(max_examples=tries(150))
def test_every_path_of_blocks_of_any_gives_a_request_that_anthropic_accepts(path: list[Turn]) -> None:
    sealed = [round for round in path[-1].rounds if round.sealed and not round.voided]
    paused = bool(sealed) and sealed[-1].stop_reason in {"pause_turn", "tool_use"}
    body = anthropic_body(build_messages(path))
    assert legal.request_problems(body, paused=paused) == []
    used = [b["id"] for m in body["messages"] for b in m["content"] if b["type"] == "tool_use"]
    assert len(used) == len({*used})


@given(any_path() | forked(any_path()))
@settings(max_examples=tries(150))
def test_every_path_of_blocks_of_any_gives_a_request_that_the_responses_api_accepts(path: list[Turn]) -> None:
    assert responses_legal.request_problems(responses_body(build_messages(path))) == []


@given(
    st.lists(st.one_of(REPLIES, REPLIES.map(lambda reply: [ASKED_SHELL, *reply])), max_size=3),
    st.lists(st.sampled_from(["tool_use", "end_turn"])),
)
@settings(max_examples=tries(150))
def test_every_item_goes_back_with_the_items_that_it_needs(rounds: list[list[Block]], stops: list[str]) -> None:
    path = [user(text("x")), assistant(*rounds, stops=stops, request=replace(REQUEST, model=RESPONSES_MODEL))]
    assert responses_legal.request_problems(responses_body(build_messages(path))) == []


class Talk(Chat):
    """A chat whose turns run on three models. Each model writes blocks that only this model can read, and ids in its
    own form.
    """

    def __init__(self, draw: Any) -> None:
        super().__init__(draw)
        self.sent: list[tuple[Message, ...]] = []
        self.models: list[str] = []

    def call_model(self, step: CallModel) -> bool:
        assert self.turn.request is not None
        self.models.append(self.turn.request.model)
        self.sent.append(build_messages(self.path, may_use_tools=step.tools))
        return super().call_model(step)

    def reply(self, number: int) -> list[Block]:
        if self.models[-1] == REQUEST.model:
            return super().reply(number)
        if self.models[-1] == RESPONSES_MODEL:
            return [replace(block, round=number) for block in self.draw(REPLIES)]
        kinds = self.draw(st.lists(st.sampled_from(["text", "cited", "thought", "call"]), max_size=5))
        blocks = [self.one_of_openai(kind, place) for place, kind in enumerate(kinds)]
        return [replace(block, round=number) for block in blocks]

    def one_of_openai(self, kind: str, place: int) -> Block:
        match kind:
            case "text":
                return text(self.draw(WORDS))
            case "cited":
                return cited(self.draw(WORDS))
            case "thought":
                return thought("reasoning", self.draw(WORDS))
            case _:
                return called(f"functions.look:{place}")


@given(st.data(), KINDS)
@settings(max_examples=tries(60))
def test_each_request_to_any_of_them_begins_with_the_bytes_of_the_one_before(data: st.DataObject, kind: str) -> None:
    talk = Talk(data.draw)
    limits = Limits(max_rounds=4, recovery=data.draw(st.sampled_from(["retry", "continue"])))
    for _ in range(data.draw(st.integers(1, 3))):
        talk.exchange(replace(data.draw(REQUESTS), limits=limits))
    to_anthropic = [said_to_anthropic(messages) for messages in talk.sent]
    to_openai = [said_to_openai(messages, QUIRKS[kind]) for messages in talk.sent]
    to_responses = [said_to_responses(messages) for messages in talk.sent]
    for place, (before, after) in enumerate(pairwise(talk.models)):
        if before != after:
            continue  # requests to the other model omit the thoughts
        later = to_anthropic[place + 1]
        kept = without_stand_in(without_abandoned(to_anthropic[place], later), later)
        assert later[: len(kept)] == kept
        if to_openai[place + 1].count(PROGRAM_CUT) > to_openai[place].count(PROGRAM_CUT):
            continue  # The documented exception: requests omit an unfinished program together with its calls.
        # The text that separates results from the user's words is omitted together with the request to continue.
        stand_in = f"\n<assistant>{QUIRKS[kind].after_tools}{ASKED_TO_GO_ON}"
        said = to_openai[place].removesuffix(stand_in).removesuffix(ASKED_TO_GO_ON).removesuffix(f"\n\n{GO_ON}")
        assert to_openai[place + 1].startswith(said)
        assert to_responses[place + 1].startswith(to_responses[place].removesuffix(ASKED_TO_GO_ON))


def said_to_anthropic(messages: tuple[Message, ...]) -> list[tuple[str, bytes]]:
    body = anthropic_body(messages)["messages"]
    return [(message["role"], _unmarked(block)) for message in body for block in message["content"]]


def _unmarked(block: dict[str, Any]) -> bytes:
    members = {name: value for name, value in block.items() if name != "cache_control"}
    return json.dumps(members, separators=(",", ":")).encode()


def said_to_openai(messages: tuple[Message, ...], quirks: Quirks) -> str:
    """Returns the messages of Chat Completions as one text."""
    body = openai_body(messages, quirks)["messages"]
    return "".join(f"\n<{message['role']}>" + "".join(map(str, _values(message))) for message in body)


def said_to_responses(messages: tuple[Message, ...]) -> str:
    """Returns the items of the Responses API as one text. A continued answer is one message, whose text has grown."""
    said, last = "", None
    for item in responses_body(messages)["input"]:
        role = item.get("role", "item")
        said += ("" if role == last != "item" else f"\n<{role}>") + "".join(map(str, _values(item)))
        last = role
    return said


def _values(message: dict[str, Any]) -> Iterator[Any]:
    """Yields the values of a message. If its content has parts, each part's text is a separate value, because the text
    may grow.
    """
    for name, value in message.items():
        if name == "content" and isinstance(value, list):
            yield from (part.get("text", part) for part in value)
        elif name != "role":
            yield value
