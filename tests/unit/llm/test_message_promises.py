"""Checks the two promises of messages.py on paths that hypothesis generates."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import tries
from tests.support.legal.anthropic import message_problems
from tests.support.model_requests import (
    REQUEST,
    assistant,
    call,
    called_by,
    flattened,
    program,
    program_result,
    redacted,
    rendered,
    result,
    returned,
    server_call,
    server_result,
    text,
    thinking,
    user,
    words,
)
from turnstream.domain.asks import Steer
from turnstream.domain.blocks import Block
from turnstream.domain.history import COMPACTED
from turnstream.domain.kinds import SUMMARY, USER_TEXT
from turnstream.domain.results import ResultPart
from turnstream.domain.rounds import Round
from turnstream.domain.steps import (
    INTERRUPTED,
    VOIDED,
    ApplySteers,
    CallModel,
    Compact,
    Fail,
    Finish,
    RunTools,
    Shorten,
    Step,
    next_step,
    open_round_number,
    settle,
)
from turnstream.domain.turns import Limits, Turn, TurnRequest
from turnstream.kit.ids import new_id
from turnstream.libraries.copies.cutting import cut_after
from turnstream.libraries.providers.anthropic.render import render_block
from turnstream.llm.conversation.messages import GIVEN_UP, GO_ON, KnownEntries, build_messages, messages_to_summarise

WORDS = st.sampled_from(["", " \n", "words", "wörds"])
IDS = st.sampled_from(["a", "b", "c"])
REASONS = st.sampled_from(
    ["end_turn", "tool_use", "pause_turn", "max_tokens", "refusal", "interrupted", "cancelled", "error", "new_reason"]
)
SEARCH = '{"type":"web_search_20250305","name":"web_search"}'
REQUESTS = st.sampled_from(
    [
        REQUEST,
        replace(REQUEST, model="claude-sonnet-5-5"),
        replace(REQUEST, provider_tools=(SEARCH,)),
        replace(REQUEST, limits=Limits(max_failed_rounds=1)),
        replace(REQUEST, limits=Limits(earlier_results="none")),
        replace(REQUEST, limits=Limits(earlier_results="short")),
        None,
    ]
)
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}
PARTS: st.SearchStrategy[list[ResultPart]] = st.lists(
    st.sampled_from(["words", "wörds", PICTURE]), min_size=1, max_size=4
)


def alone(words: str) -> list[ResultPart]:
    return [words]


def with_picture(words: str) -> list[ResultPart]:
    return [words, PICTURE]


BLOCKS = st.one_of(
    WORDS.map(text),
    st.builds(thinking, WORDS, st.sampled_from(["", "sig"])),
    st.builds(redacted),
    IDS.map(call),
    st.builds(result, IDS, WORDS, is_error=st.booleans()),
    st.builds(returned, IDS, PARTS, is_error=st.booleans()),
    IDS.map(lambda id: server_call(f"srv_{id}")),
    IDS.map(lambda id: server_result(f"srv_{id}")),
    IDS.map(lambda id: program(f"prog_{id}")),
    st.builds(lambda id, of: called_by(f"prog_{of}", f"by_{of}_{id}"), IDS, IDS),
    IDS.map(lambda id: program_result(f"prog_{id}")),
    WORDS.map(words),
)


@st.composite
def any_blocks(draw: st.DrawFn) -> list[Block]:
    blocks = draw(st.lists(BLOCKS, max_size=6))
    return [replace(block, interrupted=draw(st.booleans())) for block in blocks]


@st.composite
def any_round(draw: st.DrawFn, number: int) -> Round:
    sealed_by = draw(st.sampled_from([1, 1, None]))
    return Round(number, 1, stop_reason=draw(st.sampled_from([draw(REASONS), VOIDED])), sealed_by=sealed_by)


@st.composite
def any_turn(draw: st.DrawFn) -> Turn:
    if draw(st.booleans()):
        return user(*draw(st.lists(WORDS.map(text), max_size=2)))
    turn = assistant(*draw(st.lists(any_blocks(), max_size=4)), request=draw(REQUESTS))
    early = [replace(words(draw(WORDS)), round=0, index=-1) for _ in range(draw(st.sampled_from([0, 0, 1])))]
    rounds = tuple(draw(any_round(round.number)) for round in turn.rounds)
    return replace(turn, rounds=rounds, blocks=(*early, *turn.blocks))


@st.composite
def any_path(draw: st.DrawFn) -> list[Turn]:
    path = draw(st.lists(any_turn(), max_size=3))
    running = draw(any_turn().filter(lambda turn: turn.role == "assistant"))
    return [*path, running]


@st.composite
def forked(draw: st.DrawFn, paths: st.SearchStrategy[list[Turn]]) -> list[Turn]:
    """Generates a path that continues after a copy of its last turn, which is cut after any block."""
    *before, last = draw(paths)
    blocks = tuple(replace(block, index=index) for index, block in enumerate(last.blocks))
    index = draw(st.sampled_from([None, *range(len(blocks))]))
    copy = cut_after(replace(last, status="complete", blocks=blocks), index).turn
    running = assistant(request=draw(REQUESTS))
    return [*before, copy, user(text("And then?")), running]


@given(any_path())
@settings(max_examples=tries(200))
def test_every_path_however_it_was_cut_gives_messages_the_provider_accepts(path: list[Turn]) -> None:
    sealed = [round for round in path[-1].rounds if round.sealed and not round.voided]
    paused = bool(sealed) and sealed[-1].stop_reason in {"pause_turn", "tool_use"}
    assert message_problems(rendered(build_messages(path)), paused=paused or begun_by_the_client(path)) == []


def begun_by_the_client(path: list[Turn]) -> bool:
    """Returns whether the running turn continues text from the client: an answer, followed by a user turn without
    blocks.
    """
    before = path[-3:-1]
    return [turn.role for turn in before] == ["assistant", "user"] and not before[1].blocks


@given(forked(any_path()))
@settings(max_examples=tries(200))
def test_a_path_that_a_fork_has_cut_anywhere_gives_messages_the_provider_accepts(path: list[Turn]) -> None:
    assert message_problems(rendered(build_messages(path))) == []


@given(any_path())
@settings(max_examples=tries(30))
def test_building_messages_changes_no_row_and_depends_on_nothing_else(path: list[Turn]) -> None:
    before = repr(path)
    assert build_messages(path) == build_messages(path)
    assert repr(path) == before


Said = list[tuple[str, bytes]]
Draw = Callable[[st.SearchStrategy[Any]], Any]


class Chat:
    """Simulates a chat as the engine runs it: each step is decided from the rows, while a model, tools, crashes and a
    user act.
    """

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.path: list[Turn] = []
        self.requests: list[Said] = []
        self.known = KnownEntries()
        self.shorter: list[int] = []  # the numbers of the requests before which earlier content was shortened
        self.results = WORDS.map(alone) | PARTS
        self.ids = iter(range(10_000))
        self.steers = 4

    def exchange(self, request: TurnRequest) -> None:
        asked = replace(user(text("question")), id=UUID(int=next(self.ids)))
        self.path += [asked, replace(assistant(), id=UUID(int=next(self.ids)), request=request)]
        while not isinstance(step := self.step(), Finish | Fail):
            match step:
                case Shorten(block):
                    self.begins_anew()
                    self.change([block], recoveries=self.turn.recoveries)
                case Compact():
                    self.begins_anew()
                    self.summarise(step)
                case RunTools(calls):
                    self.run_tools(calls)
                case ApplySteers(steers):
                    self.take_in(steers)
                case CallModel():
                    if not self.call_model(step):
                        self.take_in(self.turn.steers)
                        return
                case _:
                    raise AssertionError(f"nobody was asked: {step}")

    def step(self) -> Step:
        """Lets the user send a steer, if the draw decides so, and then returns the next step."""
        if self.steers and self.draw(st.sampled_from([False, False, False, True])):
            self.steers -= 1
            steer = Steer(new_id(), (text(self.draw(WORDS)),))
            self.path[-1] = replace(self.turn, steers=(*self.turn.steers, steer))
        return next_step(self.turn, self.path[:-1])

    def begins_anew(self) -> None:
        self.shorter.append(len(self.requests))

    def summarise(self, step: Compact) -> None:
        asked = rendered(messages_to_summarise(self.path, step.through))
        assert message_problems(asked) == []
        data = json.dumps({"type": SUMMARY, "through": str(step.through)})
        made = Round(step.round, 1, stop_reason=COMPACTED, sealed_by=1)
        block = Block(0, step.round, 1, SUMMARY, "In short.", data)
        self.change([block], [*self.turn.rounds, made], self.turn.recoveries)

    def take_in(self, steers: Sequence[Steer]) -> None:
        """Applies steers as the recorder does."""
        round, blocks = open_round_number(self.turn) - 1, [block for steer in steers for block in steer.blocks]
        self.change([replace(block, round=round, type=USER_TEXT) for block in blocks], recoveries=self.turn.recoveries)
        self.path[-1] = replace(self.turn, steers=())

    @property
    def turn(self) -> Turn:
        return self.path[-1]

    def change(self, blocks: Sequence[Block] = (), rounds: Sequence[Round] | None = None, recoveries: int = 0) -> None:
        numbered = [replace(block, index=len(self.turn.blocks) + n) for n, block in enumerate(blocks)]
        self.path[-1] = replace(
            self.turn,
            blocks=(*self.turn.blocks, *numbered),
            rounds=self.turn.rounds if rounds is None else tuple(rounds),
            recoveries=recoveries,
        )

    def call_model(self, step: CallModel) -> bool:
        """Makes a model call. Returns False if the turn ended with the call."""
        messages = build_messages(self.path, may_use_tools=step.tools)
        assert build_messages(self.path, may_use_tools=step.tools, known=self.known) == messages
        self.requests.append(flattened(messages))
        begun = Round(step.round, 1, messages=len(self.requests[-1]))
        known = self.turn.rounds
        self.change(rounds=[*known, begun])
        blocks = self.reply(step.round)
        match self.draw(st.sampled_from(["whole", "whole", "cut", "cancelled"])):
            case "whole":
                stop = self.stop_reason(blocks)
                self.change(blocks, [*known, replace(begun, stop_reason=stop, sealed_by=1)])
            case "cancelled":
                self.change(self.cut(blocks), [*known, replace(begun, stop_reason="cancelled", sealed_by=1)])
                return False
            case _:
                return self.recover(begun, self.cut(blocks))
        return True

    def recover(self, begun: Round, blocks: list[Block]) -> bool:
        *closed, last = [*blocks, None]
        still_open = closed.pop() if closed and closed[-1].interrupted else last
        recoveries = self.turn.recoveries + 1
        what = settle(replace(self.turn, blocks=(*self.turn.blocks, *closed)), still_open, recoveries)
        earlier = [round for round in self.turn.rounds if round != begun]
        match what:
            case "seal" | "keep":
                kept = [*closed, *([still_open] if still_open else [])]
                self.change(kept, [*earlier, replace(begun, stop_reason=INTERRUPTED, sealed_by=1)], recoveries)
            case "void":
                self.change((), [*earlier, replace(begun, stop_reason=VOIDED)], recoveries)
            case "give_up":
                self.change(blocks, [*earlier, replace(begun, stop_reason="error", sealed_by=1)], recoveries)
                return False
        return True

    def reply(self, number: int) -> list[Block]:
        """Generates a legal reply of a model. After a pause, the reply begins with the results of the server tools. A
        running program calls tools again, or ends.
        """
        blocks: list[Block] = []
        for at_work in server_calls_at_work(self.requests[-1], "code_execution"):
            if self.draw(st.booleans()):
                return [replace(block, round=number) for block in self.calls_by(at_work)]
            blocks.append(program_result(at_work))
        blocks += map(server_result, server_calls_at_work(self.requests[-1], "web_search"))
        for kind in self.draw(
            st.lists(st.sampled_from(["text", "thinking", "redacted", "server", "call"]), max_size=5)
        ):
            blocks += self.one(kind)
        if self.draw(st.sampled_from([False, False, True])):
            blocks.append(server_call(f"srv_{next(self.ids)}"))
        elif self.draw(st.sampled_from([False, False, True])):
            id = f"prog_{next(self.ids)}"
            blocks += [program(id), *self.calls_by(id)]
        return [replace(block, round=number) for block in blocks]

    def calls_by(self, program: str) -> list[Block]:
        return [called_by(program, f"by_{next(self.ids)}") for _ in range(self.draw(st.integers(1, 2)))]

    def one(self, kind: str) -> list[Block]:
        id = f"{kind}_{next(self.ids)}"
        match kind:
            case "text":
                return [text(self.draw(WORDS))]
            case "thinking":
                return [thinking(self.draw(WORDS))]
            case "redacted":
                return [redacted()]
            case "server":
                return [server_call(id), server_result(id)]
            case _:
                return [call(id)]

    def stop_reason(self, blocks: Sequence[Block]) -> str:
        if blocks and blocks[-1].type == "server_tool_use":
            return "tool_use" if any(block.is_call for block in blocks) else "pause_turn"
        return "tool_use" if any(block.is_call for block in blocks) else "end_turn"

    def cut(self, blocks: list[Block]) -> list[Block]:
        """Cuts the reply in the middle of one of its blocks."""
        whole = self.draw(st.integers(0, len(blocks)))
        rest = [replace(block, interrupted=True, data=None) for block in blocks[whole : whole + 1]]
        return [*blocks[:whole], *rest]

    def run_tools(self, calls: Sequence[Block]) -> None:
        """Adds the results of all calls, or only of the first calls, as if a crash had interrupted the others."""
        settled = self.draw(st.integers(1, len(calls)))
        answers = [
            returned(b.tool_use_id or "", self.draw(self.results), round=b.round, is_error=self.draw(st.booleans()))
            for b in calls[:settled]
        ]
        self.change(answers, recoveries=self.turn.recoveries)


class LongChat(Chat):
    """Asserts in each call that the provider would accept the request."""

    def call_model(self, step: CallModel) -> bool:
        sealed = [round for round in self.turn.rounds if round.sealed]
        paused = bool(sealed) and sealed[-1].stop_reason in {"pause_turn", "tool_use"}
        messages = build_messages(self.path, may_use_tools=step.tools)
        assert message_problems(rendered(messages), paused=paused) == []
        return super().call_model(step)

    def reply(self, number: int) -> list[Block]:
        """Makes most replies call tools."""
        more = self.one("call") if self.draw(st.sampled_from([True, True, False])) else []
        return [*super().reply(number), *(replace(block, round=number) for block in more)]

    def stop_reason(self, blocks: Sequence[Block]) -> str:
        return "tool_use" if any(block.is_call for block in blocks) else super().stop_reason(blocks)


OTHER_REQUESTS = st.lists(
    st.tuples(st.sampled_from([None, "claude-sonnet-5-5"]), REQUESTS, st.booleans()), min_size=2, max_size=4
)


@given(any_path(), OTHER_REQUESTS)
@settings(max_examples=tries(100))
def test_a_request_from_cached_messages_equals_one_without_a_cache(
    path: list[Turn], requests: list[tuple[str | None, TurnRequest, bool]]
) -> None:
    known = KnownEntries()
    for model, request, tools in requests:
        path = [*path[:-1], replace(path[-1], request=request)]
        alone = build_messages(path, model, may_use_tools=tools)
        assert build_messages(path, model, may_use_tools=tools, known=known) == alone


@given(st.data())
@settings(max_examples=tries(200))
def test_each_request_begins_with_the_bytes_of_the_one_before(data: st.DataObject) -> None:
    chat = Chat(data.draw)
    limits = Limits(
        max_rounds=4,
        hard_max_rounds=data.draw(st.sampled_from([None, 6])),
        tell_rounds=data.draw(st.booleans()),
        max_failed_rounds=data.draw(st.sampled_from([1, 2, 3])),
        recovery=data.draw(st.sampled_from(["retry", "continue"])),
    )
    tools = data.draw(st.sampled_from([(), (SEARCH,)]))
    for _ in range(data.draw(st.integers(1, 3))):
        chat.exchange(replace(REQUEST, limits=limits, provider_tools=tools))
    for request, later in pairwise(chat.requests):
        kept = without_abandoned(without_stand_in(request, later), later)
        assert later[: len(kept)] == kept


@given(st.data())
@settings(max_examples=tries(50))
def test_a_chat_that_becomes_too_long_gives_valid_requests_with_a_new_prefix_only_after_a_shortening(
    data: st.DataObject,
) -> None:
    chat = LongChat(data.draw)
    words = st.sampled_from(["words", "long " * 300, "longer " * 500])
    chat.results = words.map(alone) | words.map(with_picture) | PARTS
    limits = Limits(
        max_rounds=6, max_failed_rounds=100, context_window=data.draw(st.sampled_from([1500, 3000])), compact_at=0.6
    )
    for _ in range(data.draw(st.integers(1, 3))):
        chat.exchange(replace(REQUEST, limits=limits))
    for number, (request, later) in enumerate(pairwise(chat.requests), 1):
        if number not in chat.shorter:
            kept = without_abandoned(without_stand_in(request, later), later)
            assert later[: len(kept)] == kept


def server_calls_at_work(request: Said, name: str) -> list[str]:
    """Returns the ids of the calls that have no result in the request, because the provider still continues these
    calls.
    """
    blocks = [json.loads(block) for _, block in request]
    answered = {block.get("tool_use_id") for block in blocks if block["type"] == f"{name}_tool_result"}
    return [block["id"] for block in blocks if block.get("name") == name and block["id"] not in answered]


STAND_INS = [("user", render_block(text(stand_in))) for stand_in in (GO_ON, GIVEN_UP)]


def without_stand_in(request: Said, later: Said) -> Said:
    """Removes our prompt to continue, which later requests omit if the call failed and the user has sent a message
    since.
    """
    spoken = request[-1] in STAND_INS and later[: len(request)] != request
    return request[:-1] if spoken else request


BLANK = b'{"type":"text","text":" \\n"}'


def without_abandoned(request: Said, later: Said) -> Said:
    """Removes what later requests may omit by the documented exception: a server tool that was still running when its
    turn ended, the calls that it made, and the thinking and blanks before it.
    """
    blocks = [(pair, json.loads(pair[1])) for pair in request]
    answered = {block["tool_use_id"] for _, block in blocks if block["type"].endswith("_tool_result")}
    left = {
        block["id"]
        for pair, block in blocks
        if block["type"] == "server_tool_use" and block["id"] not in answered and pair not in later
    }
    left |= {block["id"] for _, block in blocks if block.get("caller", {}).get("tool_id") in left}
    kept = [pair for pair, block in blocks if block.get("id", block.get("tool_use_id")) not in left]
    while kept != request and (b"thinking" in kept[-1][1] or kept[-1][1] == BLANK):
        kept.pop()
    return kept
