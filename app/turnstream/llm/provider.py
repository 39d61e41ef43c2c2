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

# The default weight of an event that ends an answer.
MAX_EVENT_BYTES = 8_000_000
UNNAMED = "unnamed"  # the name of a tool call without one


@dataclass(frozen=True, slots=True)
class Message:
    """Adjacent blocks of one role, in the order of the request."""

    role: Literal["user", "assistant"]
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class ModelCall:
    """The identity of a model call. `model` is its name in the turn; `record` requests a recording."""

    turn: UUID
    round: int
    attempt: int
    model: str
    record: bool = False


class Caller(Protocol):
    """The turn that makes a call. A provider that delays calls notifies it."""

    @property
    def owner(self) -> str: ...

    def pause(self) -> None:
        """Called when the call must wait."""
        ...

    def wait(self, seconds: float) -> None:
        """Called with the approximate seconds until the call starts; perhaps repeatedly."""
        ...

    def start(self) -> None:
        """Called when the wait is over."""
        ...


@dataclass(frozen=True, slots=True)
class ProviderCompaction:
    """A compaction by the provider, at `at` tokens, by the methods in `edits` (`context_editing`, `compaction`)."""

    edits: tuple[str, ...]
    at: int | None = None


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """The request of one model call. `tools`, and `provider_tools` as JSON text, are always present: the provider's
    cache depends on them. `may_use_tools` False forbids their use. `resume_data` is the provider's JSON text from the
    last round to send back, such as a container; `earlier_data` is the same from earlier turns, and may have expired.
    `prefilled`: the model continues the last message, a reply with a beginning by the client. `call` is for
    interceptors and for the connections of a turn, `caller` for providers that delay calls; neither is sent. `options`
    are the model's options in the file of models. `retained` is the reference to the answer of an interrupted call that
    the provider may still have (`AnswerKeeper`); `past` are the earlier calls of the path, for the cache.
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
        """The approximate size of its encoding, in characters."""
        blocks = (block for message in self.messages for block in message.blocks)
        return sum(BLOCK + len(block.text) + len(block.data or "") for block in blocks)


class MessageStarted(NamedTuple):
    """The provider accepted the call. `data` is JSON text for the next call, or None."""

    usage: Mapping[str, Any]
    request_id: str | None = None
    data: str | None = None


class BlockOpened(NamedTuple):
    """A block began. `key` is the provider's number for it, `data` its JSON object at the start, verbatim, and `text`
    the streamed member's first part.
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
    """A change of a block's `data`: `value` replaces the member `field`; with `append`, the member's list gets it."""

    key: int
    field: str
    value: Any
    append: bool = False


class BlockClosed(NamedTuple):
    key: int


class MessageDelta(NamedTuple):
    """Cumulative usage and, near the end, the stop reason of the model. None and absent members change nothing."""

    stop_reason: str | None
    usage: Mapping[str, Any]
    data: str | None = None


class MessageEnded(NamedTuple):
    """The message is complete. A stream without this part was cut."""


class Unknown(NamedTuple):
    """JSON text that this version does not know: stored with the round, and sent to clients as a notice."""

    raw: str


Part = MessageStarted | BlockOpened | BlockText | BlockData | BlockClosed | MessageDelta | MessageEnded | Unknown


class Provider(Protocol):
    """An adapter to one model API."""

    @property
    def name(self) -> str: ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Part], None]:
        """Yields the answer in batches, one for each read from the network.

        Raises TransientError or PermanentError, before the first batch or after any, without a retry. It ends soon
        after MessageEnded. Callers must read it to its end, so that its connection can be reused.
        """
        ...


# Gets the provider's model id and the headers.
Observe = Callable[[str, Mapping[str, str]], None]


@runtime_checkable
class ObservedProvider(Protocol):
    """A provider that passes the headers of each answer to `observe`."""

    observe: Observe | None


class OwnedProvider(Provider, Protocol):
    """A provider with connections, closed by its owner."""

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
        """Encloses the time until the next call."""
        ...


@runtime_checkable
class AnswerKeeper(Protocol):
    """A provider that finishes an answer without a reader. The member `retained` in the `data` of its MessageStarted
    refers to the answer. In the `data` of its MessageDelta, null means that the whole answer was read. A call with the
    reference reads the answer from its beginning, or makes a new one if the answer is lost or had another request.
    """

    async def discard(self, retained: Mapping[str, Any]) -> None:
        """Cancels an answer without a reader. Raises TransientError or PermanentError."""
        ...


@dataclass(frozen=True, slots=True)
class ProviderWrapper:
    """A provider that passes adapted requests to another one."""

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
    """Returns an id for a call without one: the same for the same request and number."""
    digest = sha256(seed + b" %d" % number).hexdigest()
    return f"call_{digest[:24]}"


def report_account(error: ProviderError) -> None:
    """Logs details for the operator that users must not see."""
    if isinstance(error, AccountRefused):
        log.warning("provider.account", error=error.type, message=error.message)
