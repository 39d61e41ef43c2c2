"""Translates the blocks of one provider into a form that another provider accepts. Pure; a block is translated in the
same way for every request.

An adapter marks a block by `provider` in its `data`; only that adapter can send the block's data back.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

import msgspec
from msgspec import Raw

from turnstream.domain.blocks import Block
from turnstream.domain.kinds import PORTABLE, TOOL_RESULT, TOOL_USE
from turnstream.libraries.providers.raw_members import NULL, other_members, repaired_json
from turnstream.llm.conversation.sendable import drop_blank_reply, drop_last_thoughts, group_by_role
from turnstream.llm.provider import UNNAMED, Message, ModelRequest
from turnstream.llm.raw_json import is_object, members_of, to_json

SILENT_FAILURE = "The tool failed and said nothing."

# Members of turnstream's tools that a definition in the turn cannot replace.
_DESCRIPTION = frozenset({"description", "input_schema", "name", "parameters", "type"})
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")


def tool_input(text: str) -> Raw:
    """Returns a tool input unchanged if it is a JSON object. Any other text becomes a string in a new JSON object."""
    for candidate in (text or "{}", repaired_json(text)):
        if candidate is not None and is_object(candidate):
            return Raw(candidate.encode())
    return Raw(msgspec.json.encode({"INVALID_JSON": text}))


def split_definitions(request: ModelRequest) -> tuple[dict[str, dict[str, Raw]], list[str]]:
    """Splits the definitions in a request's `provider_tools`. Returns the additional members of turnstream's tools
    (`allowed_callers`, `defer_loading`) by the name of the tool, and the provider's own tools as JSON.
    """
    ours = {spec.name for spec in request.tools}
    added: dict[str, dict[str, Raw]] = {}
    provider_tools: list[str] = []
    for definition in request.provider_tools:
        members = members_of(definition)
        type, name = (msgspec.json.decode(members.get(member, NULL)) for member in ("type", "name"))
        if isinstance(name, str) and name in ours and type in (None, "custom", "function"):
            added.setdefault(name, {}).update(other_members(members, _DESCRIPTION))
        else:
            provider_tools.append(definition)
    return added, provider_tools


def provider_of(block: Block) -> str | None:
    """Returns the name of the adapter that marked the block, if any."""
    if block.data is None or '"provider":' not in block.data:
        return None
    found = json.loads(block.data).get("provider")
    return found if isinstance(found, str) else None


def without_foreign_blocks(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Reduces the blocks of other adapters: a text block keeps its text, and a call keeps its id, name and input. All
    other blocks of these adapters are dropped.
    """
    if not any(provider_of(block) for message in messages for block in message.blocks):
        return tuple(messages)
    kept = [
        (message.role, block if provider is None else replace(block, data=None))
        for message in messages
        for block in message.blocks
        if (provider := provider_of(block)) is None or block.type in PORTABLE
    ]
    filled = [(message.role, block) for message in group_by_role(kept) for block in drop_blank_reply(message.blocks)]
    return group_by_role(drop_last_thoughts(filled))


@dataclass(frozen=True, slots=True)
class CallRules:
    """The ids and names that a provider accepts for calls. `unique`: an id may occur only once in a conversation."""

    ids: re.Pattern[str]
    longest_name: int
    unique: bool = False


def with_valid_calls(messages: Sequence[Message], rules: CallRules) -> list[Message]:
    """Renames calls and their results according to the rules. Valid ids and names are not changed."""
    used: Counter[str] = Counter()
    current_ids: dict[str | None, str] = {}
    return [
        replace(message, blocks=tuple(_valid(message.blocks, rules, used, current_ids)))
        if any(block.type in {TOOL_USE, TOOL_RESULT} for block in message.blocks)
        else message
        for message in messages
    ]


def _valid(
    blocks: Sequence[Block], rules: CallRules, used: Counter[str], current_ids: dict[str | None, str]
) -> Iterator[Block]:
    for block in blocks:
        id = block.tool_use_id or ""
        match block.type:
            case "tool_use":
                new_id = current_ids[id] = _valid_id(id, used[id] if rules.unique else 0, rules.ids)
                used[id] += 1
                # Models invent names of tools. No provider accepts such a name when it is sent back unchanged.
                name = _NOT_IN_NAMES.sub("_", block.name or "")[: rules.longest_name] or UNNAMED
                yield _renamed(block, new_id, {"id": new_id, "name": name})
            case "tool_result":
                new_id = current_ids.get(id, id)
                yield _renamed(block, new_id, {"tool_use_id": new_id})
            case _:
                yield block


def _valid_id(id: str, repetitions: int, ids: re.Pattern[str]) -> str:
    if not repetitions and ids.fullmatch(id):
        return id
    digest = sha256(f"{repetitions} {id}".encode()).hexdigest()
    return next(made for made in (f"call_{digest[:24]}", digest[:9]) if ids.fullmatch(made))


def _renamed(block: Block, id: str, members: Mapping[str, str]) -> Block:
    name = members.get("name", block.name)
    if (id, name) == (block.tool_use_id, block.name):
        return block
    data = None if block.data is None else to_json({**members_of(block.data), **members})
    return replace(block, tool_use_id=id, name=name, data=data)
