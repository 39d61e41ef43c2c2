"""Bodies of the API calls for branches."""

from typing import Annotated
from uuid import UUID

from pydantic import BaseModel, Field

from turnstream.api.schemas.responses import TurnOut


class BranchDeleted(BaseModel):
    deleted: UUID
    turns: Annotated[int, Field(description="how many turns were deleted with it, itself included")]


class TurnsOut(BaseModel):
    turns: list[TurnOut]
