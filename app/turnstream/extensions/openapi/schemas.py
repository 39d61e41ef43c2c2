"""The body of a refusal."""

from typing import Annotated
from uuid import UUID

from pydantic import BaseModel, Field

from turnstream.domain.errors import RefusalCode


class RecipientOut(BaseModel):
    """The turn that received a message."""

    turn: UUID
    round: Annotated[int | None, Field(description="of a steer: the round of its blocks; 0 before the first one")]


class FieldError(BaseModel):
    field: str
    message: str


class Problem(BaseModel):
    """A problem document (RFC 9457)."""

    type: str
    title: str
    status: int
    code: Annotated[RefusalCode, Field(description="what is wrong, for programs")]
    detail: Annotated[str, Field(description="the same for people: a sentence with a remedy")]
    errors: list[FieldError] | None = None
    limit: Annotated[str | None, Field(description="with 429: the limit of the owner that is reached")] = None
    delivered: Annotated[
        RecipientOut | None, Field(description="with 409 `delivered`: the turn that has received the message")
    ] = None
    request_id: Annotated[str, Field(description="the `X-Request-ID` of the response, by which the log names it")]
