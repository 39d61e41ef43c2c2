"""Tools, their contexts and outcomes, and the decorator that makes a tool from a typed async function."""

import json
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from inspect import cleandoc, getattr_static, iscoroutinefunction
from typing import Any, Literal, ParamSpec, Protocol, cast, overload, runtime_checkable
from uuid import UUID

from turnstream.domain.turns import ToolSpec, TurnRequest
from turnstream.tools.arguments import Arguments, BadArguments, split_docstring
from turnstream.tools.policy import Policy, policy_of
from turnstream.tools.serialize import serialize

_P = ParamSpec("_P")

OutcomeKind = Literal["ok", "error", "timeout", "unknown", "bad_input", "unavailable", "refused"]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
GOES_ON = "The call continues elsewhere."
RETURNED_NOTHING = "The call succeeded and returned nothing."


@dataclass(frozen=True, slots=True)
class PersonQuestion:
    """A question that a running tool asks the person. It requests an answer that fits `schema` (JSON text of a flat
    JSON schema), or an action at `url`. If no answer arrives within `seconds`, the answer is None.
    """

    message: str
    seconds: float
    schema: str | None = None
    url: str | None = None

    @property
    def shown(self) -> Mapping[str, Any]:
        """The question as clients receive it."""
        shown: dict[str, Any] = {"message": self.message}
        if self.schema is not None:
            shown["schema"] = json.loads(self.schema)
        return shown if self.url is None else {**shown, "url": self.url}


@dataclass(frozen=True, slots=True)
class PersonAnswer:
    """The person's answer. `content` is the accepted value, which fits the schema of the question."""

    action: Literal["accept", "decline", "cancel"]
    content: Mapping[str, Any] | None = None


# Asks the person. Returns None if no answer arrives in time.
AskPerson = Callable[[PersonQuestion], Awaitable[PersonAnswer | None]]


@dataclass(frozen=True, slots=True)
class Detached:
    """A background tool returns this value if its work continues elsewhere. The job keeps `handle`, a JSON value, and
    releases its slot. The call runs again, with the handle, after `after` seconds; if `after` is None, only after a
    wake-up or at the deadline. A program that has the job's `result_address` may settle the job earlier. Clients see
    `message` as progress. With a `question` to the person, the call runs again after the answer, or when the time for
    the answer is over. A pending question does not use up the time of the call.
    """

    handle: Any
    after: float | None = None
    message: str | None = None
    question: PersonQuestion | None = None

    def __post_init__(self) -> None:
        if self.handle is None:
            raise ValueError("`handle` must be a JSON value, not None: the next run of the call receives it")
        if self.after is not None and not 0 <= self.after < math.inf:
            raise ValueError(f"`after` must be a number of seconds, 0 or more, not {self.after}")


@dataclass(frozen=True, slots=True)
class ResultAddress:
    """The address to which another program posts the result of a job: a `path` of this server, with `token` as the
    bearer token. The token is valid for this path alone, until the job is over.
    """

    path: str
    token: str


_ONLY_IN_BACKGROUND = "only a call of a tool with `background` can continue elsewhere"


def _goes_on_nowhere(_detached: Detached) -> None:
    raise TypeError(_ONLY_IN_BACKGROUND)


async def _no_address() -> ResultAddress:
    raise TypeError(_ONLY_IN_BACKGROUND)


