"""The call for the reasons why an answer does not move."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.http.call_group import CallGroup
from turnstream.api.http.endpoint import Endpoint
from turnstream.api.http.reading import id_of
from turnstream.api.services import services_and_owner
from turnstream.api.views import json_response
from turnstream.domain.turns import Status
from turnstream.libraries.explanations.reasons import reasons
from turnstream.libraries.explanations.rows import TurnStates


class LifeEventOut(BaseModel):
    at: datetime
    what: str


class WhyOut(BaseModel):
    """A turn's present work or wait, which may be a few seconds old, and the life of the turn so far."""

    turn: UUID
    status: Status
    reasons: Annotated[list[str], Field(description="sentences for people, the most telling ones first")]
    stage: Literal["processing", "streaming", "executing", "retrying"] | None
    silent_seconds: Annotated[
        float | None, Field(description="since the provider sent the last bytes, in a model call that is open")
    ]
    readers: Annotated[int, Field(description="streams that show the turn, on all replicas")]
    trace: Annotated[str | None, Field(description="the id of its trace, where there are traces")]
    life: list[LifeEventOut]


async def get_why(request: Request) -> Response:
    services, owner = services_and_owner(request)
    turn = await services.storage.turns.get(owner, id_of(request, "chat"), id_of(request, "turn"))
    states = TurnStates(services.storage.database, services.plans.plans.default.running_turns)
    state = await states.of(turn.id)
    activity, life = state.activity, await states.life(turn.id)
    return json_response(
        WhyOut(
            turn=turn.id,
            status=state.status,
            reasons=reasons(state),
            stage=None if activity is None else activity.stage,
            silent_seconds=state.silent,
            readers=state.readers,
            trace=state.trace,
            life=[LifeEventOut(at=event.at, what=event.what) for event in life],
        )
    )


CALLS = CallGroup(
    (
        Endpoint(
            "GET /api/chats/{chat}/turns/{turn}/why",
            get_why,
            "What an answer is busy with or waits for, in sentences, and its life so far",
            gives=WhyOut,
            problems=(404,),
            reach="turn",
        ),
    ),
    "Turns",
)
