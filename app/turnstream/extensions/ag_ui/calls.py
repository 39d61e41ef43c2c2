"""The API calls of the dialect AG-UI."""

from functools import partial

from turnstream.api.http.call_group import CallGroup, EventStream
from turnstream.api.http.endpoint import Endpoint, Limit
from turnstream.extensions.ag_ui import endpoints
from turnstream.extensions.ag_ui.schemas import AgUiStopped, AgUiThreadOut, RunInput

_POSTS: tuple[Limit, ...] = ("requests", "queued_turns", "streams")
_call = partial(Endpoint, reach="handler", lenient=True)

ENDPOINTS = (
    _call(
        "POST /api/ag-ui",
        endpoints.run_agent,
        "For clients of AG-UI: post a message, or answer interrupts and calls of the page; returns the run's events",
        RunInput,
        "text/event-stream",
        problems=(409,),
        events="AgUiRun",
        scopes=("send", "chat", "approve"),
        limits=_POSTS,
    ),
    _call(
        "POST /api/ag-ui/connect",
        endpoints.connect_agent,
        "For clients of AG-UI: all messages of the thread, then what follows of the answer that is open",
        RunInput,
        "text/event-stream",
        events="AgUiRun",
        scopes=("read",),
        limits=("streams",),
    ),
    _call(
        "GET /api/ag-ui/threads/{id}",
        endpoints.get_thread,
        "For clients of AG-UI: the messages on the path to the newest turn, and what it waits for",
        gives=AgUiThreadOut,
        problems=(404,),
    ),
    _call(
        "POST /api/ag-ui/threads/{id}/stop",
        endpoints.stop_thread,
        "For clients of AG-UI: cancel all turns of the thread that have not ended",
        gives=AgUiStopped,
        problems=(404,),
        limits=(),
    ),
)

CALLS = CallGroup(
    ENDPOINTS,
    "AG-UI",
    "The same chats in the protocol AG-UI",
    {"AgUiRun": EventStream("Events of one run of AG-UI, protocol 1.0. They have neither names nor ids.")},
)