async def _keep_nothing(_value: Any) -> None:
    """Replaces `checkpoint` for a tool that runs inside its turn, and stores nothing."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The context of the call that runs a tool.

    `idempotency_key` is the same in each run of the call, even after a crash; a tool with effects should send the key
    to the service that it calls. `progress` shows a short text to the clients of the turn. `preliminary` shows them the
    result so far: a text, a value, or a ToolResult. The model receives neither. `ask` asks the person; a pending
    question does not use up the time of the call. Outside of a turn `ask` is None. `documents` is the common prefix of
    the paths of documents that the call may read: empty for every document, None for no document (as in a turn of a
    restricted token). Unless it is empty, the tool should not read other data of the owner. `offered` are all tools of
    the turn. A background tool can `checkpoint` a JSON value. If its process dies, the next run of the call finds the
    last value in `checkpointed`; otherwise `checkpointed` is None. For other tools, `checkpoint` stores nothing. At
    `deadline` the server stops the call. A background tool whose work continues elsewhere returns `Detached`, or calls
    `detach` and then returns any value. `job` is the id of the job. `handle` is the handle of the previous run, None in
    the first run. `answer` answers the question in the previous run's `Detached`; None if no answer came in time. A
    call with `reports` cannot ask. `result_address` makes a new address for the result, and revokes the old address.
    """

    owner: str
    chat_id: UUID
    turn_id: UUID
    tool_use_id: str
    idempotency_key: str
    progress: Callable[[str], None]
    preliminary: Callable[[object], None] = lambda _content: None
    ask: AskPerson | None = None
    documents: str | None = ""
    offered: Sequence[ToolSpec] = ()
    checkpoint: Callable[[Any], Awaitable[None]] = _keep_nothing
    checkpointed: Any = None
    deadline: datetime | None = None
    job: UUID | None = None
    handle: Any = None
    answer: PersonAnswer | None = None
    detach: Callable[[Detached], None] = _goes_on_nowhere
    result_address: Callable[[], Awaitable[ResultAddress]] = _no_address

    @property
    def may_detach(self) -> bool:
        """Whether the call may continue elsewhere: true for background tools, and for tools that have `detaches`."""
        return self.detach is not _goes_on_nowhere


@dataclass(frozen=True, slots=True)
class StoppedCall:
    """A call of a background tool that continued elsewhere, and that the server has stopped: its turn was cancelled,
    its time was up, the user stopped the call, or its chat was deleted. `handle` is the handle of its job.
    """

    owner: str
    turn_id: UUID
    tool_use_id: str
    idempotency_key: str
    job: UUID
    handle: Any


