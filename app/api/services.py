"""What the handlers work with, and how every one of them begins."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from uuid import UUID

from starlette.requests import Request

from app.api.http.auth import Authenticator
from app.api.resolve import Defaults
from app.llm.models.catalog import Models
from app.storage.actions import Actions
from app.storage.chat_changes import ChatChanges
from app.storage.chats import Chats
from app.storage.database import Database
from app.storage.documents import Documents
from app.storage.exchanges import Exchanges
from app.storage.results import ToolResults
from app.storage.turns import Turns
from app.storage.uploads import Uploads
from app.stream.chat.wakeups import ChatWakeups
from app.stream.directory import Directory
from app.tools.toolset import Toolset


@dataclass(frozen=True, slots=True)
class Services:
    """Doorbells: `ring` says that a turn may be claimed, `cancel` that one must stop, `tell` that one was spoken to.
    `drain` takes this replica out of service. `stream_life` and `heartbeat` are in seconds.
    """

    database: Database
    chats: Chats
    chat_changes: ChatChanges
    chat_wakeups: ChatWakeups
    turns: Turns
    exchanges: Exchanges
    actions: Actions
    results: ToolResults
    documents: Documents
    uploads: Uploads
    directory: Directory
    authenticator: Authenticator
    toolset: Toolset
    models: Models
    defaults: Defaults
    wake: Callable[[], None]
    cancel: Callable[[UUID], Awaitable[None]]
    refresh: Callable[[UUID], Awaitable[None]]
    is_ready: Callable[[], bool]
    drain: Callable[[], Awaitable[None]]
    max_body_bytes: int
    max_upload_bytes: int
    stream_life: float
    heartbeat: float


def services_of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


async def begin(request: Request) -> tuple[Services, str]:
    """The services, and the owner who asks. Raises Unauthorized."""
    services = services_of(request)
    return services, await services.authenticator.owner_of(request.headers)
