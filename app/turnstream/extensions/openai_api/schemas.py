"""Models of OpenAI's requests. Unsupported members of a request are refused; items may have extra members, because the
SDKs send received items back.
"""

import json
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

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
from turnstream.api.schemas.requests import Labels, ModelName
from turnstream.extensions.openai_api.objects import flat_name
from turnstream.libraries.dialects.schemas import LenientBody, OpenBody, text_or_other
from turnstream.llm.conversation.messages import SUMMARISED

# Accepted values of `include`. A response always has the named member, or never has it because clients do not need it
# here. Probabilities are not stored.
Included = Literal["message.input_image.image_url", "message.output_text.logprobs", "reasoning.encrypted_content"]


# --- parts and items -------------------------------------------------------------------------------------------------


class ImageUrlIn(OpenBody):
    url: Storable | None = None


class FileIn(OpenBody):
    file_id: Storable | None = None
    file_data: Storable | None = None
    file_url: Storable | None = None
    filename: Storable | None = None


class PartIn(FileIn):
    """A part of a message or of an output. Its `type` decides which members apply; an unsupported type is refused if
    the part would be sent to a model.
    """

    type: Annotated[
        Storable | None,
        Field(description="input_text, input_image, input_file, output_text, refusal; text, image_url, file"),
    ] = None
    text: Storable | None = None
    refusal: Storable | None = None
    image_url: (
        Annotated[
            Annotated[Storable, Tag(TEXT_TAG)] | Annotated[ImageUrlIn, Tag(OTHER_TAG)], Discriminator(text_or_other)
        ]
        | None
    ) = None
    file: FileIn | None = None


Content = Annotated[
    Annotated[Storable, Tag(TEXT_TAG)] | Annotated[list[PartIn], Tag(OTHER_TAG)], Discriminator(text_or_other)
]


class MessageItem(LenientBody):
    type: Literal["message"] = "message"
    id: str | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class FunctionOutputItem(LenientBody):
    type: Literal["function_call_output"]
    call_id: Storable
    output: Content


class ApprovalItem(LenientBody):
    type: Literal["mcp_approval_response"]
    approval_request_id: Storable
    approve: bool
    reason: Storable | None = None


class OutputItem(LenientBody):
    """An item of an earlier response. The server finds the item by its id."""

    type: Literal["reasoning", "function_call", "mcp_call", "mcp_approval_request", "item_reference"] = "item_reference"
    id: str | None = None
    call_id: Storable | None = None
    name: Storable | None = None
    arguments: Storable | None = None


SUMMARY_MARK = "turnstream:"  # precedes the summary in our compaction items


def _as_known(value: Any) -> Any:
    """Converts calls and outputs of custom tools and namespaces to calls and outputs of functions, and a summary of the
    conversation to a message.
    """
    if not isinstance(value, dict):
        return value
    match value.get("type"):
        case "custom_tool_call":
            value = {**value, "type": "function_call", "arguments": json.dumps({"input": value.get("input", "")})}
        case "custom_tool_call_output":
            value = {**value, "type": "function_call_output"}
        case "compaction" | "compaction_summary":
            mark, _, summary = str(value.get("encrypted_content", "")).partition(SUMMARY_MARK)
            if mark or not summary:
                raise ValueError("must be as this server has made it: other summaries cannot be read")
            return {"type": "message", "role": "user", "content": SUMMARISED + summary}
        case _:
            pass
    return {**value, "name": flat_name(value.get("name"), value["namespace"])} if value.get("namespace") else value


def is_summary(item: MessageItem) -> bool:
    return isinstance(item.content, str) and item.content.startswith(SUMMARISED)


InputItem = MessageItem | FunctionOutputItem | ApprovalItem | OutputItem


def _item_tag(value: Any) -> str | None:
    type = value.get("type", "message" if "role" in value else "item_reference") if isinstance(value, dict) else None
    if not isinstance(type, str):
        return None
    return "output" if type in _OUTPUT_TYPES else type