# Stops work that continues elsewhere. The server may call this again for the same job.
Stopped = Callable[[StoppedCall], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class File:
    """A PNG, JPEG, GIF or WebP image or a PDF document in a result. `called` describes a file that cannot be shown."""

    content: bytes
    called: str = "file"

    def __post_init__(self) -> None:
        if not isinstance(self.content, bytes):
            raise TypeError(f"the content of a File must be bytes, not {type(self.content).__name__}")


@dataclass(frozen=True, slots=True)
class SignIn:
    """A sign-in that a call requires: the person must first sign in to `server`, with these `scopes`. `url` leads to
    the sign-in. `recheck` answers the ask at once if the person is already signed in. `approvers`, if any, sign in for
    the owner.
    """

    server: str
    scopes: tuple[str, ...]
    url: str
    recheck: Callable[[], Awaitable[None]]
    approvers: tuple[str, ...] = ()

    @property
    def question(self) -> Mapping[str, Any]:
        message = f"Sign in to {self.server}, so that its tools can be used for you."
        return {"message": message, "url": self.url, "server": self.server, "scopes": self.scopes}


OutcomePart = str | File


def join_texts(parts: Iterable[OutcomePart], separator: str) -> list[OutcomePart]:
    """Joins adjacent texts with `separator`."""
    joined: list[OutcomePart] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += separator + part
        else:
            joined.append(part)
    return joined


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a call, as the model receives it. A failure is an outcome too. `kind` classifies outcomes for
    metrics and policies.

    `more` has the files and texts that follow `text`. After the upload of its files, an outcome has a `layout` instead:
    the positions of the files in `text`, which then has all texts (turnstream.domain.results). `whole` is the full text
    if the model receives only a part. `notes` name the policies that acted on the call, for readers of the block.
    `data` is JSON (or a value that can be serialized as JSON) for clients alone: no model receives it. If `sign_in` is
    set, the call runs only after the person signs in. A call inside its turn that is `detached` becomes a job.
    """

    text: str
    is_error: bool = False
    kind: OutcomeKind = "ok"
    whole: str | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    more: tuple[OutcomePart, ...] = ()
    layout: str | None = None
    data: Any = None
    sign_in: SignIn | None = None
    detached: Detached | None = None

    def __post_init__(self) -> None:
        # A caller may set `is_error` or `kind` alone. The other field follows from it.
        if self.is_error != (self.kind != "ok"):
            object.__setattr__(self, "is_error", True)
            object.__setattr__(self, "kind", "error" if self.kind == "ok" else self.kind)

    @classmethod
    def of(cls, parts: Iterable[OutcomePart], *, is_error: bool = False) -> "Outcome":
        """Makes an outcome of one or more parts."""
        first, *more = parts
        if isinstance(first, File):
            return cls("", is_error, more=(first, *more))
        return cls(first, is_error, more=tuple(more))

    @property
    def parts(self) -> tuple[OutcomePart, ...]:
        return (self.text, *self.more) if self.text else self.more

    def with_parts(self, *parts: OutcomePart) -> "Outcome":
        """Returns the outcome with other parts. A blank line separates adjacent texts."""
        other = Outcome.of(join_texts(parts, "\n\n"))
        return replace(self, text=other.text, more=other.more)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A function returns this value to send more to clients than to the model: `content` becomes the result, as a plain
    return value does, and `data` is JSON for clients.
    """

    content: object
    data: Any = None


class ToolError(Exception):
    """A tool raises ToolError to report a failed call on purpose: the model receives the message."""


class ToolUnavailable(ToolError):
    """A tool raises ToolUnavailable when a service behind the tool is unavailable. Unlike after a ToolError, the server
    may retry the call, and the breaker counts the failure. An outcome of the kind `unavailable` has the same effect.
    """


class Tool(Protocol):
    """A tool may raise any exception: the toolset makes an outcome of it."""

    @property
    def spec(self) -> ToolSpec: ...
    @property
    def policy(self) -> Policy: ...
    async def __call__(self, context: ToolContext, input_json: str) -> Outcome: ...


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A tool made by `@tool`. In a class the tool is a method, and attribute access binds it to the instance."""

    spec: ToolSpec
    policy: Policy
    function: Callable[..., Awaitable[object]]
    arguments: Arguments
    bound: tuple[object, ...] = ()
    on_stop: Callable[..., Awaitable[None]] | None = None

    def __get__(self, instance: object, owner: type | None = None) -> "FunctionTool":
        return self if instance is None else replace(self, bound=(instance,))

    @property
    def stopped(self) -> Stopped | None:
        return None if self.on_stop is None else partial(self.on_stop, *self.bound)

    async def __call__(self, context: ToolContext, input_json: str) -> Outcome:
        try:
            arguments = self.arguments.parse(input_json)
        except BadArguments as error:
            return Outcome(f"The input of {self.spec.name} is not right. {error}", kind="bad_input")
        if self.arguments.context is not None:
            arguments[self.arguments.context] = context
        result = await self.function(*self.bound, **arguments)
        if isinstance(result, Detached):
            context.detach(result)
            return Outcome(GOES_ON)
        return self._outcome(result)

    def _outcome(self, result: object) -> Outcome:
        if isinstance(result, Outcome):
            return result
        if isinstance(result, ToolResult):
            return replace(self._outcome(result.content), data=result.data)
        if result is None or result == "":
            return Outcome(RETURNED_NOTHING)
        parts = result if isinstance(result, list | tuple) else [result]
        if not any(isinstance(part, File) for part in parts):
            return Outcome(self._text(result))
        return Outcome.of(part if isinstance(part, File) else self._text(part) for part in parts)

    def _text(self, result: object) -> str:
        return result if isinstance(result, str) else serialize(result, self.policy.results)


# Changes the tools of a request before the request is stored. A second call changes nothing.
Offer = Callable[[TurnRequest], TurnRequest]


class ToolSource(Protocol):
    """A source of tools that may appear and disappear. Every lookup calls `tools`, so `tools` must be quick."""

    def tools(self) -> Mapping[str, Tool]: ...


@runtime_checkable
class CheckedSource(ToolSource, Protocol):
    """A source that `turnstream doctor --ping` examines."""

    async def failures(self) -> Mapping[str, str]:
        """Returns, for the name of each connection, the reason of its failure, or an empty text if it works."""
        ...


def is_name(text: str) -> bool:
    """Whether providers accept the text as the name of a tool."""
    return _NAME.fullmatch(text) is not None


def check_name(name: str) -> None:
    if not is_name(name):
        raise ValueError(f"the name of a tool must have 1-64 letters, digits, _ or -, unlike {name!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _ToolOptions(Policy):
    """The options of `@tool`, for type checkers: the fields of Policy and four more."""

    read_only: bool = False
    retry_safe: bool = False
    name: str | None = None
    stopped: Callable[..., Awaitable[None]] | None = None


class _Decorator(Protocol[_P]):
    """`@tool` alone, or `@tool(…)` with options."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # no option is positional
        self, function: Callable[..., Awaitable[object]], /
    ) -> FunctionTool: ...
    @overload
    def __call__(
        self, *args: _P.args, **options: _P.kwargs
    ) -> Callable[[Callable[..., Awaitable[object]]], FunctionTool]: ...


