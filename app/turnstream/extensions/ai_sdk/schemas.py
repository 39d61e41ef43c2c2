"""Models for the AI SDK's `useChat`. Unknown members are ignored, because the SDK sends more than this server needs."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from turnstream.api.schemas.fields import Storable
from turnstream.api.schemas.requests import Prompt
from turnstream.domain.errors import RequestRefused
from turnstream.libraries.dialects.schemas import LenientBody, UiOptions, source_of_url


class UiMessageIn(LenientBody):
    id: str = ""
    role: Literal["system", "user", "assistant"]
    parts: Annotated[list[dict[str, Any]], Field(max_length=10_000, default_factory=list)]


class UiToolIn(LenientBody):
    description: Storable | None = None
    parameters: Any = None


class UiRequest(LenientBody):
    """The body that a DefaultChatTransport sends. An app may send only the last `message`. Assistant-ui's transport
    also sends `system`, and the page's own `tools`.
    """

    id: Annotated[Storable, Field(min_length=1, max_length=500)]
    messages: Annotated[list[UiMessageIn], Field(max_length=10_000, default_factory=list)]
    message: UiMessageIn | None = None
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    message_id: Annotated[str | None, Field(alias="messageId")] = None
    system: Prompt | None = None
    tools: Annotated[dict[Storable, UiToolIn] | None, Field(max_length=200)] = None
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


def blocks_in(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Converts the parts of a user message to blocks. Raises RequestRefused for an invalid file."""
    blocks: list[dict[str, Any]] = []
    for part in parts:  # other parts (data, sources) are not meant for the model
        if part.get("type") == "text" and part.get("text"):
            blocks.append({"type": "text", "text": part["text"]})
        elif part.get("type") == "file":
            blocks.append(_file(part))
    return blocks


def _file(part: dict[str, Any]) -> dict[str, Any]:
    """Returns the block for a file. The file's URL contains the bytes or names an upload. Raises RequestRefused for
    another URL.
    """
    url = str(part.get("url", ""))
    source = source_of_url(url)
    if source is None:
        raise RequestRefused(
            "`messages`: the `url` of a file must be a data: URL in base64, or that of an upload (/api/uploads/…).",
            field="messages",
        )
    media_type = url.partition(";base64,")[0].removeprefix("data:")
    if str(part.get("mediaType", media_type)).startswith("image"):
        return {"type": "image", "source": source}
    title = {"title": part["filename"]} if part.get("filename") else {}
    return {"type": "document", "source": source, **title}
