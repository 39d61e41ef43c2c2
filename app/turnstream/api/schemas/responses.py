"""Response models, which also describe the responses in the OpenAPI document."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from turnstream.api.schemas.fields import Absent, without_defaults
from turnstream.domain.identity import Scope
from turnstream.domain.jobs import Delivery, OpenJobState
from turnstream.domain.output import Phase
from turnstream.domain.turns import Status


class ChatOut(BaseModel):
    id: UUID
    title: str | None
    system_prompt: str | None
    settings: dict[str, Any]
    created_at: datetime
    updated_at: datetime


class PieceOut(BaseModel):
    text: str
    found: Annotated[bool, Field(description="whether it is one of the words of the search")]


class ExcerptOut(BaseModel):
    """The match of a search: plain text in pieces, to be joined without separators."""

    turn: Annotated[UUID | None, Field(description="the turn of the match; null where the pieces are the whole title")]
    pieces: list[PieceOut]


class ListedChat(ChatOut):
    excerpt: Annotated[ExcerptOut | None, Field(description="of a search; null in a list of all chats")]
    jobs: Annotated[int | None, Field(description="its calls that run in the background; null in a search")]


class ChatPage(BaseModel):
    chats: list[ListedChat]
    next: Annotated[str | None, Field(description="the `before` of the next page; null on the last one")]
    cursor: Annotated[
        str | None, Field(description="of the first page: where the feed goes on; null on others and for a search")
    ]


class Deleted(BaseModel):
    deleted: UUID


class BlockMembers(BaseModel):
    """Optional members of a block; members that do not apply are absent. Providers may add others."""

    model_config = ConfigDict(extra="allow", json_schema_extra=without_defaults)

    input: Annotated[Any, Field(description="of a call: the parsed input, or its text where that is not JSON")] = None
    is_error: Annotated[
        bool | Absent,
        Field(description="of a tool_result: whether the call failed"),
    ] = None
    interrupted: Annotated[bool | Absent, Field(description="true when the block was cut off and stays so")] = None
    notes: Annotated[
        dict[str, Any] | Absent,
        Field(
            description="of a tool_result: the policies that were applied; of a user_text: its steer;"
            " of the first block of a message: its `author`, if that is not the owner"
        ),
    ] = None
    content: Annotated[
        list[dict[str, Any]] | Absent,
        Field(
            description="of a tool_result that holds files: each with its source, between the texts by their `length`"
            " in code points; in `text`, which has all words, one line break stands between two texts"
        ),
    ] = None
    signature: Annotated[str | Absent, Field(description="of thinking: the provider's signature")] = None
    citations: Annotated[list[Any] | Absent, Field(description="of text: the provider's citations")] = None
    data: Annotated[Any, Field(description="of a tool_result: JSON for clients; else the provider's own object")] = None


def _describe_members(schema: dict[str, Any]) -> None:
    schema["properties"] |= BlockMembers.model_json_schema()["properties"] | {
        "id": {"type": "string", "description": "of a call: what its result names as tool_use_id"},
        "tool_use_id": {"type": "string", "description": "of a tool_result: the call it answers"},
        "name": {"type": "string", "description": "of a call and its result: the tool"},
        "open": {"type": "boolean", "description": "true for a block that is still being written, else absent"},
    }


class BlockOut(BaseModel):
    """One block. Members that do not apply to its type are absent."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_describe_members)

    index: int
    round: int
    type: str
    text: str


class RoundOut(BaseModel):
    round: int
    attempt: int
    stop_reason: str | None
    usage: dict[str, Any]
    request_id: str | None
    messages: int
    model: Annotated[str | None, Field(description="the model that was called")]
    applied_edits: Annotated[list[dict[str, Any]], Field(description="edits of the context by the provider")]
    started_at: datetime | None
    first_delta_at: datetime | None
    sealed_at: datetime | None


class ErrorOut(BaseModel):
    type: str
    message: str
    request_id: str | None
    details: Annotated[
        dict[str, Any] | None,
        Field(
            description="figures of the failure, where there are any: what was used up, and of how much;"
            " `retry_after`, the seconds that the provider asks to wait"
        ),
    ]


class WantedOut(BaseModel):
    """A call that waits. A `client` tool waits for its result, an `approval` for the permission to run, an
    `elicitation` for the answer to a question that a running tool asks: then `input` is the question, with a `message`,
    and the `schema` of the answer or a `url`. A `sign_in` waits until the owner has signed in at `url` to the `server`
    of the tool.
    """

    tool_use_id: str
    name: str
    type: Literal["client", "approval", "elicitation", "sign_in"]
    input: Any
    input_digest: Annotated[str, Field(description="SHA-256 of this exact call, to be sent with the decision")]
    expires_at: datetime | None
    can_remember: Annotated[bool, Field(description="whether an approval may be remembered for the chat")]


class DegradedOut(BaseModel):
    """A policy that was needed: for the tool_result at `index`, for the reply of `round`, or for the whole turn."""

    what: str
    index: int | None
    tool: str | None
    round: int | None
    output_tokens: Annotated[int | None, Field(description="of a reply that was cut off: what it cost")]
    estimated: Annotated[bool, Field(description="true where the provider did not report `output_tokens`")]
    limit: Annotated[
        int | float | None, Field(description="of a limit that was reached, which `what` names: its amount")
    ]
    used: Annotated[int | float | None, Field(description="of a limit that was reached: how much was used")]


