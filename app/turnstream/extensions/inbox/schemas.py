"""The bodies for calls that wait for a person, and for decisions."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from pydantic import BaseModel, Field


class WaitingOut(BaseModel):
    """A call that waits for the owner. Its turn has the whole input, and the digest for a decision."""

    chat: UUID
    title: Annotated[str | None, Field(description="of the chat")]
    turn: UUID
    tool_use_id: str
    name: Annotated[str, Field(description="the tool")]
    type: Literal["client", "approval", "elicitation", "sign_in"]
    input: Annotated[str, Field(description="the beginning of the input, as JSON text")]
    since: datetime
    expires_at: datetime | None


class WaitingPage(BaseModel):
    calls: list[WaitingOut]
    count: Annotated[int, Field(description="of all calls that wait")]
    next: Annotated[str | None, Field(description="the `after` of the next page; null on the last one")]


class ApprovalOut(BaseModel):
    """A call of another owner that waits for a decision of the caller; no other part of its chat is shown."""

    owner: str
    title: Annotated[str | None, Field(description="of the chat")]
    turn: UUID
    tool_use_id: str
    name: Annotated[str, Field(description="the tool")]
    type: Literal["client", "approval", "elicitation", "sign_in"]
    input: Annotated[str, Field(description="JSON text; the question, where the type is `elicitation` or `sign_in`")]
    input_digest: str
    since: datetime
    expires_at: datetime | None


class ApprovalsOut(BaseModel):
    calls: list[ApprovalOut]


class Decided(BaseModel):
    turn: UUID
    decided: Annotated[list[str], Field(description="ids of the calls")]
