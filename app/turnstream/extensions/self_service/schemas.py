"""Bodies of requests and answers about the account of an owner."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, Field

from turnstream.api.schemas.fields import Body, Storable
from turnstream.api.schemas.responses import GrantOut


class AccountOut(BaseModel):
    owner: str
    chats: int
    uploads: int
    bytes: Annotated[int, Field(description="the size of the uploads")]
    documents: int
    erasure_due_at: Annotated[
        datetime | None, Field(description="when everything of the owner is erased; null: nobody asked for it")
    ]


class CredentialOut(BaseModel):
    """A token or a session without its secret."""

    id: UUID
    kind: Annotated[
        Literal["token", "browser", "session"],
        Field(description="`browser`: a short-lived token; `session`: of a browser in which the owner signed in"),
    ]
    name: str | None
    scopes: list[str]
    created_at: datetime | None
    expires_at: datetime | None
    last_used_at: datetime | None
    chat: Annotated[UUID | None, Field(description="the one chat that it reaches; null: all")]
    turn: UUID | None
    current: Annotated[bool, Field(description="whether this request came with it")]


class CredentialList(BaseModel):
    credentials: list[CredentialOut]


class OwnGrantOut(GrantOut):
    chat: UUID
    title: str | None


class OwnGrantList(BaseModel):
    grants: list[OwnGrantOut]


class AuditEntryOut(BaseModel):
    id: int
    created_at: datetime
    kind: str
    actor: Annotated[str | None, Field(description="the credential of a request, or the operator of a command")]
    detail: dict[str, Any]


class AuditEntryList(BaseModel):
    entries: list[AuditEntryOut]
    next: Annotated[int | None, Field(description="`before` of the next page; null: this is the last one")]


class ErasureIn(Body):
    owner: Annotated[Storable, Field(description="the name of the owner, as a confirmation")]


class ErasureOut(BaseModel):
    owner: str
    due_at: datetime


class ErasureUndone(BaseModel):
    undone: str
