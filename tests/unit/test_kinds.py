"""The clients, the dialects, the providers and the pages know every row of the table of block kinds."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.support.dialects import DIALECTS
from tests.support.renderers import RENDERERS
from tests.support.turns import USER_TURN, call, sealed, text, turn_of
from turnstream.api.codec import block_json, to_json
from turnstream.domain.blocks import REJECTED, Block
from turnstream.domain.compaction import COMPACTION
from turnstream.domain.cursor import Cursor
from turnstream.domain.events import BlockStop
from turnstream.domain.history import COMPACTED
from turnstream.domain.kinds import (
    CALLS,
    FILES,
    KINDS,
    PROVIDER_SUMMARY,
    REDACTED_THINKING,
    SUMMARY,
    TEXT,
    THINKING,
    VERDICT,
    BlockKind,
    Sent,
    Shown,
    kind_of,
)
from turnstream.domain.log import marks_of, start_of_block
from turnstream.domain.turns import Limits, Turn
from turnstream.extensions.ag_ui.encoder import Run, RunEncoder
from turnstream.extensions.ag_ui.messages import ClientIds, answer_messages
from turnstream.extensions.ai_sdk.chunks import UiEncoder
from turnstream.extensions.ai_sdk.messages import ui_message
from turnstream.extensions.anthropic_api.events import EventPlace, MessageEvents
from turnstream.extensions.openai_api.events import ResponseEvents
from turnstream.kit.offload import Portions
from turnstream.libraries.providers.anthropic.render import render as render_anthropic
from turnstream.libraries.providers.anthropic.render import render_block
from turnstream.llm.conversation.messages import build_messages
from turnstream.llm.provider import Message, ModelRequest
from turnstream.stream.live import LiveView
from turnstream_client.assembler import Assembler
from turnstream_terminal.turn_parts import BlockActivity, PartBuilder, Prose, SummaryLine, TurnPart, UserText

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "app/turnstream/web/static"
PAGE = "\n".join(path.read_text(encoding="utf-8") for path in sorted(STATIC.glob("*.js")))
PROTOCOL = (ROOT / "docs/protocol.md").read_text(encoding="utf-8")
CONTENT = "c0ffee"  # The test searches for this content in everything that contains the block.


def each_kind(chosen: Callable[[BlockKind], bool] = lambda _: True) -> pytest.MarkDecorator:
    rows = list(filter(chosen, KINDS.values()))
    return pytest.mark.parametrize("kind", rows, ids=[kind.name for kind in rows])


# The data of a block of each kind. A new kind needs an example here.
DATA: dict[str, dict[str, Any] | None] = {
    "text": None,
    "thinking": {"signature": "signed"},
    "redacted_thinking": {"data": CONTENT},
    "tool_use": None,
    "server_tool_use": {"id": "a", "name": "look"},
    "mcp_tool_use": {"id": "a", "name": "look", "server_name": "sea"},
    "tool_result": None,
    "image": {"source": {"type": "url", "url": f"https://sea.example/{CONTENT}"}},
    "document": {"source": {"type": "base64", "media_type": "application/pdf", "data": CONTENT}},
    "compaction": {},
    "summary": {"through": str(USER_TURN)},
    "shortened": {
        "first": {"turn": str(USER_TURN), "round": 1},
        "last": {"turn": str(USER_TURN), "round": 1},
        "head": 500,
        "results": 2,
        "left_out": 9000,
    },
    "user_text": None,
    "report": {"job": str(USER_TURN), "turn": str(USER_TURN), "round": 1, "tool_use_id": "a", "name": "look"},
    "verdict": None,
}


def example(kind: BlockKind, index: int = 0) -> Block:
    """Returns a closed block of this kind, as a row stores it."""
    data = DATA[kind.name]
    text = "" if kind.family == "file" or kind.name == REDACTED_THINKING else CONTENT
    if kind.streams == "input":
        text = json.dumps({"for": CONTENT})
    has_call = kind.family in {"call", "server_call", "result"}
    return Block(
        index,
        1,
        1,
        kind.name,
        text,
        REJECTED if kind.name == VERDICT else None if data is None else json.dumps({"type": kind.name, **data}),
        tool_use_id="a" if has_call else None,
        name="look" if has_call else None,
    )


def turn_with(kind: BlockKind) -> Turn:
    """Returns an assistant turn with one round that contains the example. If the example is a result, its call precedes
    it.
    """
    before = [call()] if kind.family == "result" else []
    reason = COMPACTED if kind.name == SUMMARY else "tool_use"
    limits = Limits(provider_edits=(COMPACTION,))
    return turn_of(*before, example(kind, len(before)), rounds=[sealed(stop_reason=reason)], limits=limits)


def test_a_row_is_found_by_its_name() -> None:
    assert [kind_of(name) for name in KINDS] == list(KINDS.values())


def test_a_type_without_a_row_is_kept_as_it_came() -> None:
    assert kind_of("hologram") == BlockKind("hologram", "other")


def test_the_results_of_a_providers_tools_are_known_by_how_their_types_end() -> None:
    assert kind_of("web_search_tool_result") == BlockKind("web_search_tool_result", "server_result")


# --- the log ---------------------------------------------------------------------------------------------------------


@each_kind()
def test_the_log_has_a_block_before_or_behind_the_stop_of_its_round(kind: BlockKind) -> None:
    names = [type(mark).__name__ for mark in marks_of(turn_with(kind))]
    after = names[names.index("RoundStop") :]
    assert ("BlockStop" in after) == kind.after_seal


# --- requests to models ----------------------------------------------------------------------------------------------


@each_kind()
def test_a_later_request_carries_a_block_where_its_row_says(kind: BlockKind) -> None:
    turn = turn_with(kind)
    # a provider's call is sent only with its result, and a thought only with the content that follows
    if kind.sent == "in_place":
        answer = Block(1, 1, 1, "web_tool_result", data='{"tool_use_id":"a"}', tool_use_id="a")
        turn = replace(turn, blocks=(*turn.blocks, answer, text(index=2)))
    ahoy = Block(0, 0, 0, TEXT, "Ahoy")
    question = replace(turn, id=USER_TURN, role="user", request=None, rounds=(), blocks=(ahoy,))
    messages = build_messages([question, turn])
    found = [
        (message.role, block.type)
        for message in messages
        for block in message.blocks
        if CONTENT in block.text or CONTENT in (block.data or "")
    ]
    assert found == list(_carried_as(kind.sent, kind.name))


def _carried_as(sent: Sent, name: str) -> list[tuple[str, str]]:
    places: dict[Sent, list[tuple[str, str]]] = {
        "in_place": [("assistant", name)],
        "after_call": [("user", name)],
        "as_user_text": [("user", TEXT)],
        "for_history": [("user", TEXT)],
        "never": [],
    }
    assert places.keys() == set(get_args(Sent))
    return places[sent]


def request_with(kind: BlockKind) -> ModelRequest:
    block = example(kind)
    question = Message("user", (Block(0, 0, 0, TEXT, "Ahoy"),))
    rest = {
        "file": [Message("user", (block,))],
        "result": [Message("assistant", (call(),)), Message("user", (block,))],
    }
    messages = [question, *rest.get(kind.family, [Message("assistant", (block, text())), question])]
    return ModelRequest("model", tuple(messages))


each_rendered_kind = each_kind(lambda kind: kind.sent in {"in_place", "after_call"})


@each_rendered_kind
def test_anthropic_is_sent_every_kind_as_it_came(kind: BlockKind) -> None:
    block = json.loads(render_block(example(kind)))
    assert block["type"] == kind.name
    assert CONTENT in json.dumps(block)
    if kind.streams:
        assert CONTENT in json.dumps(block[kind.streams])
    assert CONTENT.encode() in render_anthropic(request_with(kind))


@pytest.mark.parametrize("api", sorted(RENDERERS.keys() - {"anthropic"}))
@each_rendered_kind
def test_others_are_sent_what_holds_for_every_provider(kind: BlockKind, api: str) -> None:
    holds_everywhere = kind.portable or kind.family in {"file", "result"}
    assert (CONTENT.encode() in RENDERERS[api](request_with(kind))) == holds_everywhere


# --- dialects --------------------------------------------------------------------------------------------------------


@each_kind()
def test_the_api_shows_the_members_of_every_kind(kind: BlockKind) -> None:
    shown = block_json(example(kind))
    members = {"index", "round", "type", "text"}
    if kind.family in {"call", "server_call"}:
        members |= {"id", "name", "input"}
    if kind.family == "result":
        members |= {"tool_use_id", "name", "is_error"}
    if kind.name == THINKING:
        members |= {"signature"}
    elif example(kind).data is not None:
        members |= {"data"}
    assert shown.keys() == members


def test_each_dialect_is_here() -> None:
    imported = set(re.findall(r"^from turnstream\.extensions\.(\w+)\.", Path(__file__).read_text(), re.MULTILINE))
    assert DIALECTS.keys() <= imported


AI_SDK: dict[Shown, tuple[str, str]] = {
    # the first chunk of the stream, and the type of the message part
    "prose": ("text-start", "text"),
    "thought": ("reasoning-start", "reasoning"),
    "hidden_thought": ("data-", "data-"),
    "call": ("tool-input-start", "tool-look"),
    "inside_call": ("tool-output-available", "tool-look"),
    "file": ("data-", "data-"),
    "user_text": ("data-", "data-"),
    "note": ("data-", "data-"),
    "raw": ("data-", "data-"),
}


@each_kind()
def test_the_ai_sdk_streams_every_kind(kind: BlockKind) -> None:
    turn = turn_with(kind)
    encode = UiEncoder(turn, lambda: turn)
    block = turn.blocks[-1]
    frames = encode(start_of_block(block), None) + encode(BlockStop(1, block), None)
    first = json.loads(frames.split(b"\n\n")[0].removeprefix(b"data: "))
    assert first["type"] == _part_name(AI_SDK[kind.shown][0], kind)


@each_kind()
async def test_the_ai_sdk_has_every_kind_in_its_messages(kind: BlockKind) -> None:
    message = await ui_message(turn_with(kind), "/api/uploads/", Portions())
    assert message.parts[-1]["type"] == _part_name(AI_SDK[kind.shown][1], kind)


OPENAI: dict[Shown, str | None] = {
    "prose": "message",
    "thought": "reasoning",
    "hidden_thought": None,
    "call": "mcp_call",
    "inside_call": "mcp_call",
    "file": None,
    "user_text": None,
    "note": None,
    "raw": None,
}


@each_kind()
def test_openai_has_an_item_for_each_kind_or_none(kind: BlockKind) -> None:
    turn = replace(turn_with(kind), created_at=datetime(2026, 1, 1, tzinfo=UTC))
    events = ResponseEvents(turn)
    for mark in marks_of(turn):
        list(events.take(mark))
    shown = OPENAI[kind.shown]
    assert [item["type"] for item in events.response()["output"]] == ([] if shown is None else [shown])


ANTHROPIC: frozenset[Shown] = frozenset({"prose", "thought", "hidden_thought", "file", "raw"})


@each_kind()
def test_anthropic_streams_the_blocks_of_its_messages(kind: BlockKind) -> None:
    turn = turn_with(kind)
    view = LiveView(turn)
    events = MessageEvents(turn, 0, lambda: view, EventPlace())
    frames = b"".join(events(mark, Cursor(1, place)) for place, mark in enumerate(marks_of(turn), 1))
    data = [json.loads(line[6:]) for line in frames.splitlines() if line.startswith(b"data: ")]
    streamed = [event["content_block"]["type"] for event in data if event["type"] == "content_block_start"]
    content = json.loads(to_json(events.message()))["content"]
    assert streamed == [block["type"] for block in content]
    is_shown = kind.shown in ANTHROPIC or kind.family == "server_call"
    assert streamed == ([kind.name] if is_shown else [])
    if kind.name in {TEXT, THINKING}:
        assert json.loads(render_block(example(kind))).items() <= content[0].items()


AG_UI: dict[Shown, tuple[str, str]] = {
    # the first event in the run, and the role of the message
    "prose": ("TEXT_MESSAGE_START", "assistant"),
    "thought": ("REASONING_START", "reasoning"),
    "hidden_thought": ("ACTIVITY_SNAPSHOT", "activity"),
    "call": ("TOOL_CALL_START", "assistant"),
    "inside_call": ("TOOL_CALL_RESULT", "tool"),
    "file": ("ACTIVITY_SNAPSHOT", "activity"),
    "user_text": ("TEXT_MESSAGE_START", "user"),
    "note": ("ACTIVITY_SNAPSHOT", "activity"),
    "raw": ("ACTIVITY_SNAPSHOT", "activity"),
}


@each_kind()
async def test_ag_ui_has_every_kind_in_its_events_and_its_messages(kind: BlockKind) -> None:
    turn = turn_with(kind)
    encode = RunEncoder(turn, Run("thread", "run"), lambda: turn, collects=False)
    block = turn.blocks[-1]
    frames = encode(start_of_block(block), None) + encode(BlockStop(1, block), None)
    first = json.loads(frames.split(b"\n\n")[0].removeprefix(b"data: "))
    messages = await answer_messages(turn.id, turn.blocks, ClientIds(), Portions())
    assert (first["type"], messages[-1]["role"]) == AG_UI[kind.shown]


def _part_name(part: str, kind: BlockKind) -> str:
    return part + kind.name.replace("_", "-") if part == "data-" else part


# --- clients ---------------------------------------------------------------------------------------------------------


@each_kind()
def test_the_terminal_shows_every_kind(kind: BlockKind) -> None:
    turn = turn_with(kind)
    state = Assembler()
    state.start, state.blocks = {"turn": "1"}, list(map(block_json, turn.blocks))
    state.rounds = {1: {"stop_reason": "tool_use"}}
    parts = PartBuilder().build(state, BlockActivity(), 0)
    assert len(parts) == 1, "a result has no part beside that of its call"
    assert _look(parts[0], kind) == kind.shown


def _look(part: TurnPart, kind: BlockKind) -> Shown:
    match part.content:
        case Prose(markdown):
            assert CONTENT in markdown
            return "prose"
        case UserText(text):
            assert CONTENT in text
            return "user_text"
        case SummaryLine(status="thought", details=details):
            return "thought" if CONTENT in details else "hidden_thought"
        case SummaryLine(status="running", name="look"):
            return "call"
        case SummaryLine(status="ok", name="look"):
            return "inside_call"
        case SummaryLine(name=name) if name != kind.name.replace("_", " "):
            return "note"
        case _:  # for files, the terminal shows only their names
            return "file" if kind.family == "file" else "raw"


@each_kind(lambda kind: kind.shown != "raw")
def test_the_page_knows_every_kind(kind: BlockKind) -> None:
    """The page's script contains the kind's name as a string or as a key, or tests for the ending of the name."""
    endings = re.findall(r"endsWith\('(\w+)'\)", PAGE)
    named = re.search(rf"'{kind.name}'|[{{,]\s*{kind.name}\s*[,:}}]", PAGE)
    assert named or any(kind.name.endswith(ending) for ending in endings)


# The kinds that the text of a chat omits: thoughts, and blocks that only the server or the provider reads.
NOT_IN_THE_TEXT = {
    *("thinking", "redacted_thinking", "server_tool_use", "mcp_tool_use"),
    *("compaction", "summary", "shortened", "verdict"),
}


def test_the_page_writes_every_kind_into_the_text_of_a_chat_or_leaves_it_out() -> None:
    script = (STATIC / "export.js").read_text(encoding="utf-8")
    assert "if (isFile(block))" in script
    assert {*re.findall(r"type === '(\w+)'", script), *FILES} == KINDS.keys() - NOT_IN_THE_TEXT


def test_the_page_knows_every_kind_of_file() -> None:
    shown = re.search(r"^export const isFile = (.*)$", (STATIC / "files.js").read_text(encoding="utf-8"), re.MULTILINE)
    assert shown is not None
    assert set(re.findall(r"'(\w+)'", shown[1])) == FILES


@each_kind(lambda kind: kind.family in {"result", "steer", "note"})
def test_the_protocol_describes_every_kind_of_ours(kind: BlockKind) -> None:
    assert f"\n| `{kind.name}` |" in PROTOCOL


@each_kind(lambda kind: kind.streams is not None and kind.name not in CALLS)
def test_guards_check_all_text_that_a_model_streams(kind: BlockKind) -> None:
    """Guards skip only the provider's summary, which must be sent back to the provider unchanged."""
    assert (kind.guarded is None) == (kind.name == PROVIDER_SUMMARY)


@each_kind()
def test_what_is_guarded_is_streamed(kind: BlockKind) -> None:
    assert kind.guarded is None or kind.streams is not None


# --- the searches ----------------------------------------------------------------------------------------------------

# The kinds that the search omits. Each new kind must be listed here or be indexed: then the index's functions, the
# statement that finds a match in a message, and the search without an index must know the kind.
NOT_SEARCHED = {
    *("thinking", "redacted_thinking", "tool_use", "server_tool_use", "mcp_tool_use", "image", "document"),
    *("compaction", "summary", "shortened", "report", "verdict"),
}
WITHOUT_RESULTS = "simple_search/search.py"


@pytest.mark.parametrize(
    "file",
    [
        *("search/index.py", "search/sql/functions/search_index.sql", "search/sql/functions/search_index_rows.sql"),
        WITHOUT_RESULTS,
    ],
)
def test_each_search_has_every_kind_or_leaves_it_out(file: str) -> None:
    text = (ROOT / "app/turnstream/extensions" / file).read_text(encoding="utf-8")
    named = KINDS.keys() & set(re.findall(r"['\"](\w+)['\"]", text))
    assert named == KINDS.keys() - NOT_SEARCHED - ({"tool_result"} if file == WITHOUT_RESULTS else set())
