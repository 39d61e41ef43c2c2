"""Models of Anthropic's requests. An unsupported member of a request is refused. A block may have unknown members,
because the SDKs send received blocks back.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from turnstream.api.schemas.fields import (
    OTHER_TAG,
    TEXT_TAG,
    Absent,
    AnyJson,
    Body,
    JsonObject,
    Storable,
    without_defaults,
)
from turnstream.api.schemas.requests import ModelName
from turnstream.libraries.dialects.schemas import LenientBody, OpenBody, text_or_other


class SourceIn(LenientBody):
    """The content of an image or a document. Its `type` decides which members apply."""

    type: Storable
    media_type: Storable | None = None
    data: str | None = None
    url: Storable | None = None
    file_id: Storable | None = None
    content: AnyJson = None


class BlockIn(OpenBody):
    """A block of a message. Its `type` decides which members apply."""

    type: Annotated[Storable, Field(description="text, image, document, tool_use, tool_result, thinking, …")]
    text: Storable | None = None
    source: SourceIn | None = None
    title: Storable | None = None
    id: Storable | None = None
    name: Storable | None = None
    input: AnyJson = None
    tool_use_id: Storable | None = None
    content: AnyJson = None
    is_error: bool | None = None
    citations: AnyJson = None
    context: Storable | None = None
    cache_control: AnyJson = None


Content = Annotated[
    Annotated[Storable, Tag(TEXT_TAG)] | Annotated[list[BlockIn], Tag(OTHER_TAG)], Discriminator(text_or_other)
]


class MessageIn(LenientBody):
    role: Literal["user", "assistant", "system"]
    content: Content


class ToolIn(OpenBody):
    """A tool. A tool without a `type` is run by the client; `mcp_toolset` selects tools of this server; any other type
    names a tool of the model's provider and is passed on unchanged.
    """

    type: Storable | None = None
    name: Storable | None = None
    description: Storable | None = None
    input_schema: JsonObject | None = None
    mcp_server_name: Storable | None = None
    cache_control: AnyJson = None


class MetadataIn(LenientBody):
    user_id: Storable | None = None


class OutputConfigIn(Body):
    effort: Storable | None = None
    format: JsonObject | None = None


class ThreadIn(LenientBody):
    """A stored conversation. A request that continues it sends only the new part, without `system` and `tools`."""

    type: Literal["create", "continue"]
    previous_message_id: Storable | None = None


class CountIn(Body):
    """The body of POST /v1/messages/count_tokens."""

    model: ModelName
    messages: Annotated[list[MessageIn], Field(max_length=10_000)]
    system: Content | None = None
    tools: Annotated[list[ToolIn] | None, Field(max_length=200)] = None
    tool_choice: JsonObject | None = None
    thinking: JsonObject | None = None
    output_config: OutputConfigIn | None = None
    context_management: JsonObject | None = None
    mcp_servers: list[JsonObject] | None = None
    cache_control: AnyJson = None
    speed: Storable | None = None


class MessagesIn(CountIn):
    """The body of POST /v1/messages."""

    max_tokens: int
    thread: ThreadIn | None = None
    stream: bool | None = None
    stop_sequences: list[Storable] | None = None
    metadata: MetadataIn | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    service_tier: Storable | None = None
    container: AnyJson = None
    diagnostics: JsonObject | None = None
    fallbacks: list[JsonObject] | None = None
    inference_geo: Storable | None = None
    user_profile_id: Storable | None = None
    workspace_id: Storable | None = None


class AnthropicRefusal(BaseModel):
    """The reason for a refusal, in Anthropic's form."""

    model_config = ConfigDict(json_schema_extra=without_defaults)

    type: str
    message: str
    details: JsonObject | Absent = None


class AnthropicError(BaseModel):
    """The body of every refusal of these calls."""

    type: Literal["error"]
    error: AnthropicRefusal
    request_id: str | None


Json = dict[str, Any]
