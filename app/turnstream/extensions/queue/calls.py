"""The calls of the queue of a chat."""

from turnstream.api.http.call_group import CallGroup
from turnstream.api.http.endpoint import Endpoint, Query
from turnstream.extensions.queue.endpoints import change_entry, list_queue, withdraw_entry
from turnstream.extensions.queue.schemas import EntryWithdrawn, QueueChange, QueueEntryOut, QueueOut

CALLS = CallGroup(
    (
        Endpoint(
            "GET /api/chats/{chat}/queue",
            list_queue,
            "The messages that no model call has received: steers of running turns, and queued messages in their order",
            gives=QueueOut,
            problems=(404,),
        ),
        Endpoint(
            "PATCH /api/chats/{chat}/queue/{entry}",
            change_entry,
            "Edit or move a message in the queue, or change it between `queued` and `steer`; 409 once it is delivered",
            QueueChange,
            QueueEntryOut,
            problems=(404, 409, 422),
            limits=("writes", "queued_turns"),
        ),
        Endpoint(
            "DELETE /api/chats/{chat}/queue/{entry}",
            withdraw_entry,
            "Withdraw a message from the queue, for good; 409 once it is delivered",
            gives=EntryWithdrawn,
            problems=(404, 409),
            queries=(Query("version", "of the entry as the client has read it; without it, in any version"),),
        ),
    ),
    "Queue",
    "Messages that no model call has received yet: to edit, move and withdraw them",
)