_OUTPUT_TYPES = frozenset(get_args(OutputItem.model_fields["type"].annotation))
ItemIn = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionOutputItem, Tag("function_call_output")]
    | Annotated[ApprovalItem, Tag("mcp_approval_response")]
    | Annotated[OutputItem, Tag("output")],
    Discriminator(_item_tag),
    BeforeValidator(_as_known),
]
InputIn = (
    Annotated[
        Annotated[Storable, Tag(TEXT_TAG)] | Annotated[list[ItemIn], Tag(OTHER_TAG)], Discriminator(text_or_other)
    ]
    | None
)


# --- tools -----------------------------------------------------------------------------------------------------------


class FunctionIn(LenientBody):
    name: Storable | None = None
    description: Storable | None = None
    parameters: JsonObject | None = None


class FunctionToolIn(FunctionIn):
    """A client function, in the form of the Responses API, or inside of `function` in the form of chat completions."""

    type: Literal["function"]
    function: FunctionIn | None = None


class CustomToolIn(LenientBody):
    """A client tool whose input is any text. A grammar in its `format` is a hint for the model. In chat completions the
    other members are inside of `custom`.
    """

    type: Literal["custom"]
    name: Storable
    description: Storable | None = None
    format: JsonObject | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_chat(cls, value: Any) -> Any:
        inside = value.get("custom") if isinstance(value, dict) else None
        return {**inside, **value} if isinstance(inside, dict) else value


def _own_tag(value: Any) -> str:
    return "custom" if isinstance(value, dict) and value.get("type") == "custom" else "function"


class NamespaceToolIn(LenientBody):
    """Client tools that share a namespace."""

    type: Literal["namespace"]
    name: Storable
    description: Storable | None = None
    tools: Annotated[
        list[
            Annotated[
                Annotated[FunctionToolIn, Tag("function")] | Annotated[CustomToolIn, Tag("custom")],
                Discriminator(_own_tag),
            ]
        ],
        Field(max_length=200),
    ]


class AllowedToolsIn(LenientBody):
    tool_names: list[Storable]


def _tool_names(value: Any) -> Any:
    return value.get("tool_names", value) if isinstance(value, dict) else value


class McpToolIn(LenientBody):
    """A selection of the server's tools."""

    type: Literal["mcp"]
    server_label: Storable | None = None
    allowed_tools: Annotated[
        list[Storable] | None,
        BeforeValidator(_tool_names, json_schema_input_type=list[Storable] | AllowedToolsIn | None),
    ] = None


class ForwardedToolIn(OpenBody):
    """A tool of the model's provider, passed on unchanged."""

    type: Storable | None = None


def _tool_tag(value: Any) -> str:
    type = value.get("type") if isinstance(value, dict) else None
    return type if type in ("function", "custom", "namespace", "mcp") else "provider"


ToolIn = Annotated[
    Annotated[FunctionToolIn, Tag("function")]
    | Annotated[CustomToolIn, Tag("custom")]
    | Annotated[NamespaceToolIn, Tag("namespace")]
    | Annotated[McpToolIn, Tag("mcp")]
    | Annotated[ForwardedToolIn, Tag("provider")],
    Discriminator(_tool_tag),
]
ToolsIn = Annotated[list[ToolIn] | None, Field(max_length=200)]


class NamedToolIn(LenientBody):
    type: Storable | None = None
    name: Storable | None = None
    function: FunctionIn | None = None
    custom: FunctionIn | None = None


class AllowedIn(LenientBody):
    """A selection of the request's tools. In chat completions the selection is in `allowed_tools`."""

    mode: Literal["auto", "required"] = "auto"
    tools: list[NamedToolIn] | None = None


class ToolChoiceIn(NamedToolIn, AllowedIn):
    allowed_tools: AllowedIn | None = None


ChoiceIn = (
    Annotated[
        Annotated[Storable, Tag(TEXT_TAG)] | Annotated[ToolChoiceIn, Tag(OTHER_TAG)], Discriminator(text_or_other)
    ]
    | None
)


# --- bodies ----------------------------------------------------------------------------------------------------------


class ConversationIn(Body):
    id: Storable


class FormatIn(Body):
    """The format of an answer. Every schema is strict here, whatever `strict` is."""

    model_config = ConfigDict(populate_by_name=True)

    type: Literal["text", "json_object", "json_schema"]
    name: Storable | None = None
    description: Storable | None = None
    json_schema: JsonObject | None = Field(None, alias="schema")
    strict: bool | None = None


