"""The queue of a chat: its changes and its entries."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import BaseModel, Field

from turnstream.api.schemas.blocks import BlockIn
from turnstream.api.schemas.fields import Body, Storable
from turnstream.api.schemas.responses import BlockOut
from turnstream.extensions.queue.entries import EntryKind


class QueueChange(Body):
    """The changes of a queued message. Omitted members are unchanged. A change to the present value does nothing."""

    version: Annotated[Storable, Field(description="of the entry as the client has read it")]
    blocks: Annotated[list[BlockIn] | None, Field(min_length=1, max_length=100)] = None
    kind: Annotated[
        EntryKind | None,
        Field(description="`steer`: it goes into the running turn; `queued`: it becomes a message behind that turn"),
    ] = None
    after: Annotated[
        UUID | None, Field(description="the queued message that comes directly before it; null: it comes first")
    ] = None


class QueueEntryOut(BaseModel):
    """A message that no model call has received."""

    id: Annotated[UUID, Field(description="of a queued message the id of its user turn")]
    version: Annotated[str, Field(description="changes with kind and blocks")]
    kind: EntryKind
    turn: Annotated[UUID, Field(description="its answer; of a steer the turn that it is for")]
    blocks: list[BlockOut]
    created_at: datetime


class QueueOut(BaseModel):
    entries: Annotated[list[QueueEntryOut], Field(description="the steers first, then the queued messages in order")]


class EntryWithdrawn(BaseModel):
    withdrawn: UUID
