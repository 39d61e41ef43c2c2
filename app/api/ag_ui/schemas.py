"""Models of AG-UI, protocol 1.0 and what came before it. Members that mean nothing here are ignored."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.api.schemas.blocks import source_of_url
from app.api.schemas.fields import LenientBody, Storable
from app.api.schemas.requests import UiOptions
from app.domain.errors import RequestRefused


class AgUiMessageIn(LenientBody):
    id: Storable = ""
    role: Literal["developer", "system", "assistant", "user", "tool", "activity", "reasoning"]
    content: Any = None
    tool_call_id: Annotated[str | None, Field(alias="toolCallId")] = None
    error: str | None = None


class AgUiToolIn(LenientBody):
    """A tool that the page runs."""

    name: Storable
    description: Storable = ""
    parameters: Any = None


class AgUiContextIn(LenientBody):
    description: Storable
    value: Storable


class AgUiResumeIn(LenientBody):
    """The answer to an interrupt."""

    interrupt_id: Annotated[Storable, Field(alias="interruptId")]
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class AgUiPropsIn(LenientBody):
    """What an app forwards: options of the turn."""

    turnstream: UiOptions = UiOptions()


class RunInput(LenientBody):
    """The body of an HttpAgent (`RunAgentInput`)."""

    thread_id: Annotated[Storable, Field(alias="threadId", min_length=1, max_length=500)]
    run_id: Annotated[Storable, Field(alias="runId", min_length=1, max_length=500)]
    protocol: Annotated[Storable | None, Field(alias="protocolVersion", max_length=50)] = None
    messages: Annotated[list[AgUiMessageIn], Field(max_length=10_000, default_factory=list)]
    tools: Annotated[list[AgUiToolIn], Field(max_length=200, default_factory=list)]
    context: Annotated[list[AgUiContextIn], Field(max_length=200, default_factory=list)]
    state: Any = None
    resume: Annotated[list[AgUiResumeIn], Field(max_length=200, default_factory=list)]
    forwarded_props: Annotated[AgUiPropsIn | None, Field(alias="forwardedProps")] = None

    @property
    def options(self) -> UiOptions:
        return self.forwarded_props.turnstream if self.forwarded_props else UiOptions()


class AgUiThreadOut(BaseModel):
    """A thread for `agent.setMessages`, with what it waits for."""

    model_config = ConfigDict(serialize_by_alias=True, populate_by_name=True)

    thread_id: Annotated[str, Field(alias="threadId")]
    chat: Annotated[str, Field(description="the chat's own id")]
    messages: list[dict[str, Any]]
    interrupts: Annotated[list[dict[str, Any]], Field(description="decisions that the newest answer waits for")]
    pending: Annotated[list[str], Field(alias="pendingToolCallIds", description="calls that a page must run")]


class AgUiStopped(BaseModel):
    stopped: Annotated[list[str], Field(description="the turns that were cancelled")]


def blocks_in(content: Any) -> list[dict[str, Any]]:
    """The content of a user message as blocks. Raises RequestRefused for a part that no model can get from here."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return [_block(part) for part in parts if part.get("type") != "text" or part.get("text")]


def _block(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("type") == "text":
        return {"type": "text", "text": part["text"]}
    source = part.get("source")
    value = source if isinstance(source, dict) else {}
    if value.get("type") == "data":
        found: dict[str, Any] | None = {"type": "base64", "data": value.get("value")}
    else:
        found = source_of_url(str(value.get("value", "")))
    if part.get("type") not in {"image", "document"} or found is None:
        raise RequestRefused(
            "`messages`: the parts of a message must be text, or an `image` or `document` whose `source` is `data`, or"
            " the `url` of an upload (/api/uploads/…).",
            field="messages",
        )
    return {"type": part["type"], "source": found}
