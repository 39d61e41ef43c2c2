"""Bodies of answers about usage."""

from datetime import date
from typing import Annotated
from uuid import UUID

from pydantic import BaseModel, Field

from turnstream.libraries.usage_sums import UsageFigures


class UsageGroupOut(UsageFigures):
    """The calls of one day, model or chat, or of a combination of them. Members that `by` does not name are null."""

    day: Annotated[date | None, Field(description="of UTC")]
    model: str | None
    chat: Annotated[UUID | None, Field(description="may be deleted")]
    owner: Annotated[str | None, Field(description="for the scope `admin`")]


class UsageOut(BaseModel):
    since: date
    until: Annotated[date, Field(description="the last day")]
    total: UsageFigures
    groups: Annotated[list[UsageGroupOut], Field(description="the newest day first, and within it the dearest")]
    more: Annotated[bool, Field(description="true where there are more groups than `limit`")]
