"""Bodies of requests and answers about shared chats."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from pydantic import BaseModel, Field

from turnstream.api.schemas.fields import Body


class ShareIn(Body):
    """A snapshot ends with the answer `turn`. Without `turn` it ends with the newest answer of the chat. A live link
    shows the newest branch, and the running answer.
    """

    live: Annotated[bool, Field(description="whether the link shows messages that come later")] = False
    turn: Annotated[UUID | None, Field(description="the last turn of a snapshot")] = None
    results: Annotated[bool, Field(description="whether calls of tools and their results are shown")] = False
    files: Annotated[bool, Field(description="whether images and documents of messages are shown")] = False
    seconds: Annotated[
        float | None, Field(gt=0, le=3_155_760_000, description="the time until the link expires; null: it does not")
    ] = None


class ShareOut(BaseModel):
    """A link without its secret."""

    id: UUID
    chat: UUID
    title: str | None
    live: bool
    turn: Annotated[UUID | None, Field(description="the last turn of a snapshot")]
    results: bool
    files: bool
    created_at: datetime
    expires_at: datetime | None


class ShareCreated(ShareOut):
    path: Annotated[str, Field(description="the path of the page; it is returned this once, and stored as a digest")]


class ShareList(BaseModel):
    shares: list[ShareOut]


class MemberIn(Body):
    """If the person is a member already, `role` replaces the role of the member."""

    member: Annotated[str, Field(min_length=1, max_length=255, description="the name of the owner to be a member")]
    role: Annotated[
        Literal["read", "write", "approve"],
        Field(description="each role has the rights of those before it; `approve`: decides about calls of tools"),
    ]


class MemberOut(BaseModel):
    member: str
    role: Literal["read", "write", "approve"]
    created_at: datetime


class MemberList(BaseModel):
    members: list[MemberOut]


class MemberRemoved(BaseModel):
    removed: str


class MemberCallOut(BaseModel):
    """A call that the member's role may answer."""

    turn: UUID
    tool_use_id: str
    name: Annotated[str, Field(description="the tool")]
    type: Literal["client", "approval", "elicitation"]
    since: datetime


class MembershipOut(BaseModel):
    """A chat of another owner, of which the caller is a member."""

    chat: UUID
    owner: str
    title: str | None
    role: Literal["read", "write", "approve"]
    created_at: Annotated[datetime, Field(description="when the caller became a member")]
    updated_at: Annotated[datetime, Field(description="when the chat was changed last")]
    waiting: Annotated[list[MemberCallOut], Field(description="calls that wait for the caller, the oldest first")]


class MembershipList(BaseModel):
    memberships: list[MembershipOut]


class MembershipEnded(BaseModel):
    left: UUID


class SharedBlock(BaseModel):
    """`text` and `user_text` are Markdown. The `text` of a call is its input, as JSON. A file has an `upload` if its
    bytes can be read.
    """

    type: Literal["text", "user_text", "call", "result", "file"]
    text: str = ""
    name: str | None = None
    is_error: bool = False
    open: Annotated[bool, Field(description="whether the block is being written")] = False
    upload: UUID | None = None


class SharedTurn(BaseModel):
    role: Literal["user", "assistant"]
    status: str
    created_at: datetime
    blocks: list[SharedBlock]


class SharedChat(BaseModel):
    """The newest turns of the shared branch, oldest first. `more` is true if earlier turns are omitted."""

    title: str | None
    live: bool
    more: bool
    turns: list[SharedTurn]