class PreliminaryOut(BaseModel):
    """The output of a running tool so far."""

    tool_use_id: str
    name: str
    text: str
    data: Any


class JobChildOut(BaseModel):
    """The turn of an agent that works on a call."""

    chat: UUID
    turn: UUID
    status: Status
    cost: Annotated[float | None, Field(description="of its finished rounds; null where no price is known")]


class JobOut(BaseModel):
    """A background call: `due` until a replica runs the call, `detached` while the work continues elsewhere."""

    id: UUID
    tool_use_id: str
    name: str
    kind: Annotated[str, Field(description="what runs the call: `tool` is a background tool of the server")]
    state: OpenJobState
    since: Annotated[datetime | None, Field(description="when the call was made; null for a moment after that")]
    child: JobChildOut | None
    progress: Annotated[str | None, Field(description="what the tool last reported")]


class ReportOut(BaseModel):
    """A call that the turn did not wait for. Once it is `settled`, its outcome is delivered as a block `report`."""

    job: UUID
    tool_use_id: str
    name: str
    state: OpenJobState | Literal["settled"]
    since: Annotated[datetime | None, Field(description="when the call was made")]
    outcome: Annotated[
        str | None,
        Field(description="the kind of its outcome, as in the log: `ok`, `error`, `refused` if its user stopped it, …"),
    ]
    progress: Annotated[str | None, Field(description="what the tool last reported")]
    delivery: Annotated[
        Delivery | None,
        Field(
            description="`steered`: into an open turn; `started`: a turn begins with it; `discarded`: the turn of the "
            "call was cancelled; null while it is not delivered"
        ),
    ]
    turn: Annotated[UUID | None, Field(description="the turn that has the report")]
    round: Annotated[
        int | None,
        Field(
            description="the round that it stands behind; 0: before the first one; null "
            "while the turn has not applied it"
        ),
    ]


class TurnOut(BaseModel):
    id: UUID
    chat_id: UUID
    parent_id: UUID | None
    role: Literal["user", "assistant"]
    author: Annotated[str | None, Field(description="the member who wrote or asked for it; null: the owner")]
    status: Status
    model: str | None
    attempt: int
    stop_reason: str | None
    error: ErrorOut | None
    usage: dict[str, Any]
    cost: Annotated[float | None, Field(description="null where a price is unknown")]
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    forked_from: Annotated[UUID | None, Field(description="the turn that it is a copy of, which may be gone")]
    blocks: list[BlockOut]
    rounds: list[RoundOut]
    output: Annotated[Any, Field(description="of a structured turn, once it is complete")]
    phase: Annotated[Phase | None, Field(description="of a structured turn: the phase in which it was cancelled")]
    actions: Annotated[list[WantedOut], Field(description="the calls that wait for a person now")]
    preliminary: Annotated[list[PreliminaryOut], Field(description="what running tools have of their results so far")]
    jobs: Annotated[list[JobOut], Field(description="the calls that run in the background now")]
    reports: Annotated[list[ReportOut], Field(description="the calls in the background that it did not wait for")]
    labels: Annotated[dict[str, str], Field(description="texts of the client, which no model receives")]
    hook_failures: Annotated[int, Field(description="calls of hooks of the program that failed")]
    degraded: Annotated[list[DegradedOut], Field(description="the policies that the turn needed")]
    siblings: Annotated[list[UUID] | None, Field(description="all turns with its parent, itself included")] = None
    cursor: Annotated[str | None, Field(description="follow the stream from here, without gap or overlap")] = None


class ExchangeOut(BaseModel):
    user_turn: Annotated[TurnOut | None, Field(description="null where the message went into a turn that runs")]
    assistant_turn: TurnOut
    stream_url: str
    steered: Annotated[bool, Field(description="true where the message becomes a `user_text` block of that turn")] = (
        False
    )


class GrantOut(BaseModel):
    """A permission for calls of a tool in this chat, given with the approval of one call."""

    id: UUID
    tool: str
    when: Annotated[dict[str, Any] | None, Field(description="the condition for the input; null for any input")]
    created_at: datetime
    turn: Annotated[UUID, Field(description="the turn of the call that was approved")]
    tool_use_id: Annotated[str, Field(description="the call that was approved")]


class GrantsOut(BaseModel):
    grants: list[GrantOut]


class Revoked(BaseModel):
    revoked: UUID


class PathPage(BaseModel):
    turns: list[TurnOut]
    next: Annotated[UUID | None, Field(description="the `leaf` of the page before: older turns; null at the root")]
    following: Annotated[
        UUID | None, Field(description="the `after` of the page behind: newer turns; null at the end of the path")
    ] = None
    cursor: Annotated[str, Field(description="follow the stream of the chat from here, without gap or overlap")]


class IdentityOut(BaseModel):
    """The rights of a credential. A credential with a `chat` or a `turn` reaches only that chat or turn."""

    owner: str
    scopes: list[Scope]
    chat: UUID | None
    turn: UUID | None
    expires_at: datetime | None
    documents: Annotated[
        str | None, Field(description="folder of documents that a restricted credential reaches; null: none")
    ] = None
    fixed: Annotated[list[str], Field(description="options that it fixes, so that no request may name them")] = []
    features: Annotated[list[str], Field(description="extensions that are on, in an answer about the caller")] = []
