"""One chat, two providers in turns: whatever they leave in the rows, both accept, and neither is told anything anew."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.blocks import Block
from app.domain.steps import CallModel
from app.domain.turns import Limits, Turn
from app.llm import anthropic_render, openai_render
from app.llm.messages import GO_ON, build_messages
from app.llm.openai_quirks import QUIRKS, Quirks
from app.llm.provider import Message, ModelRequest
from tests.unit.llm import legal, openai_legal
from tests.unit.llm.build import REQUEST, assistant, result, text, user
from tests.unit.llm.test_message_promises import BLOCKS, WORDS, Chat, any_round, without_abandoned
from tests.unit.llm.test_openai_render import called, thought
from tests.unit.llm.test_openai_translation import cited

OPENAI_MODEL = "gpt-6-sol"
IDS = st.sampled_from(["a", "functions.look:0", "functions.look:1", "chatcmpl-tool-" + "0" * 32, "ä b"])
NAMES = st.sampled_from(["look", "look at!", None, "n" * 100])
INPUTS = st.sampled_from(["", "{}", '{"q": ', "[1]", '{"q":"\\ud83d"}'])
SOMEBODYS = st.one_of(
    BLOCKS,
    st.builds(thought, st.sampled_from(["reasoning", "thinking"]), WORDS),
    st.builds(lambda words: thought("reasoning_details", words, reasoning_details=[{"data": "s"}]), WORDS),
    WORDS.map(cited),
    st.builds(called, IDS, INPUTS, NAMES),
    st.builds(result, IDS, WORDS, is_error=st.booleans()),
)
REQUESTS = st.sampled_from([REQUEST, replace(REQUEST, model=OPENAI_MODEL)])
KINDS = st.sampled_from(sorted(QUIRKS))
# It stands in for another provider's way to go on, and is not said again when the answer has.
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


def anthropic_body(messages: tuple[Message, ...]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(anthropic_render.render(ModelRequest("claude-opus-5-5", messages)))
    return found


@given(any_path(), KINDS)
@settings(max_examples=150, deadline=None)
def test_every_path_of_blocks_of_either_gives_a_request_that_each_server_accepts(path: list[Turn], kind: str) -> None:
    messages, quirks = build_messages(path), QUIRKS[kind]
    body = openai_body(messages, quirks)
    assert openai_legal.request_problems(body, ids=quirks.call_ids.pattern, thoughts=quirks.thoughts_go_back) == []


@given(any_path())
@settings(max_examples=150, deadline=None)
def test_every_path_of_blocks_of_either_gives_a_request_that_anthropic_accepts(path: list[Turn]) -> None:
    sealed = [round for round in path[-1].rounds if round.sealed and not round.voided]
    paused = bool(sealed) and sealed[-1].stop_reason in {"pause_turn", "tool_use"}
    body = anthropic_body(build_messages(path))
    assert legal.request_problems(body, paused=paused) == []
    used = [b["id"] for m in body["messages"] for b in m["content"] if b["type"] == "tool_use"]
    assert len(used) == len({*used})


class Talk(Chat):
    """A chat whose turns go to two models: each says what only it can say, and uses ids of its own making."""

    def __init__(self, draw: Any) -> None:
        super().__init__(draw)
        self.sent: list[tuple[Message, ...]] = []
        self.models: list[str] = []

    def call_model(self, step: CallModel) -> bool:
        assert self.turn.request is not None
        self.models.append(self.turn.request.model)
        self.sent.append(build_messages(self.path))
        return super().call_model(step)

    def reply(self, number: int) -> list[Block]:
        if self.models[-1] != OPENAI_MODEL:
            return super().reply(number)
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
@settings(max_examples=60, deadline=None)
def test_each_request_to_either_begins_with_the_bytes_of_the_one_before(data: st.DataObject, kind: str) -> None:
    talk = Talk(data.draw)
    limits = Limits(max_rounds=4, recovery=data.draw(st.sampled_from(["retry", "continue"])))
    for _ in range(data.draw(st.integers(1, 3))):
        talk.exchange(replace(data.draw(REQUESTS), limits=limits))
    to_anthropic = [said_to_anthropic(messages) for messages in talk.sent]
    to_openai = [said_to_openai(messages, QUIRKS[kind]) for messages in talk.sent]
    for place, (before, after) in enumerate(pairwise(talk.models)):
        if before != after:
            continue  # thoughts hold for one model only, so they come and go with it
        kept = without_abandoned(to_anthropic[place], to_anthropic[place + 1])
        assert to_anthropic[place + 1][: len(kept)] == kept
        assert to_openai[place + 1].startswith(to_openai[place].removesuffix(ASKED_TO_GO_ON))


def said_to_anthropic(messages: tuple[Message, ...]) -> list[tuple[str, bytes]]:
    body = anthropic_body(messages)["messages"]
    return [(message["role"], _unmarked(block)) for message in body for block in message["content"]]


def _unmarked(block: dict[str, Any]) -> bytes:
    members = {name: value for name, value in block.items() if name != "cache_control"}
    return json.dumps(members, separators=(",", ":")).encode()


def said_to_openai(messages: tuple[Message, ...], quirks: Quirks) -> str:
    """All that is said, in one text."""
    body = openai_body(messages, quirks)["messages"]
    return "".join(f"\n<{message['role']}>" + "".join(map(str, _values(message))) for message in body)


def _values(message: dict[str, Any]) -> Sequence[Any]:
    return [value for name, value in message.items() if name != "role"]
