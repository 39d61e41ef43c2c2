"""The call that returns the whole result of a tool, even if the result was truncated for the model."""

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.http.call_group import CallGroup
from turnstream.api.http.endpoint import Endpoint
from turnstream.api.http.reading import id_of
from turnstream.api.services import services_and_owner
from turnstream.api.views import json_response
from turnstream.domain.errors import NotFound
from turnstream.extensions.tool_results.results import ToolResults
from turnstream.kit.text import unstorable


class WholeOut(BaseModel):
    """The whole result of a tool, even if it was truncated for the model."""

    tool_use_id: str
    text: str


async def get_whole(request: Request) -> Response:
    services, owner = services_and_owner(request)
    chat, turn, call = id_of(request, "chat"), id_of(request, "turn"), request.path_params["tool_use_id"]
    if unstorable(call):
        raise NotFound(f"There is no result of a call {call!r}.")
    text = await ToolResults(services.storage.of_owner).of_turn(owner, chat, turn, call)
    return json_response(WholeOut(tool_use_id=call, text=text))


CALLS = CallGroup(
    (
        Endpoint(
            "GET /api/chats/{chat}/turns/{turn}/results/{tool_use_id}",
            get_whole,
            "The whole result of a tool, of which the model got a part",
            gives=WholeOut,
            problems=(404,),
            reach="turn",
        ),
    ),
    "Actions",
)
