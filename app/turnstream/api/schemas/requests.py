"""Request models, which validate bodies and describe them in the OpenAPI document."""

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from turnstream.api.schemas.blocks import BlockIn
from turnstream.api.schemas.fields import Body, JsonObject, Storable, Title, storable_value
from turnstream.api.schemas.tools import Description, ToolName, ToolsIn
from turnstream.domain.chats import OnBusy
from turnstream.domain.turns import EarlierResults

ModelName = Annotated[Storable, Field(min_length=1, max_length=200)]
Labels = Annotated[
    dict[Annotated[Storable, Field(max_length=64)], Annotated[Storable, Field(max_length=512)]], Field(max_length=16)
]
Prompt = Annotated[Storable, Field(max_length=200_000)]
# Text search configurations that every supported Postgres has.
SearchLanguage = Literal[
    "simple", "arabic", "armenian", "basque", "catalan", "danish", "dutch", "english", "finnish", "french", "german",
    "greek", "hindi", "hungarian", "indonesian", "irish", "italian", "lithuanian", "nepali", "norwegian", "portuguese",
    "romanian", "russian", "serbian", "spanish", "swedish", "tamil", "turkish", "yiddish",
]  # fmt: skip


class Params(BaseModel):
    """Model parameters by name. Each model has its own parameters; `GET /api/models` lists these with the schemas of
    their values. Other parameters are refused. In a turn, null removes a parameter of the chat.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[Storable, Annotated[Any, AfterValidator(storable_value)]]

    @property
    def given(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class LimitsIn(Body):
    max_rounds: Annotated[int | None, Field(ge=0, le=100, description="tool rounds before the last answer")] = None
    on_max_rounds: Literal["answer", "stop"] | None = None
    max_failed_rounds: Annotated[int | None, Field(ge=1, le=100)] = None
    continue_after_tools: bool | None = None
    recovery: Literal["retry", "continue"] | None = None
    max_recoveries: Annotated[int | None, Field(ge=0, le=100)] = None
    on_provider_failure: Annotated[
        Literal["assemble", "fail"] | None,
        Field(description="where no model can answer: the results of the tools in words, or an error"),
    ] = None
    compact_at: Annotated[
        float | None, Field(gt=0, le=1, description="share of the context window at which the path is shortened")
    ] = None
    earlier_results: Annotated[
        EarlierResults | None,
        Field(description="results of tools in earlier turns are sent whole, shortened, or not at all"),
    ] = None
    compaction: Annotated[
        Literal["own", "provider"] | None,
        Field(description="who shortens it: this server, or the provider where it offers that for the model"),
    ] = None
    hard_max_rounds: Annotated[
        int | None, Field(ge=0, le=1000, description="tool rounds to which `max_rounds` stretches while they progress")
    ] = None
    max_calls: Annotated[int | None, Field(ge=0, le=100_000, description="tool calls of the turn")] = None
    budget_tokens: Annotated[int | None, Field(ge=1, le=10**12, description="tokens of all kinds")] = None
    budget_cost: Annotated[float | None, Field(gt=0, le=1e9, description="in the currency of the prices")] = None
    budget_seconds: Annotated[
        float | None, Field(gt=0, le=1e9, description="since its start, without waits for a person")
    ] = None
    tell_rounds: Annotated[bool | None, Field(description="send the model how many tool rounds are left")] = None


class OutputIn(Body):
    """The output of a structured turn: JSON by a schema. Validators and handlers have the names under which the program
    registered them. With a handler the model refines drafts and submits the last draft. If the model calls tools for
    its output, the tools have the names and descriptions here.
    """

    json_schema: JsonObject = Field(alias="schema")
    validator: Storable | None = None
    handler: Storable | None = None
    max_attempts: Annotated[int, Field(ge=1, le=20)] = 3
    max_iterations: Annotated[int, Field(ge=1, le=100, description="model calls of one attempt")] = 15
    name: ToolName = "output"
    description: Description | None = None
    submit_name: ToolName = "submit"
    submit_description: Description | None = None


class FixedOptions(Body):
    """Options that a credential may fix for all its turns. Its requests may not set fixed options."""

    model: ModelName | None = None
    system_prompt: Prompt | None = None
    params: Params | None = None
    tools: ToolsIn | None = None
    limits: LimitsIn | None = None


class TurnOptions(FixedOptions):
    """Options of one turn. Omitted options come from the chat, then from the server."""

    output: OutputIn | None = None
    record: Annotated[
        bool | None, Field(description="keep a recording of the model calls, on a server that has a folder for them")
    ] = None
    labels: Annotated[
        Labels | None, Field(description="texts by name that are kept with the turn for its client; no model gets them")
    ] = None


class NewTurn(TurnOptions):
    """A user turn. Without `parent_id` it follows the newest turn; with null it starts a new branch at the root."""

    role: Literal["user"] = "user"
    blocks: Annotated[list[BlockIn], Field(min_length=1, max_length=100)]
    parent_id: UUID | None = None
    on_busy: Annotated[
        OnBusy,
        Field(description="while a turn of this branch runs: refuse, run next, cancel it, add to it, run beside it"),
    ] = "reject"


class ChatSettings(Body, frozen=True):  # pydantic deep-copies a mutable default for each body
    """Defaults of a chat's turns. In a change, omitted members stay at each level, and null removes a member."""

    model: ModelName | None = None
    params: Params | None = None
    tools: ToolsIn | None = None
    limits: LimitsIn | None = None
    labels: Labels | None = None
    search_language: Annotated[SearchLanguage | None, Field(description="of its texts, for the search")] = None


class NewChat(Body, frozen=True):
    title: Title | None = None
    system_prompt: Prompt | None = None
    settings: ChatSettings = ChatSettings()


class ChatChanges(Body):
    """Omitted members do not change, including members of `settings`, `params` and `limits`."""

    title: Title | None = None
    system_prompt: Prompt | None = None
    settings: ChatSettings | None = None


class NewTurnInNewChat(NewTurn):
    """A user turn, and the chat that is created in the same transaction."""

    parent_id: None = None
    chat: NewChat = NewChat()
