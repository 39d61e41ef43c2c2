"""The interface between the engine and model APIs: requests, and the parts of streamed answers."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable
from uuid import UUID

import structlog

from turnstream.domain.blocks import Block
from turnstream.domain.errors import AccountRefused, ProviderError
from turnstream.domain.rounds import Round
from turnstream.domain.turns import ToolSpec
from turnstream.kit.offload import BLOCK

log = structlog.get_logger(__name__)

# Most bytes of an event, by default: a larger event ends the answer.
MAX_EVENT_BYTES = 8_000_000
UNNAMED = "unnamed"  # the name of a tool call that has no name


@dataclass(frozen=True, slots=True)
class Message:
    """Adjacent blocks of one role, in the order of the request."""

    role: Literal["user", "assistant"]
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class ModelCall:
    """The identity of a model call. `model` is the model's name in the turn; `record` requests a recording."""

    turn: UUID
    round: int
    attempt: int
    model: str
    record: bool = False


class Caller(Protocol):
    """The turn that makes a call. A provider that delays a call notifies its caller."""

    @property
    def owner(self) -> str: ...

    def pause(self) -> None:
        """Called when the call must wait."""
        ...

    def wait(self, seconds: float) -> None:
        """Called, perhaps repeatedly, with the approximate seconds until the call starts."""
        ...

    def start(self) -> None:
        """Called when the wait is over."""
        ...


@dataclass(frozen=True, slots=True)
class ProviderCompaction:
    """A compaction that the provider makes at `at` tokens. `edits` are the methods: `context_editing`, `compaction`."""

    edits: tuple[str, ...]
    at: int | None = None


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """The request of one model call. `tools`, and `provider_tools` as JSON text, are always present, because the
    provider's cache depends on them; `may_use_tools` is false if the model must not call them. `resume_data` is the
    JSON text that the provider sent in the last round and expects back, such as a container. `earlier_data` is such
    text from earlier turns, and may have expired. `prefilled` is true if the client has begun the reply, so that the
    model continues the last message. `call` is for interceptors and for the connections of a turn, `caller` for
    providers that delay calls; neither is sent. `options` are the model's options in the file of models. `retained`
    refers to the answer of an interrupted call, which the provider may still have (`AnswerKeeper`). `past` are the
    earlier calls of the path, for the cache.
    """

    model: str
    messages: tuple[Message, ...]
    system: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[ToolSpec, ...] = ()
    provider_tools: tuple[str, ...] = ()
    may_use_tools: bool = True
    resume_data: str | None = None
    earlier_data: str | None = None
    prefilled: bool = False
    call: ModelCall | None = None
    compaction: ProviderCompaction | None = None
    caller: Caller | None = None
    options: Mapping[str, bool | str] = field(default_factory=dict)
    retained: Mapping[str, Any] | None = None
    past: Sequence[Round] = ()

    @property
    def size(self) -> int:
        """The approximate size of the encoded request, in characters."""
        blocks = (block for message in self.messages for block in message.blocks)
        return sum(BLOCK + len(block.text) + len(block.data or "") for block in blocks)


class MessageStarted(NamedTuple):
    """The provider accepted the call. `data` is JSON text for the next call, or None."""

    usage: Mapping[str, Any]
    request_id: str | None = None
    data: str | None = None


class BlockOpened(NamedTuple):
    """A block began. `key` is the provider's number for the block, `data` its JSON object at the start, verbatim, and
    `text` the first part of the member that is streamed.
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
    """A change of a block's `data`: `value` replaces the member `field`, or with `append` is added to that list."""

    key: int
    field: str
    value: Any
    append: bool = False


class BlockClosed(NamedTuple):
    key: int


class MessageDelta(NamedTuple):
    """The cumulative usage and, near the end, the stop reason. A member that is None or absent changes nothing."""

    stop_reason: str | None
    usage: Mapping[str, Any]
    data: str | None = None


class MessageEnded(NamedTuple):
    """The message is complete. A stream without this part was truncated."""


class Unknown(NamedTuple):
    """JSON text that this version does not know. It is logged, and sent to clients as a notice."""

    raw: str


Part = MessageStarted | BlockOpened | BlockText | BlockData | BlockClosed | MessageDelta | MessageEnded | Unknown


class Provider(Protocol):
    """An adapter to one model API."""

    @property
    def name(self) -> str: ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Part], None]:
        """Yields the answer in batches, one for each read from the network.

        Raises TransientError or PermanentError, before the first batch or after any batch, and does not retry. The
        stream ends soon after MessageEnded. Callers must read it to its end, so that its connection can be reused.
        """
        ...


# Gets the provider's model id and the headers of an answer.
Observe = Callable[[str, Mapping[str, str]], None]


@runtime_checkable
class ObservedProvider(Protocol):
    """A provider that passes the headers of each answer to `observe`."""

    observe: Observe | None


class OwnedProvider(Provider, Protocol):
    """A provider with connections, which its owner must close."""

    async def aclose(self) -> None: ...


@runtime_checkable
class TokenCounter(Protocol):
    """A provider that counts the tokens of a request."""

    async def count(self, request: ModelRequest) -> int | None:
        """Returns the billed tokens, or None if unknown. Raises TransientError or PermanentError."""
        ...


@runtime_checkable
class ConnectionKeeper(Protocol):
    """A provider that can keep a connection open for its next call."""

    def kept_open(self) -> AbstractAsyncContextManager[None]:
        """Keeps a connection open during the block, which lasts until the next call."""
        ...


@runtime_checkable
class AnswerKeeper(Protocol):
    """A provider that finishes an answer even without a reader. The member `retained` in the `data` of its
    MessageStarted refers to the answer. If this member is null in the `data` of its MessageDelta, the whole answer was
    read. A call with the reference reads the answer from its beginning. It makes a new answer if the old answer is lost
    or had another request.
    """

    async def discard(self, retained: Mapping[str, Any]) -> None:
        """Cancels an answer that nobody reads. Raises TransientError or PermanentError."""
        ...


@dataclass(frozen=True, slots=True)
class ProviderWrapper:
    """A provider that passes adapted requests to another provider."""

    provider: Provider

    @property
    def name(self) -> str:
        return self.provider.name

    def adapt(self, request: ModelRequest) -> ModelRequest:
        """Returns the request for the other provider."""
        return request

    def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Part], None]:
        return self.provider.stream(self.adapt(request))

    async def count(self, request: ModelRequest) -> int | None:
        return await count_tokens(self.provider, self.adapt(request))

    def kept_open(self) -> AbstractAsyncContextManager[None]:
        return kept_open(self.provider)

    async def discard(self, retained: Mapping[str, Any]) -> None:
        await discard_answer(self.provider, retained)


async def count_tokens(provider: Provider, request: ModelRequest) -> int | None:
    return await provider.count(request) if isinstance(provider, TokenCounter) else None


def kept_open(provider: Provider) -> AbstractAsyncContextManager[None]:
    return provider.kept_open() if isinstance(provider, ConnectionKeeper) else nullcontext()


async def discard_answer(provider: Provider, retained: Mapping[str, Any]) -> None:
    if isinstance(provider, AnswerKeeper):
        await provider.discard(retained)


def generated_call_id(seed: bytes, number: int) -> str:
    """Returns an id for a call that has none: the same id for the same seed and number."""
    digest = sha256(seed + b" %d" % number).hexdigest()
    return f"call_{digest[:24]}"


def report_account(error: ProviderError) -> None:
    """Logs details for the operator that users must not see."""
    if isinstance(error, AccountRefused):
        log.warning("provider.account", error=error.type, message=error.message)