def _has_options(options: Callable[_P, _ToolOptions]) -> Callable[[Callable[..., Any]], _Decorator[_P]]:  # noqa: ARG001
    """Gives a decorator the parameters of `options`, so that type checkers know every field of Policy."""
    return cast("Callable[[Callable[..., Any]], _Decorator[_P]]", lambda decorator: decorator)


@_has_options(_ToolOptions)
def tool(
    function: Callable[..., Awaitable[object]] | None = None,
    /,
    *,
    read_only: bool = False,
    retry_safe: bool = False,
    name: str | None = None,
    stopped: Callable[..., Awaitable[None]] | None = None,
    **options: Any,
) -> FunctionTool | Callable[[Callable[..., Awaitable[object]]], FunctionTool]:
    """Makes a tool of an async function. The schema comes from the signature, the description from the docstring.

    The function receives the arguments that the model sends and, in a parameter of that type, a ToolContext. It returns
    a str, a File, a list of texts and files, any value that can be serialized as JSON, a ToolResult of any of these, or
    an Outcome; a background tool may also return Detached. `read_only` promises that the function has no effects,
    `retry_safe` that it may run again with the same idempotency key. After the server has stopped a call that continued
    elsewhere, it calls `stopped` with a StoppedCall; if `stopped` is a method, it gets `self` first. The other options
    are the fields of Policy. Raises TypeError or ValueError at once for an unsuitable function or option.
    """

    def make(function: Callable[..., Awaitable[object]]) -> FunctionTool:
        tool_name = name or function.__name__
        check_name(tool_name)
        if not iscoroutinefunction(function):
            raise TypeError(f"{tool_name} must be `async def`: give blocking work to asyncio.to_thread")
        description, parameters = split_docstring(cleandoc(function.__doc__ or ""))
        if not description:
            raise TypeError(f"{tool_name} needs a docstring: it tells the model when to call the tool")
        arguments = Arguments.of(function, parameters, context_type=ToolContext)
        spec = ToolSpec(tool_name, description, arguments.schema, read_only, retry_safe)
        policy = policy_of(spec, options)
        if stopped is not None and not (policy.background and iscoroutinefunction(stopped)):
            raise TypeError(f"`stopped` of {tool_name} must be an `async def`, and {tool_name} needs `background=True`")
        return FunctionTool(spec, policy, function, arguments, on_stop=stopped)

    return make if function is None else make(function)


def tools_of(holder: object) -> list[Tool]:
    """Returns the methods of `holder` that are tools, in the order of their definition."""
    names = dict.fromkeys(name for kind in reversed(type(holder).__mro__) for name in vars(kind))
    found = [name for name in names if isinstance(getattr_static(holder, name), FunctionTool)]
    return [getattr(holder, name) for name in found]
