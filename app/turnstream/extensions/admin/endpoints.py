"""Handlers for operators: they return the overview of all replicas and owners, and run the operators' actions."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.http.reading import id_of
from turnstream.api.services import identity_of, services_of
from turnstream.api.streams.response import FrameResponse
from turnstream.api.views import json_response
from turnstream.extensions.admin.operations import ActedTurn, Operations
from turnstream.extensions.admin.overview import Overview, replica_out
from turnstream.extensions.admin.schemas import ActedTurnOut


@dataclass(frozen=True, slots=True)
class Operators:
    """The objects that the handlers of this extension use."""

    overview: Overview
    operations: Operations


def _operators(request: Request) -> Operators:
    operators = services_of(request).states["admin"]
    assert isinstance(operators, Operators)
    return operators


async def get_overview(request: Request) -> Response:
    parts = await _operators(request).overview.parts()
    body = b",".join(b'"%b":%b' % (name.encode(), part) for name, part in parts.items())
    return Response(b"{%b}" % body, media_type="application/json")


async def stream_overview(request: Request) -> Response:
    services, overview = services_of(request), _operators(request).overview
    services.streams.take(request)
    frames = overview.frames(await overview.parts())
    return FrameResponse(frames, services.http.stream_life, services.http.heartbeat, services.streams)


async def stop_turn(request: Request) -> Response:
    operations = _operators(request).operations
    return _acted(request, await operations.stop(id_of(request, "turn"), _actor(request)))


async def requeue_turn(request: Request) -> Response:
    operations = _operators(request).operations
    return _acted(request, await operations.requeue(id_of(request, "turn"), _actor(request)))


async def drain_replica(request: Request) -> Response:
    replica = await _operators(request).operations.drain(id_of(request, "replica"), _actor(request))
    return json_response(replica_out(replica))


def _actor(request: Request) -> str:
    """Returns the id of the request's credential, for the audit trail, or the owner if the credential has no id."""
    identity = identity_of(request)
    return identity.actor


def _acted(request: Request, turn: ActedTurn) -> Response:
    live = services_of(request).live
    live.wake()
    live.notify(turn.owner, turn.chat)
    return json_response(ActedTurnOut(turn=turn.id, chat=turn.chat, owner=turn.owner, status=turn.status))
