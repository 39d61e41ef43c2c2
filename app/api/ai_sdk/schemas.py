"""Models of `useChat` of the AI SDK. It sends more than is needed here: unknown members are ignored."""

import re
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from app.api.schemas.fields import Body, Storable
from app.api.schemas.requests import NewTurn, TurnOptions
from app.domain.chats import OnBusy
from app.domain.errors import RequestRefused

_UPLOAD = re.compile("(?:https?://[^/?#]+)?(?:/[^?#]+)?/api/uploads/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")


class _Lenient(Body):
    model_config = ConfigDict(extra="ignore", strict=True)


class UiMessageIn(_Lenient):
    id: str = ""
    role: Literal["system", "user", "assistant"]
    parts: Annotated[list[dict[str, Any]], Field(max_length=10_000, default_factory=list)]


class UiOptions(TurnOptions):
    """Options of one turn, as in turnstream's own API."""

    on_busy: OnBusy = "interrupt"


class UiRequest(_Lenient):
    """The body of a DefaultChatTransport. An app may send the last `message` alone."""

    id: Annotated[Storable, Field(min_length=1, max_length=500)]
    messages: Annotated[list[UiMessageIn], Field(max_length=10_000, default_factory=list)]
    message: UiMessageIn | None = None
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    message_id: Annotated[str | None, Field(alias="messageId")] = None
    turnstream: UiOptions = UiOptions()

    @property
    def all_messages(self) -> list[UiMessageIn]:
        return self.messages if self.message is None else [*self.messages, self.message]


class UiMessageOut(BaseModel):
    """A UIMessage, for `useChat({messages})`."""

    id: str
    role: Literal["user", "assistant"]
    metadata: dict[str, Any]
    parts: list[dict[str, Any]]


class UiChatOut(BaseModel):
    id: str
    messages: list[UiMessageOut]


class UiStopped(BaseModel):
    stopped: Annotated[list[str], Field(description="the turns that were cancelled")]


def new_turn(parts: list[dict[str, Any]], options: UiOptions) -> NewTurn:
    """A user message as a turn. Raises ValidationError for an empty message, RequestRefused for a file that is none."""
    blocks: list[dict[str, Any]] = []
    for part in parts:  # other parts (data, sources) are not for the model
        if part.get("type") == "text" and part.get("text"):
            blocks.append({"type": "text", "text": part["text"]})
        elif part.get("type") == "file":
            blocks.append(_file(part))
    members = options.model_dump(exclude_unset=True, by_alias=True)
    return NewTurn.model_validate({**members, "on_busy": options.on_busy, "blocks": blocks})


def _file(part: dict[str, Any]) -> dict[str, Any]:
    """The block of a file: its bytes are in its URL, unless it was uploaded before. Raises RequestRefused."""
    url = str(part.get("url", ""))
    header, _, data = url.partition(";base64,")
    if found := _UPLOAD.fullmatch(url):
        source: dict[str, Any] = {"type": "upload", "id": UUID(found[1])}
    elif data and header.startswith("data:"):
        source = {"type": "base64", "data": data}
    else:
        raise RequestRefused(
            "`messages`: the `url` of a file must be a data: URL in base64, or that of an upload (/api/uploads/…).",
            field="messages",
        )
    if str(part.get("mediaType", header.removeprefix("data:"))).startswith("image"):
        return {"type": "image", "source": source}
    title = {"title": part["filename"]} if part.get("filename") else {}
    return {"type": "document", "source": source, **title}
