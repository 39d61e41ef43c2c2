"""Bodies of the calls of uploads."""

from typing import Annotated
from uuid import UUID

from pydantic import BaseModel, Field


class UploadOut(BaseModel):
    id: UUID
    media_type: str
    size: Annotated[int, Field(description="bytes")]
    created: Annotated[bool, Field(description="false: these bytes were stored before")]


class UploadDeleted(BaseModel):
    deleted: UUID
