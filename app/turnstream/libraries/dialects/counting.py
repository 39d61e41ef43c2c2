"""Counts the tokens of a request: the model's provider counts them, or they are estimated."""

from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from turnstream.api.caller import CALLER, of_caller, with_fixed
from turnstream.api.codec import to_json
from turnstream.api.exchange import admit
from turnstream.api.schemas.requests import NewTurn
from turnstream.api.services import Services
from turnstream.domain.blocks import Block
from turnstream.domain.compaction import size_of_block, tokens_of
from turnstream.domain.errors import Forbidden, RequestRefused
from turnstream.domain.kinds import TEXT, TOOL_RESULT, TOOL_USE
from turnstream.domain.media import media_type_of
from turnstream.domain.turns import Turn
from turnstream.kit.ids import new_id
from turnstream.libraries.dialects.chats import new_chat
from turnstream.libraries.dialects.histories import PastBlock, PastCall, PastItem, PastMessage, PastResult, PastText
from turnstream.llm.conversation.attachments import upload_ids_in, with_uploads
from turnstream.llm.conversation.messages import build_messages
from turnstream.llm.conversation.sendable import RoleBlock, group_by_role
from turnstream.llm.provider import Message, ModelRequest, count_tokens


async def count_input(
    services: Services, owner: str, new: NewTurn, items: Iterable[PastItem], place: str, path: Sequence[Turn] = ()
) -> int:
    """Returns the number of input tokens of a request with the turns of `path`, then `items`, and with the options of
    `new`. `place` is the field of the request that contains the items. Raises RequestRefused, ProviderError.
    """
    new = with_fixed(new)
    await admit(services, owner, new)
    chat = await services.storage.chats.get(owner, path[-1].chat_id) if path else new_chat(owner)
    asked = of_caller(services.resolver.resolve(new, chat, path[-1].request if path else None))
    contents: dict[UUID, bytes] = {}
    entries = [entry for item in items for entry in await _entries(services, owner, item, contents, place)]
    messages = group_by_role(entries)
    if path:
        # Results of waiting calls become texts, because the path already has placeholder results for these calls.
        blocks = [replace(each, type=TEXT) if each.type == TOOL_RESULT else each for _, each in entries]
        user_turn = Turn(new_id(), chat.id, path[-1].id, "user", "complete", blocks=tuple(blocks))
        running = Turn(new_id(), chat.id, user_turn.id, "assistant", "queued", request=asked)
        messages = build_messages([*path, user_turn, running])
        contents |= await services.storage.uploads.contents(upload_ids_in(messages) - contents.keys())
    sent = with_uploads(messages, contents)
    asked = await services.resolver.secrets.opened_request(owner, asked)
    call = ModelRequest(asked.model, sent, asked.system, asked.params, asked.defined_tools, asked.provider_tools)
    count = await count_tokens(services.resolver.models.provider_for(asked.model), call)
    return _estimate(call, messages) if count is None else count


async def _entries(
    services: Services, owner: str, item: PastItem, contents: dict[UUID, bytes], place: str
) -> Iterable[RoleBlock]:
    match item:
        case PastMessage(blocks=blocks):
            return [("user", await _block(services, owner, block, contents, place)) for block in blocks]
        case PastText(text=text):
            return [("assistant", Block(0, 0, 0, TEXT, text))]
        case PastCall(id=id, name=name, arguments=arguments):
            return [("assistant", Block(0, 0, 0, TOOL_USE, arguments, tool_use_id=id, name=name))]
        case PastResult(call=call, text=text, is_error=is_error):
            return [("user", Block(0, 0, 0, TOOL_RESULT, text, tool_use_id=call, is_error=is_error))]
        case PastBlock(type=type, data=data, text=text, id=id, name=name):
            return [("assistant", Block(0, 0, 0, type, text, data, tool_use_id=id, name=name))]


async def _block(
    services: Services, owner: str, block: dict[str, Any], contents: dict[UUID, bytes], place: str
) -> Block:
    """Returns a block of the user's message, and puts the bytes of a file into `contents`. Raises RequestRefused."""
    if block["type"] == TEXT:
        return Block(0, 0, 0, TEXT, block["text"])
    source: Mapping[str, str] = block["source"]
    if source["type"] == "upload":
        id = UUID(str(source["id"]))
        if CALLER.get().is_restricted:
            raise Forbidden(f"`{place}` must have no uploads: the token does not reach them.", field=place)
        found = await services.storage.uploads.read(owner, id)
        content = found[1] if found else b""
    else:
        id, content = new_id(), _decoded(source["data"], place)
    if (media := media_type_of(content)) is None:
        raise RequestRefused(f"`{place}` must have files of a known type.", field=place)
    contents[id] = content
    members = {**block, "source": {"type": "upload", "id": str(id), "media_type": media.name}}
    return Block(0, 0, 0, block["type"], data=to_json(members).decode())


def _decoded(data: str, place: str) -> bytes:
    try:
        return b64decode(data, validate=True)
    except ValueError:
        raise RequestRefused(f"`{place}` must have files in base64.", field=place) from None


def _estimate(call: ModelRequest, messages: Sequence[Message]) -> int:
    tools = sum(len(tool.name) + len(tool.description) + len(tool.input_schema) for tool in call.tools)
    blocks = sum(size_of_block(block) for message in messages for block in message.blocks)
    return blocks + tokens_of(len(call.system or "") + tools + sum(map(len, call.provider_tools)))
