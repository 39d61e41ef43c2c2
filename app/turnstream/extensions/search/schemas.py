"""Bodies of the search settings."""

from typing import Annotated

from pydantic import BaseModel, Field

from turnstream.api.schemas.fields import Body
from turnstream.api.schemas.requests import SearchLanguage


class SearchSettingsIn(Body):
    language: Annotated[SearchLanguage | None, Field(description="of the owner's texts; null: simple")] = None
    tool_results: Annotated[bool, Field(description="whether results of tools are indexed too")] = False


class SearchSettingsOut(BaseModel):
    language: str | None
    tool_results: bool
