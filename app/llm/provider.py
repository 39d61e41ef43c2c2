"""The line between the engine and a model API: what is asked, and the parts an answer comes in."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable
from uuid import UUID

from app.domain.blocks import Block
from app.domain.turns import ToolSpec


@dataclass(frozen=True, slots=True)
class Message:
    """Neighbouring blocks of one role, in the order the model sees them."""

    role: Literal["user", "assistant"]
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class ModelCall:
    """Whose model call it is, and which one. `model` is what the turn calls it; `record` where the turn wants its calls
    recorded.
    """

    turn: UUID
    round: int
    attempt: int
    model: str
    record: bool = False


@dataclass(frozen=True, slots=True)
class ProviderCompaction:
    """The provider is to make the conversation shorter by itself, at so many tokens, in those of its ways that `edits`
    names (`context_editing`, `compaction`).
    """

    edits: tuple[str, ...]
    at: int | None = None


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One model call. `tools`, and `provider_tools` as JSON text, are always listed; `may_use_tools` False tells the
    model not to use them. `resume_data` is what the last round's provider said it needs back (a container, say), as
    JSON text. `call` is for whoever watches; no provider sees it.
    """

    model: str
    messages: tuple[Message, ...]
    system: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[ToolSpec, ...] = ()
    provider_tools: tuple[str, ...] = ()
    may_use_tools: bool = True
    resume_data: str | None = None
    call: ModelCall | None = None
    compaction: ProviderCompaction | None = None


class MessageStarted(NamedTuple):
    """The provider accepted the call. `data` is JSON text of what must go back with the next one, or None."""

    usage: Mapping[str, Any]
    request_id: str | None = None
    data: str | None = None


class BlockOpened(NamedTuple):
    """`key` is the provider's number for the block. `data` is its JSON object as it began, verbatim; `text` the part
    of the streamed member that came with it.
    """

    key: int
    type: str
    data: str | None = None
    text: str = ""
    tool_use_id: str | None = None
    name: str | None = None


class BlockText(NamedTuple):
    key: int
    text: str


class BlockData(NamedTuple):
    """News about a block that is not text: `value` replaces `field`, or with `append` is added to its list."""

    key: int
    field: str
    value: Any
    append: bool = False


class BlockClosed(NamedTuple):
    key: int


class MessageDelta(NamedTuple):
    """Cumulative figures and, near the end, why the model stopped. None and absences leave what is known."""

    stop_reason: str | None
    usage: Mapping[str, Any]
    data: str | None = None


class MessageEnded(NamedTuple):
    """The provider said that the message is whole. A stream that ends without it was cut."""


class Unknown(NamedTuple):
    """Something this version does not know: kept with the round, passed on as a notice. JSON text."""

    raw: str


Part = MessageStarted | BlockOpened | BlockText | BlockData | BlockClosed | MessageDelta | MessageEnded | Unknown


class Provider(Protocol):
    """An adapter to one model API."""

    @property
    def name(self) -> str: ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Part], None]:
        """The answer, in batches: what one read from the network held, without waiting for more.

        Raises TransientError or PermanentError, before the first batch or after any. Retries nothing itself.
        It ends soon after MessageEnded, and who reads it to its end lets the connection be used again; closing it
        before that closes the connection.
        """
        ...


@runtime_checkable
class TokenCounter(Protocol):
    """A provider that can say how long a request is."""

    async def count(self, request: ModelRequest) -> int | None:
        """In tokens, as it would be billed; None where nobody knows. Raises TransientError or PermanentError."""
        ...


@dataclass(frozen=True, slots=True)
class ProviderWrapper:
    """A provider that is asked by way of another one."""

    provider: Provider

    @property
    def name(self) -> str:
        return self.provider.name

    def adapt(self, request: ModelRequest) -> ModelRequest:
        """What the other one is asked."""
        return request

    def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Part], None]:
        return self.provider.stream(self.adapt(request))

    async def count(self, request: ModelRequest) -> int | None:
        return await count_tokens(self.provider, self.adapt(request))


async def count_tokens(provider: Provider, request: ModelRequest) -> int | None:
    return await provider.count(request) if isinstance(provider, TokenCounter) else None
