"""Short functions that construct turns, rounds and blocks."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from turnstream.domain.blocks import Block
from turnstream.domain.results import ResultPart, joined_texts, layout_of
from turnstream.domain.rounds import Round
from turnstream.domain.turns import Turn, TurnRequest
from turnstream.libraries.providers.anthropic.render import render_block
from turnstream.llm.provider import Message

REQUEST = TurnRequest("claude-opus-5-5", "Be kind.")


def text(words: str, **fields: Any) -> Block:
    return _block("text", text=words, **fields)


def thinking(words: str, signature: str = "sig", **fields: Any) -> Block:
    return _block("thinking", text=words, data=_json(type="thinking", thinking="", signature=signature), **fields)


def redacted(secret: str = "x", **fields: Any) -> Block:
    return _block("redacted_thinking", data=_json(type="redacted_thinking", data=secret), **fields)


def call(id: str, input: str = "{}", **fields: Any) -> Block:
    data = _json(type="tool_use", id=id, name="look", input={})
    return _block("tool_use", text=input, data=data, tool_use_id=id, name="look", **fields)


def result(id: str, said: str = "seen", **fields: Any) -> Block:
    return _block("tool_result", text=said, tool_use_id=id, name="look", **fields)


def server_call(id: str, **fields: Any) -> Block:
    data = _json(type="server_tool_use", id=id, name="web_search", input={})
    return _block("server_tool_use", text='{"query":"tides"}', data=data, tool_use_id=id, name="web_search", **fields)


def server_result(id: str, **fields: Any) -> Block:
    data = _json(type="web_search_tool_result", tool_use_id=id, content=[])
    return _block("web_search_tool_result", data=data, tool_use_id=id, **fields)


def program(id: str, **fields: Any) -> Block:
    """Returns a run of code at the provider, which may call tools of this server."""
    data = _json(type="server_tool_use", id=id, name="code_execution", input={})
    return _block(
        "server_tool_use", text='{"code":"look()"}', data=data, tool_use_id=id, name="code_execution", **fields
    )


def called_by(program: str, id: str, **fields: Any) -> Block:
    caller = {"type": "code_execution_20250825", "tool_id": program}
    data = _json(type="tool_use", id=id, name="look", input={}, caller=caller)
    return _block("tool_use", text="{}", data=data, tool_use_id=id, name="look", **fields)


def program_result(id: str, **fields: Any) -> Block:
    data = _json(type="code_execution_tool_result", tool_use_id=id, content={"type": "code_execution_result"})
    return _block("code_execution_tool_result", data=data, tool_use_id=id, **fields)


def words(said: str, **fields: Any) -> Block:
    """Returns a message that a user sends as a steer."""
    return _block("user_text", text=said, notes='{"steer":"1"}', **fields)


def _block(type: str, **fields: Any) -> Block:
    return Block(**{"index": 0, "round": 1, "attempt": 1, "type": type, **fields})


def _json(**members: Any) -> str:
    return json.dumps(members, separators=(",", ":"))


def user(*blocks: Block) -> Turn:
    return Turn(UUID(int=1), UUID(int=0), None, "user", "complete", blocks=_numbered(blocks))


def assistant(*rounds: Sequence[Block], stops: Sequence[str] = (), request: TurnRequest | None = REQUEST) -> Turn:
    """Returns an assistant turn with one sealed round for each list of blocks. `stops` has the stop reasons of the
    rounds.
    """
    blocks = [replace(block, round=number) for number, blocks in enumerate(rounds, 1) for block in blocks]
    reasons = [*stops, *["end_turn"] * len(rounds)]
    sealed = tuple(Round(n, 1, stop_reason=reasons[n - 1], sealed_by=1) for n in range(1, len(rounds) + 1))
    return Turn(
        UUID(int=2), UUID(int=0), None, "assistant", "running", 1, request, rounds=sealed, blocks=_numbered(blocks)
    )


def _numbered(blocks: Sequence[Block]) -> tuple[Block, ...]:
    return tuple(replace(block, index=index) for index, block in enumerate(blocks))


def rendered(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Returns the messages as the provider gets them."""
    return [
        {"role": message.role, "content": [json.loads(render_block(block)) for block in message.blocks]}
        for message in messages
    ]


def flattened(messages: Sequence[Message]) -> list[tuple[str, bytes]]:
    return [(message.role, render_block(block)) for message in messages for block in message.blocks]


def returned(id: str, parts: Sequence[ResultPart], **fields: Any) -> Block:
    """Returns a tool result that may contain files or other parts beside text."""
    return result(id, joined_texts(parts), data=layout_of(parts), **fields)
