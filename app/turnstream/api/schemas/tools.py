"""Request models of tools: the tools of a turn, and the answers of people to waiting calls."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from turnstream.api.schemas.blocks import BlockIn
from turnstream.api.schemas.fields import Body, JsonObject, Storable, storable_value

# The tag of an item that only names a tool of the server.
NAME = "name"

ToolName = Annotated[Storable, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
Description = Annotated[Storable, Field(min_length=1, max_length=20_000)]


class ClientToolIn(Body):
    """A tool that a client of the turn runs: the turn waits for its result. With an `expiry` (seconds) the client is a
    program: its calls are in no list for people, and an expired call cancels the turn.
    """

    type: Literal["client"]
    name: ToolName
    description: Description
    input_schema: JsonObject
    expiry: Annotated[float | None, Field(gt=0, le=31_536_000, description="seconds")] = None


class HttpToolIn(Body):
    """A tool behind a URL, for this turn. `headers` may contain secrets, which are stored with the turn and shown as
    stars. They may also name the operator's secrets in the form `${secret:NAME}`.
    """

    type: Literal["http"]
    name: ToolName
    description: Description
    input_schema: JsonObject
    url: Annotated[Storable, Field(max_length=2000)]
    timeout: Annotated[float, Field(gt=0, le=600, description="seconds")] = 30.0
    headers: Annotated[dict[Storable, Storable], Field(default_factory=dict, max_length=50)]
    read_only: bool = False
    retry_safe: bool = False


class ProviderToolIn(Body):
    """A tool that the provider runs (web search, code execution). Its definition is passed on unchanged."""

    type: Literal["provider"]
    definition: JsonObject


def _kind_of(item: Any) -> str | None:
    """Returns the tag of an item, which may be invalid. Errors then concern only that member of the union."""
    if isinstance(item, dict):
        kind = item.get("type")
        return kind if isinstance(kind, str) and kind != NAME else None
    return getattr(item, "type", NAME)


ToolIn = Annotated[
    Annotated[Storable, Tag(NAME)]
    | Annotated[ClientToolIn, Tag("client")]
    | Annotated[HttpToolIn, Tag("http")]
    | Annotated[ProviderToolIn, Tag("provider")],
    Discriminator(_kind_of),
]
ToolsIn = Annotated[
    list[ToolIn],
    Field(max_length=200, description="names of the server's tools, and declarations of others; [] for none"),
]


class ResultIn(Body):
    """The result of a client tool. The model receives an `output` other than a string as JSON. `blocks` replace
    `output` if the result has images or documents. `data` is stored for clients and not sent to the model.
    """

    type: Literal["result"]
    tool_use_id: Storable
    output: Any = None
    blocks: Annotated[list[BlockIn] | None, Field(min_length=1, max_length=20)] = None
    is_error: bool = False
    data: Any = None

    @field_validator("output", "data")
    @classmethod
    def _storable(cls, value: Any) -> Any:
        return storable_value(value)

    @model_validator(mode="after")
    def _check_exclusive(self) -> Self:
        if self.output is not None and self.blocks is not None:
            raise ValueError("must have either `output` or `blocks`, not both")
        return self


class MemberCondition(Body):
    """A condition on one member of an input: its exact value, or its bounds."""

    const: Any = None
    enum: Annotated[list[Any] | None, Field(min_length=1, max_length=100)] = None
    minimum: float | None = None
    maximum: float | None = None

    @model_validator(mode="after")
    def _check_named(self) -> Self:
        named = self.model_dump(exclude_unset=True)
        if not named or any(value is None for name, value in named.items() if name != "const"):
            raise ValueError("must have a `const`, an `enum`, a `minimum` or a `maximum`")
        storable_value(named)
        return self


class RememberIn(Body):
    """Permission for further calls of the same tool in the chat. `when` names members of the input; a call is allowed
    if its input has each of these members, and each meets its condition.
    """

    scope: Literal["chat"]
    when: Annotated[dict[Storable, MemberCondition] | None, Field(min_length=1, max_length=20)] = None


class ApproveIn(Body):
    """Permission to run a call. `input` replaces the model's input. With `remember`, further calls of the tool run
    without a question, until the permission is revoked.
    """

    type: Literal["approve"]
    tool_use_id: Storable
    input_digest: Annotated[str, Field(description="of the input that was shown, from the action")]
    input: JsonObject | None = None
    remember: RememberIn | None = None


class DenyIn(Body):
    type: Literal["deny"]
    tool_use_id: Storable
    input_digest: str
    reason: Annotated[Storable, Field(max_length=10_000, description="sent to the model")] = ""


class AnswerIn(Body):
    """The answer to a question. `content` must meet the schema of the question, and is sent to the tool. To `accept` a
    `sign_in` makes the call again, as the sign-in itself does.
    """

    type: Literal["answer"]
    tool_use_id: Storable
    input_digest: Annotated[str, Field(description="of the question that was shown, from the action")]
    action: Literal["accept", "decline", "cancel"]
    content: JsonObject | None = None

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.content is not None and self.action != "accept":
            raise ValueError("must have no `content` with this `action`")
        return self


ActionIn = Annotated[ResultIn | ApproveIn | DenyIn | AnswerIn, Field(discriminator="type")]


class ActionsIn(Body):
    """Answers to waiting calls: the server accepts all answers, or none."""

    actions: Annotated[list[ActionIn], Field(min_length=1, max_length=200)]
