"""Handlers that delete branches, and that list the siblings and descendants of a turn."""

from collections.abc import Sequence
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.codec import to_json
from turnstream.api.http.reading import id_of, limit_of
from turnstream.api.reads import ReadStorage
from turnstream.api.services import Services, services_and_owner
from turnstream.api.turns import path_page
from turnstream.api.views import json_response, shown_turn
from turnstream.extensions.branches.schemas import BranchDeleted
from turnstream.kit.offload import Portions
from turnstream.libraries.dialects.branch_rows import Branches


async def delete_branch(request: Request) -> Response:
    services, owner = services_and_owner(request)
    chat, turn, count = id_of(request, "chat"), id_of(request, "turn"), 0
    async for deleted, running in Branches(services.storage.of_owner).delete(owner, chat, turn):
        count += deleted
        for id in running:
            await services.live.cancel(id)
        services.live.notify(owner, chat)
    return json_response(BranchDeleted(deleted=turn, turns=count))


async def get_path_of_turn(request: Request) -> Response:
    services, owner = services_and_owner(request)
    chat = id_of(request, "chat")
    limit = limit_of(request, default=100, most=500)

    async def read(storage: ReadStorage) -> Response:
        state = await storage.chat_changes.state(chat)
        path = await storage.turns.path(owner, chat, id_of(request, "turn"), limit)
        return await path_page(services, storage, path, state)

    return await services.reads.read(request, read)


async def get_siblings(request: Request) -> Response:
    services, owner = services_and_owner(request)
    chat, turn = id_of(request, "chat"), id_of(request, "turn")

    async def read(storage: ReadStorage) -> Response:
        await storage.turns.get(owner, chat, turn)
        return await _turns(services, storage, owner, chat, (await storage.turns.siblings([turn]))[turn])

    return await services.reads.read(request, read)


async def get_children(request: Request) -> Response:
    services, owner = services_and_owner(request)
    chat, turn = id_of(request, "chat"), id_of(request, "turn")

    async def read(storage: ReadStorage) -> Response:
        await storage.turns.get(owner, chat, turn)
        return await _turns(services, storage, owner, chat, await storage.turns.children(chat, turn))

    return await services.reads.read(request, read)


async def _turns(services: Services, storage: ReadStorage, owner: str, chat: UUID, ids: Sequence[UUID]) -> Response:
    turns = [await storage.turns.get(owner, chat, id) for id in ids]
    storage.finished(*turns)
    portions = Portions()
    bodies = [await shown_turn(turn, services).encoded(portions) for turn in turns]
    return Response(to_json({"turns": bodies}), media_type="application/json")
