"""Models of AG-UI, protocol 1.0 and earlier. Members without a meaning here are ignored."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from turnstream.api.schemas.fields import OTHER_TAG, TEXT_TAG, Storable
from turnstream.domain.errors import RequestRefused
from turnstream.libraries.dialects.schemas import LenientBody, OpenBody, UiOptions, source_of_url, text_or_other


class AgUiSourceIn(OpenBody):
    """A file: its bytes in base64 (`data`), or its `url`."""

    type: Storable | None = None
    value: Storable | None = None


class AgUiPartIn(OpenBody):
    """A part of a user's message. Its `type` decides which members apply; an unsupported type is refused."""

    type: Annotated[Storable | None, Field(description="text, image, document")] = None
    text: Storable | None = None
    source: AgUiSourceIn | None = None


class _MessageIn(OpenBody):
    id: Storable = ""
    tool_call_id: Annotated[str | None, Field(alias="toolCallId")] = None
    error: str | None = None


class AgUiCalledIn(OpenBody):
    name: Storable
    arguments: Storable = ""


class AgUiCallIn(OpenBody):
    id: Storable
    function: AgUiCalledIn


class AgUiOtherMessageIn(_MessageIn):
    role: Literal["developer", "system", "assistant", "tool", "activity", "reasoning"]
    content: Any = None
    tool_calls: Annotated[list[AgUiCallIn] | None, Field(alias="toolCalls")] = None


class AgUiUserMessageIn(_MessageIn):
    role: Literal["user"]
    content: (
        Annotated[
            Annotated[Storable, Tag(TEXT_TAG)] | Annotated[list[AgUiPartIn], Tag(OTHER_TAG)],
            Discriminator(text_or_other),
        ]
        | None
    ) = None

    @property
    def parts(self) -> list[AgUiPartIn]:
        if isinstance(self.content, str):
            return [AgUiPartIn(type="text", text=self.content)]
        return self.content or []


AgUiMessageIn = AgUiOtherMessageIn | AgUiUserMessageIn


class AgUiToolIn(LenientBody):
    """A tool that the page runs."""

    name: Storable
    description: Storable = ""
    parameters: Any = None


class AgUiContextIn(LenientBody):
    description: Storable
    value: Storable


class AgUiResumeIn(LenientBody):
    """The person's answer to an interrupt."""

    interrupt_id: Annotated[Storable, Field(alias="interruptId")]
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class AgUiProxiedIn(LenientBody):
    """A request from an MCP server's app, in the form that the AG-UI middleware for MCP Apps sends."""

    server_hash: Annotated[Storable, Field(alias="serverHash", max_length=2000)] = ""
    server_id: Annotated[Storable, Field(alias="serverId", max_length=500)] = ""
    method: Annotated[Storable, Field(max_length=200)]
    params: dict[str, Any] = Field(default_factory=dict)


class AgUiPropsIn(LenientBody):
    """Options that an app forwards to a turn. If `proxied` is set, the run is an app's request and has no message."""

    turnstream: UiOptions = UiOptions()
    proxied: Annotated[AgUiProxiedIn | None, Field(alias="__proxiedMCPRequest")] = None


class RunInput(LenientBody):
    """The body that an `HttpAgent` sends (`RunAgentInput`)."""

    thread_id: Annotated[Storable, Field(alias="threadId", min_length=1, max_length=500)]
    run_id: Annotated[Storable, Field(alias="runId", min_length=1, max_length=500)]
    protocol: Annotated[Storable | None, Field(alias="protocolVersion", max_length=50)] = None
    messages: Annotated[
        list[Annotated[AgUiMessageIn, Field(discriminator="role")]], Field(max_length=10_000, default_factory=list)
    ]
    tools: Annotated[list[AgUiToolIn], Field(max_length=200, default_factory=list)]
    context: Annotated[list[AgUiContextIn], Field(max_length=200, default_factory=list)]
    state: Any = None
    resume: Annotated[list[AgUiResumeIn], Field(max_length=200, default_factory=list)]
    forwarded_props: Annotated[AgUiPropsIn | None, Field(alias="forwardedProps")] = None

    @property
    def options(self) -> UiOptions:
        return self.forwarded_props.turnstream if self.forwarded_props else UiOptions()

    @property
    def proxied(self) -> AgUiProxiedIn | None:
        return self.forwarded_props.proxied if self.forwarded_props else None


class AgUiThreadOut(BaseModel):
    """A thread for `agent.setMessages`, with the interrupts and calls that it waits for."""

    model_config = ConfigDict(serialize_by_alias=True, populate_by_name=True)

    thread_id: Annotated[str, Field(alias="threadId")]
    chat: Annotated[str, Field(description="the chat's own id")]
    messages: list[dict[str, Any]]
    interrupts: Annotated[list[dict[str, Any]], Field(description="decisions that the newest answer waits for")]
    pending: Annotated[list[str], Field(alias="pendingToolCallIds", description="calls that a page must run")]


class AgUiStopped(BaseModel):
    stopped: Annotated[list[str], Field(description="the turns that were cancelled")]


def blocks_in(message: AgUiUserMessageIn) -> list[dict[str, Any]]:
    """Converts the content of a user message to blocks. Raises RequestRefused for a part that this dialect cannot pass
    to a model.
    """
    return [_block(part) for part in message.parts if part.type != "text" or part.text]


def _block(part: AgUiPartIn) -> dict[str, Any]:
    if part.type == "text":
        return {"type": "text", "text": part.text}
    source = part.source or AgUiSourceIn()
    if source.type == "data":
        found: dict[str, Any] | None = {"type": "base64", "data": source.value}
    else:
        found = source_of_url(source.value or "")
    if part.type not in {"image", "document"} or found is None:
        raise RequestRefused(
            "`messages`: the parts of a message must be text, or an `image` or `document` whose `source` is `data`, or"
            " the `url` of an upload (/api/uploads/…).",
            field="messages",
        )
    return {"type": part.type, "source": found}
