"""Handlers of the queue of a chat: the messages that no model call has received yet."""

from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.attachments import allowed_blocks, check_attachments, steer_blocks, user_blocks
from turnstream.api.caller import check_turn, of_caller, with_fixed
from turnstream.api.codec import block_json
from turnstream.api.http.reading import id_of, read_body
from turnstream.api.schemas.blocks import BlockIn
from turnstream.api.schemas.requests import TurnOptions
from turnstream.api.schemas.responses import BlockOut
from turnstream.api.services import Services, services_and_owner
from turnstream.api.views import json_response
from turnstream.domain.blocks import Block
from turnstream.domain.errors import NotFound
from turnstream.domain.turns import TurnRequest
from turnstream.extensions.queue.entries import EntryKind, QueueEntry
from turnstream.extensions.queue.rows import Behind, Change, QueuedMessages
from turnstream.extensions.queue.schemas import EntryWithdrawn, QueueChange, QueueEntryOut, QueueOut


def _queued(services: Services) -> QueuedMessages:
    return QueuedMessages(services.storage.of_owner, services.storage.database)


async def list_queue(request: Request) -> Response:
    services, owner = services_and_owner(request)
    entries = await _queued(services).of_chat(owner, id_of(request, "chat"))
    return json_response(QueueOut(entries=list(map(_entry_out, entries))))


async def change_entry(request: Request) -> Response:
    services, owner = services_and_owner(request)
    chat, id = id_of(request, "chat"), id_of(request, "entry")
    sent, _ = await read_body(request, QueueChange)
    entries = {entry.id: entry for entry in await _queued(services).of_chat(owner, chat)}
    blocks, answer, before = None, None, entries.get(id)
    if before is not None:  # otherwise `change` finds out where the message is
        with suppress(NotFound):
            turn = await services.storage.exchanges.answer(owner, chat, before.turn)
            check_turn(turn)
            assert turn.request is not None
            kind = sent.kind or before.kind
            if sent.blocks is not None:
                blocks = await _blocks(services, owner, sent.blocks, kind, turn.request)
            if kind != before.kind == "steer":
                answer = of_caller(services.resolver.again(with_fixed(TurnOptions()), turn.request))
    place = Behind(sent.after) if "after" in sent.model_fields_set else None
    change = Change(sent.version, check_turn, blocks, sent.kind, place, answer, services.plans.of(owner).queued_turns)
    try:
        entry = await _queued(services).change(owner, chat, id, change)
    finally:
        services.live.wake()  # even after a refusal, because a claim may have skipped the rows that the change locked
    await _notify(services, owner, request, before, entry)
    return json_response(_entry_out(entry))


async def withdraw_entry(request: Request) -> Response:
    services, owner = services_and_owner(request)
    chat, id = id_of(request, "chat"), id_of(request, "entry")
    try:
        entry = await _queued(services).withdraw(owner, chat, id, request.query_params.get("version"))
    finally:
        services.live.wake()
    await _notify(services, owner, request, entry)
    return json_response(EntryWithdrawn(withdrawn=id))


async def _blocks(
    services: Services, owner: str, sent: list[BlockIn], kind: EntryKind, request: TurnRequest
) -> tuple[Block, ...]:
    sent = await allowed_blocks(sent, owner, services)
    if kind == "steer":
        return steer_blocks(sent)
    blocks = await user_blocks(sent, owner, services)
    check_attachments(services.resolver.models.check(request.model), blocks)
    return blocks


async def _notify(services: Services, owner: str, request: Request, *entries: QueueEntry | None) -> None:
    """Notifies the readers of the chat, and the running turns for which steers wait."""
    services.live.notify(owner, id_of(request, "chat"))
    for turn in {entry.turn for entry in entries if entry is not None and entry.kind == "steer"}:
        await services.live.refresh(turn)


def _entry_out(entry: QueueEntry) -> QueueEntryOut:
    return QueueEntryOut(
        id=entry.id,
        version=entry.version,
        kind=entry.kind,
        turn=entry.turn,
        blocks=[BlockOut.model_validate(block_json(block)) for block in entry.blocks],
        created_at=entry.created_at,
    )
