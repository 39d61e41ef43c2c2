"""Handlers for operators: what happens on all replicas and for all owners, and what is done about it."""

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.http.reading import id_of
from turnstream.api.overview import replica_out
from turnstream.api.schemas.operations import ActedTurnOut
from turnstream.api.services import Services, identity_of, services_and_owner
from turnstream.api.streams.response import FrameResponse
from turnstream.api.views import json_response
from turnstream.storage.operations import ActedTurn


async def get_overview(request: Request) -> Response:
    services, _ = services_and_owner(request)
    parts = await services.overview.parts()
    body = b",".join(b'"%b":%b' % (name.encode(), part) for name, part in parts.items())
    return Response(b"{%b}" % body, media_type="application/json")


async def stream_overview(request: Request) -> Response:
    services, _ = services_and_owner(request)
    services.streams.take(request)
    frames = services.overview.frames(await services.overview.parts())
    return FrameResponse(frames, services.http.stream_life, services.http.heartbeat, services.streams)


async def stop_turn(request: Request) -> Response:
    services, _ = services_and_owner(request)
    return _acted(services, await services.storage.operations.stop(id_of(request, "turn"), _actor(request)))


async def requeue_turn(request: Request) -> Response:
    services, _ = services_and_owner(request)
    return _acted(services, await services.storage.operations.requeue(id_of(request, "turn"), _actor(request)))


async def drain_replica(request: Request) -> Response:
    services, _ = services_and_owner(request)
    replica = await services.storage.operations.drain(id_of(request, "replica"), _actor(request))
    return json_response(replica_out(replica))


def _actor(request: Request) -> str:
    """The credential of the request, as the audit trail names it; the owner, where no credential has an id."""
    identity = identity_of(request)
    return identity.credential or f"owner:{identity.owner}"


def _acted(services: Services, turn: ActedTurn) -> Response:
    services.live.wake()
    services.live.notify(turn.owner, turn.chat)
    return json_response(ActedTurnOut(turn=turn.id, chat=turn.chat, owner=turn.owner, status=turn.status))
