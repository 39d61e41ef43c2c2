"""What one provider said, in a form that another one takes. Pure, and the same in every request.

A block that an adapter marks as its own (`provider` in its `data`) says something only that adapter can send back.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

import msgspec
from msgspec import Raw

from app.domain.blocks import Block
from app.domain.kinds import PORTABLE
from app.llm.conversation.sendable import drop_blank_reply, drop_last_thoughts, grouped
from app.llm.provider import Message
from app.llm.transport.raw import encoded, is_object, members_of, mended

SILENT_FAILURE = "The tool failed and said nothing."

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")


def tool_input(text: str) -> Raw:
    """A tool input as it was streamed. What is no JSON object goes back as a string in one, as documented."""
    for candidate in (text or "{}", mended(text)):
        if candidate is not None and is_object(candidate):
            return Raw(candidate.encode())
    return Raw(msgspec.json.encode({"INVALID_JSON": text}))


def provider_of(block: Block) -> str | None:
    """The adapter that marked the block as its own."""
    if block.data is None or '"provider":' not in block.data:
        return None
    found = json.loads(block.data).get("provider")
    return found if isinstance(found, str) else None


def without_foreign(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Without what other adapters have marked: of a text its words are left, of a call its id, name and input, of
    anything else nothing.
    """
    if not any(provider_of(block) for message in messages for block in message.blocks):
        return tuple(messages)
    said = [(message.role, kept) for message in messages for block in message.blocks if (kept := _unmarked(block))]
    spoken = [(message.role, block) for message in grouped(said) for block in drop_blank_reply(message.blocks)]
    return grouped(drop_last_thoughts(spoken))


def _unmarked(block: Block) -> Block | None:
    if provider_of(block) is None:
        return block
    return replace(block, data=None) if block.type in PORTABLE else None


@dataclass(frozen=True, slots=True)
class CallRules:
    """What a provider takes as the id and name of a call. `unique`: an id may be used once in a conversation."""

    ids: re.Pattern[str]
    longest_name: int
    unique: bool = False


def with_fitting_calls(messages: Sequence[Message], rules: CallRules) -> list[Message]:
    """Calls and their results under ids and names by the rules; what fits is not changed."""
    used: Counter[str] = Counter()
    now: dict[str | None, str] = {}
    return [replace(message, blocks=tuple(_fitted(message.blocks, rules, used, now))) for message in messages]


def _fitted(
    blocks: Sequence[Block], rules: CallRules, used: Counter[str], now: dict[str | None, str]
) -> Iterator[Block]:
    for block in blocks:
        id = block.tool_use_id or ""
        match block.type:
            case "tool_use":
                now[id] = _fitting_id(id, used[id] if rules.unique else 0, rules.ids)
                used[id] += 1
                yield _renamed(block, now[id], {"id": now[id], "name": _fitting_name(block.name, rules.longest_name)})
            case "tool_result":
                yield _renamed(block, now.get(id, id), {"tool_use_id": now.get(id, id)})
            case _:
                yield block


def _fitting_id(id: str, repetitions: int, ids: re.Pattern[str]) -> str:
    if not repetitions and ids.fullmatch(id):
        return id
    digest = sha256(f"{repetitions} {id}".encode()).hexdigest()
    return next(made for made in (f"call_{digest[:24]}", digest[:9]) if ids.fullmatch(made))


def _fitting_name(name: str | None, longest: int) -> str:
    """Models invent names, and no provider takes all of them back."""
    return _NOT_IN_NAMES.sub("_", name or "")[:longest] or "unnamed"


def _renamed(block: Block, id: str, members: Mapping[str, str]) -> Block:
    name = members.get("name", block.name)
    if (id, name) == (block.tool_use_id, block.name):
        return block
    data = None if block.data is None else encoded({**members_of(block.data), **members})
    return replace(block, tool_use_id=id, name=name, data=data)