class TextIn(Body):
    format: FormatIn | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningIn(Body):
    """The reasoning of the model. The response has summaries even if `summary` does not request them."""

    effort: Storable | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Storable | None = None


class StreamOptionsIn(Body):
    include_obfuscation: bool | None = None


class ResponseIn(OpenBody):
    """The body of POST /v1/responses. Other members are labels, or the model's own parameters."""

    model: ModelName | None = None
    input: InputIn = None
    instructions: Storable | None = None
    previous_response_id: Storable | None = None
    conversation: (
        Annotated[
            Annotated[Storable, Tag(TEXT_TAG)] | Annotated[ConversationIn, Tag(OTHER_TAG)], Discriminator(text_or_other)
        ]
        | None
    ) = None
    tools: ToolsIn = None
    tool_choice: ChoiceIn = None
    text: TextIn | None = None
    reasoning: ReasoningIn | None = None
    metadata: Labels | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    parallel_tool_calls: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    include: list[Included] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    stream: bool | None = None
    stream_options: StreamOptionsIn | None = None
    background: bool | None = None
    store: bool | None = None


class ConversationBody(Body):
    """The body of POST /v1/conversations, and of the call that changes a conversation."""

    items: InputIn = None
    metadata: Labels | None = None


class ItemsIn(Body):
    items: InputIn


class StreamUsageIn(StreamOptionsIn):
    include_usage: bool | None = None


class FormatOfChatIn(Body):
    """The format of an answer, in the form of chat completions."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonObject | None = None


class CalledFunctionIn(LenientBody):
    name: Storable | None = None
    arguments: Storable | None = None


class ToolCallIn(LenientBody):
    id: Storable | None = None
    type: Literal["function", "custom"] = "function"
    function: CalledFunctionIn

    @model_validator(mode="before")
    @classmethod
    def _of_custom(cls, value: Any) -> Any:
        """Converts the call of a custom tool to the call of a function."""
        if (
            isinstance(value, dict)
            and value.get("type") == "custom"
            and isinstance(custom := value.get("custom"), dict)
        ):
            arguments = json.dumps({"input": custom.get("input", "")})
            return {**value, "function": {"name": custom.get("name"), "arguments": arguments}}
        return value


class ChatMessageIn(LenientBody):
    """A message of a chat completion. `content` may be omitted if there are calls."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    tool_calls: list[ToolCallIn] | None = None
    tool_call_id: Storable | None = None


class ChatIn(OpenBody):
    """The body of POST /v1/chat/completions. Other members are labels, or the model's own parameters."""

    model: ModelName
    messages: Annotated[list[ChatMessageIn], Field(min_length=1, max_length=10_000)]
    tools: ToolsIn = None
    tool_choice: ChoiceIn = None
    parallel_tool_calls: bool | None = None
    response_format: FormatOfChatIn | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: (
        Annotated[
            Annotated[Storable, Tag(TEXT_TAG)] | Annotated[list[Storable], Tag(OTHER_TAG)], Discriminator(text_or_other)
        ]
        | None
    ) = None
    reasoning_effort: Storable | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    metadata: Labels | None = None
    logprobs: Literal[False] | None = None
    n: Literal[1] | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamUsageIn | None = None


class EmbeddingsIn(OpenBody):
    """The body of POST /v1/embeddings. Other members are sent to the provider."""

    model: ModelName
    input: Annotated[
        Annotated[Storable, Tag(TEXT_TAG)] | Annotated[list[AnyJson], Tag(OTHER_TAG)], Discriminator(text_or_other)
    ]


class OpenAiRefusal(BaseModel):
    """The reason of a refusal, in OpenAI's form. `param` is the path of the wrong field, `limit` the limit of the owner
    that is reached.
    """

    model_config = ConfigDict(json_schema_extra=without_defaults)

    message: str
    type: str
    param: str | None
    code: str | None
    limit: str | Absent = None


class OpenAiError(BaseModel):
    """The body of every refusal under /v1."""

    error: OpenAiRefusal
