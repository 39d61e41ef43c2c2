"""The count of the tokens of a request: that of the model's provider, or an estimate where it has none."""

from base64 import b64decode
from collections.abc import Iterable, Mapping
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.caller import CALLER, of_caller, with_fixed
from turnstream.api.codec import to_json
from turnstream.api.dialects.histories import PastBlock, PastCall, PastItem, PastMessage, PastResult, PastText
from turnstream.api.exchange import admit
from turnstream.api.http.reading import read_body
from turnstream.api.services import Services, identity_of, services_and_owner
from turnstream.domain.blocks import Block
from turnstream.domain.chats import Chat
from turnstream.domain.compaction import size_of_block, tokens_of
from turnstream.domain.errors import Forbidden, ProviderError, RequestRefused
from turnstream.domain.kinds import TEXT, TOOL_RESULT, TOOL_USE
from turnstream.domain.media import media_type_of
from turnstream.domain.turns import TurnError
from turnstream.extensions.anthropic_api.errors import failure, failure_of
from turnstream.extensions.anthropic_api.inputs import items_of, new_turn, options_of
from turnstream.extensions.anthropic_api.schemas import CountIn, Json
from turnstream.kit.clock import CLOCK
from turnstream.kit.ids import new_id
from turnstream.llm.conversation.attachments import with_uploads
from turnstream.llm.conversation.sendable import RoleBlock, group_by_role
from turnstream.llm.provider import ModelRequest, count_tokens


async def count_message_tokens(request: Request) -> Response:
    services, owner = services_and_owner(request)
    identity_of(request).require_reach(None)
    sent, _ = await read_body(request, CountIn)
    options = options_of(services, sent, betas=False)
    new, now = with_fixed(new_turn(options, [{"type": "text", "text": "…"}])), CLOCK.now()
    await admit(services, owner, new)
    chat = Chat(new_id(), owner, None, None, {}, created_at=now, updated_at=now)
    asked = of_caller(services.resolver.resolve(new, chat, None))
    contents: dict[UUID, bytes] = {}
    entries = [
        entry for item in await items_of(sent.messages) for entry in await _entries(services, owner, item, contents)
    ]
    messages = with_uploads(group_by_role(entries), contents)
    call = ModelRequest(asked.model, messages, asked.system, asked.params, asked.tools, asked.provider_tools)
    try:
        count = await count_tokens(services.resolver.models.provider_for(asked.model), call)
    except ProviderError as error:
        return failure(request, failure_of(TurnError(error.type, error.message)))
    if count is None:
        count = _estimate(call, (block for _, block in entries))
    return Response(to_json({"input_tokens": count}), media_type="application/json")


async def _entries(services: Services, owner: str, item: PastItem, contents: dict[UUID, bytes]) -> Iterable[RoleBlock]:
    match item:
        case PastMessage(blocks=blocks):
            return [("user", await _block(services, owner, block, contents)) for block in blocks]
        case PastText(text=text):
            return [("assistant", Block(0, 0, 0, TEXT, text))]
        case PastCall(id=id, name=name, arguments=arguments):
            return [("assistant", Block(0, 0, 0, TOOL_USE, arguments, tool_use_id=id, name=name))]
        case PastResult(call=call, text=text, is_error=is_error):
            return [("user", Block(0, 0, 0, TOOL_RESULT, text, tool_use_id=call, is_error=is_error))]
        case PastBlock(type=type, data=data, text=text, id=id, name=name):
            return [("assistant", Block(0, 0, 0, type, text, data, tool_use_id=id, name=name))]


async def _block(services: Services, owner: str, block: Json, contents: dict[UUID, bytes]) -> Block:
    """A block of the user; the bytes of a file are put into `contents`. Raises RequestRefused."""
    if block["type"] == TEXT:
        return Block(0, 0, 0, TEXT, block["text"])
    source: Mapping[str, str] = block["source"]
    if source["type"] == "upload":
        id = UUID(str(source["id"]))
        if CALLER.get().is_restricted:
            raise Forbidden("`messages` must have no uploads: the token does not reach them.", field="messages")
        found = await services.storage.uploads.read(owner, id)
        content = found[1] if found else b""
    else:
        id, content = new_id(), _decoded(source["data"])
    if (media := media_type_of(content)) is None:
        raise RequestRefused("`messages` must have files of a known type.", field="messages")
    contents[id] = content
    members = {**block, "source": {"type": "upload", "id": str(id), "media_type": media.name}}
    return Block(0, 0, 0, block["type"], data=to_json(members).decode())


def _decoded(data: str) -> bytes:
    try:
        return b64decode(data, validate=True)
    except ValueError:
        raise RequestRefused("`messages` must have files in base64.", field="messages") from None


def _estimate(call: ModelRequest, blocks: Iterable[Block]) -> int:
    tools = sum(len(tool.name) + len(tool.description) + len(tool.input_schema) for tool in call.tools)
    return sum(map(size_of_block, blocks)) + tokens_of(
        len(call.system or "") + tools + sum(map(len, call.provider_tools))
    )
