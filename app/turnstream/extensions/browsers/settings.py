"""Settings for browsers: origins, cookies and tokens in addresses."""

from typing import Final

from pydantic import Field

from turnstream.config import Section

NAME: Final = "browsers"


class BrowserSettings(Section):
    browser_token_life: int = Field(3600, ge=1, description="longest life of a token of POST /api/tokens")
    url_tokens: bool = Field(
        False, description="true: streams accept a read-only token as `?access_token=`, for EventSource"
    )
    token_cookie: str | None = Field(
        None,
        pattern=r"^[\w-]+$",
        description="cookie in which such a token is accepted, from pages of this origin and of the origins below",
    )
    cors_origins: str | None = Field(
        None, description="origins whose pages may call the API, such as `https://app.example`, separated by commas"
    )
    cors_credentials: bool = Field(False, description="true: browsers send cookies with the calls of these pages")
