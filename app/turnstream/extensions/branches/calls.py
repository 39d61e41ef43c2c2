"""The API calls for branches."""

from turnstream.api.http.call_group import CallGroup
from turnstream.api.http.endpoint import Endpoint
from turnstream.api.routes import page_limit
from turnstream.api.schemas.responses import PathPage
from turnstream.extensions.branches.endpoints import delete_branch, get_children, get_path_of_turn, get_siblings
from turnstream.extensions.branches.schemas import BranchDeleted, TurnsOut

CALLS = CallGroup(
    (
        Endpoint(
            "DELETE /api/chats/{chat}/turns/{turn}",
            delete_branch,
            "Delete a turn and all that follow it; running ones are stopped. With the only answer to a message goes the"
            " message",
            gives=BranchDeleted,
            problems=(404,),
        ),
        Endpoint(
            "GET /api/chats/{chat}/turns/{turn}/path",
            get_path_of_turn,
            "The path to this turn",
            gives=PathPage,
            problems=(404, 422),
            queries=(page_limit(100, 500),),
            headers=("Cache-Control",),
        ),
        Endpoint(
            "GET /api/chats/{chat}/turns/{turn}/siblings",
            get_siblings,
            "All turns with the same parent, this one included",
            gives=TurnsOut,
            problems=(404,),
            headers=("Cache-Control",),
        ),
        Endpoint(
            "GET /api/chats/{chat}/turns/{turn}/children",
            get_children,
            "All turns that follow this one directly, oldest first",
            gives=TurnsOut,
            problems=(404,),
            headers=("Cache-Control",),
        ),
    ),
    "Turns",
)
