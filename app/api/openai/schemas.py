"""Models of OpenAI's requests. A member of a request that has no place here is refused; items may have more members
than are needed, as the SDKs send back what they received.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from app.api.schemas.fields import Body, JsonObject, LenientBody, Storable, storable_value
from app.api.schemas.requests import Labels, ModelName

AnyJson = Annotated[Any, AfterValidator(storable_value)]
# What a response has in any case, or never has because it is not needed here.
Included = Literal["message.input_image.image_url", "reasoning.encrypted_content"]


class ConversationIn(Body):
    id: Storable


class FormatIn(Body):
    """The format of an answer. `strict` is what every schema is here."""

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
    """A `summary` is returned in any case."""

    effort: Storable | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class StreamOptionsIn(Body):
    include_obfuscation: Literal[False] | None = None


class ResponseIn(Body):
    """The body of POST /v1/responses."""

    model: ModelName | None = None
    input: AnyJson = None
    instructions: Storable | None = None
    previous_response_id: Storable | None = None
    conversation: Storable | ConversationIn | None = None
    tools: Annotated[list[JsonObject] | None, Field(max_length=200)] = None
    tool_choice: AnyJson = None
    text: TextIn | None = None
    reasoning: ReasoningIn | None = None
    metadata: Labels | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    parallel_tool_calls: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    user: Storable | None = None
    safety_identifier: Storable | None = None
    prompt_cache_key: Storable | None = None
    service_tier: Storable | None = None
    include: list[Included] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    stream: bool | None = None
    stream_options: StreamOptionsIn | None = None
    background: bool | None = None
    store: bool | None = None


class ConversationBody(Body):
    """The body of POST /v1/conversations, and of a change of one."""

    items: AnyJson = None
    metadata: Labels | None = None


class ItemsIn(Body):
    items: AnyJson


class MessageItem(LenientBody):
    type: Literal["message"] = "message"
    id: str | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[JsonObject]


class FunctionOutputItem(LenientBody):
    type: Literal["function_call_output"]
    call_id: Storable
    output: Storable | list[JsonObject]


class ApprovalItem(LenientBody):
    type: Literal["mcp_approval_response"]
    approval_request_id: Storable
    approve: bool
    reason: Storable | None = None


class OutputItem(LenientBody):
    """An item of an earlier response, which is known here by its id."""

    type: Literal["reasoning", "function_call", "mcp_call", "mcp_approval_request", "item_reference"]
    id: str | None = None
    call_id: Storable | None = None
    name: Storable | None = None
    arguments: Storable | None = None


InputItem = MessageItem | FunctionOutputItem | ApprovalItem | OutputItem
ITEMS: dict[str, type[InputItem]] = {
    "message": MessageItem,
    "function_call_output": FunctionOutputItem,
    "mcp_approval_response": ApprovalItem,
    **dict.fromkeys(("reasoning", "function_call", "mcp_call", "mcp_approval_request", "item_reference"), OutputItem),
}


class StreamUsageIn(StreamOptionsIn):
    include_usage: bool | None = None


class FormatOfChatIn(Body):
    """The format of an answer, as chat completions have it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonObject | None = None


class ChatIn(Body):
    """The body of POST /v1/chat/completions."""

    model: ModelName
    messages: Annotated[list[JsonObject], Field(min_length=1, max_length=10_000)]
    tools: Annotated[list[JsonObject] | None, Field(max_length=200)] = None
    tool_choice: AnyJson = None
    parallel_tool_calls: bool | None = None
    response_format: FormatOfChatIn | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: Storable | list[Storable] | None = None
    reasoning_effort: Storable | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    metadata: Labels | None = None
    user: Storable | None = None
    safety_identifier: Storable | None = None
    prompt_cache_key: Storable | None = None
    service_tier: Storable | None = None
    logprobs: Literal[False] | None = None
    n: Literal[1] | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamUsageIn | None = None


class ChatMessageIn(LenientBody):
    """A message of a chat completion. `content` may be left out where there are calls."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Storable | list[JsonObject] | None = None
    tool_calls: list[JsonObject] | None = None
    tool_call_id: Storable | None = None
