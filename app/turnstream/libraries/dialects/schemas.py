"""Base classes and helpers for the request bodies of dialects, which tolerate extra fields that clients send."""

import re
from typing import Any
from uuid import UUID

from pydantic import ConfigDict

from turnstream.api.schemas.fields import OTHER_TAG, TEXT_TAG, AnyJson, Body
from turnstream.api.schemas.requests import TurnOptions
from turnstream.domain.chats import OnBusy

_UPLOAD = re.compile("(?:https?://[^/?#]+)?(?:/[^?#]+)?/api/uploads/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")


def text_or_other(value: Any) -> str:
    return TEXT_TAG if isinstance(value, str) else OTHER_TAG


class LenientBody(Body):
    """A body of another protocol. Unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)


class OpenBody(LenientBody):
    """A body of another protocol. Unknown fields are kept, so that they can be passed on."""

    model_config = ConfigDict(extra="allow", strict=True)

    __pydantic_extra__: dict[str, AnyJson]

    def sent(self) -> dict[str, Any]:
        """Returns the members that the client sent."""
        return self.model_dump(exclude_unset=True)


class UiOptions(TurnOptions, frozen=True):
    """A client's options for one turn, as in turnstream's own API."""

    on_busy: OnBusy = "interrupt"


def source_of_url(url: str) -> dict[str, Any] | None:
    """Returns the source of a file whose URL contains the bytes or names an upload; None for any other URL."""
    header, _, data = url.partition(";base64,")
    if found := _UPLOAD.fullmatch(url):
        return {"type": "upload", "id": UUID(found[1])}
    return {"type": "base64", "data": data} if data and header.startswith("data:") else None
