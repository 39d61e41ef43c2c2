"""What a tool is, and the decorator that makes one from a typed async function."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from inspect import cleandoc, getattr_static, iscoroutinefunction
from typing import Any, Literal, Protocol, Unpack
from uuid import UUID

from app.domain.turns import ToolSpec
from app.tools.arguments import Arguments, BadArguments
from app.tools.docstring import split_docstring
from app.tools.policy import Policy, PolicyOptions, policy_of
from app.tools.serialise import written

OutcomeKind = Literal["ok", "error", "timeout", "unknown", "bad_input", "unavailable", "refused"]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
RETURNED_NOTHING = "The call succeeded and returned nothing."


@dataclass(frozen=True, slots=True)
class ToolContext:
    """One call: for whom, where, and what it may be recognised by.

    `idempotency_key` is the same when the call is run again after a crash; a tool with effects hands it on.
    `progress` shows a passing word to whoever is watching; the model does not see it.
    """

    owner: str
    chat_id: UUID
    turn_id: UUID
    tool_use_id: str
    idempotency_key: str
    progress: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class File:
    """What a tool returns besides words: the bytes of a PNG, JPEG, GIF or WebP image, or of a PDF document. `called` is
    what it is, in words, for where it cannot be shown.
    """

    content: bytes
    called: str = "file"

    def __post_init__(self) -> None:
        if not isinstance(self.content, bytes):
            raise TypeError(f"the content of a file is bytes, not {type(self.content).__name__}")


Part = str | File


def joined(parts: Iterable[Part], between: str) -> list[Part]:
    """Neighbouring texts as one."""
    found: list[Part] = []
    for part in parts:
        if isinstance(part, str) and found and isinstance(found[-1], str):
            found[-1] += between + part
        else:
            found.append(part)
    return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the model is told. A failure is an outcome too; `kind` sorts it for whoever counts. `more` are files, and
    texts between them, that follow `text`. Once its files are kept, an outcome has a `layout` instead: how all its
    words, which are then the text, lie between them (app/domain/results.py). `whole` is the full text where the model
    is told only a part. `notes` says which policies were needed, for whoever looks at the block.
    """

    text: str
    is_error: bool = False
    kind: OutcomeKind = "ok"
    whole: str | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    more: tuple[Part, ...] = ()
    layout: str | None = None

    @classmethod
    def of(cls, parts: Iterable[Part], *, is_error: bool = False) -> "Outcome":
        """What consists of several parts, of one at least."""
        first, *more = parts
        if isinstance(first, File):
            return cls("", is_error, more=(first, *more))
        return cls(first, is_error, more=tuple(more))

    @property
    def parts(self) -> tuple[Part, ...]:
        return (self.text, *self.more) if self.text else self.more

    def saying(self, *parts: Part) -> "Outcome":
        """The same outcome with these parts; a blank line is between two texts."""
        told = Outcome.of(joined(parts, "\n\n"))
        return replace(self, text=told.text, more=told.more)

    def __post_init__(self) -> None:
        if self.is_error != (self.kind != "ok"):
            object.__setattr__(self, "is_error", True)
            object.__setattr__(self, "kind", "error" if self.kind == "ok" else self.kind)


class ToolError(Exception):
    """Raised by a tool to tell the model, in these words, that the call failed."""


class ToolUnavailable(ToolError):
    """The same, where not the call was wrong but what the tool needs is away: it may be retried, and the breaker counts
    it. An outcome of the kind `unavailable` says as much.
    """


class Tool(Protocol):
    """Whatever a tool raises, the toolset makes an outcome of it."""

    @property
    def spec(self) -> ToolSpec: ...
    @property
    def policy(self) -> Policy: ...
    async def __call__(self, context: ToolContext, input_json: str) -> Outcome: ...


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A tool made by `@tool`. In a class it is a method: reached through an instance, it is bound to it."""

    spec: ToolSpec
    policy: Policy
    function: Callable[..., Awaitable[object]]
    arguments: Arguments
    bound: tuple[object, ...] = ()

    def __get__(self, instance: object, owner: type | None = None) -> "FunctionTool":
        return self if instance is None else replace(self, bound=(instance,))

    async def __call__(self, context: ToolContext, input_json: str) -> Outcome:
        try:
            arguments = self.arguments.parse(input_json)
        except BadArguments as error:
            return Outcome(f"The input of {self.spec.name} is not right. {error}", kind="bad_input")
        if self.arguments.context is not None:
            arguments[self.arguments.context] = context
        return self._outcome(await self.function(*self.bound, **arguments))

    def _outcome(self, result: object) -> Outcome:
        if isinstance(result, Outcome):
            return result
        if result is None or result == "":
            return Outcome(RETURNED_NOTHING)
        parts = result if isinstance(result, list | tuple) else [result]
        if not any(isinstance(part, File) for part in parts):
            return Outcome(self._words(result))
        return Outcome.of(part if isinstance(part, File) else self._words(part) for part in parts)

    def _words(self, result: object) -> str:
        return result if isinstance(result, str) else written(result, self.policy.results)


class ToolSource(Protocol):
    """Tools that come and go, by their names: asked whenever a tool is looked up."""

    def tools(self) -> Mapping[str, Tool]: ...


def is_name(text: str) -> bool:
    """Whether models may be told of a tool by it."""
    return _NAME.fullmatch(text) is not None


def check_name(name: str) -> None:
    if not is_name(name):
        raise ValueError(f"a tool's name has 1-64 letters, digits, _ or -, which {name!r} has not")


def tool(
    *, read_only: bool = False, retry_safe: bool = False, name: str | None = None, **options: Unpack[PolicyOptions]
) -> Callable[[Callable[..., Awaitable[object]]], FunctionTool]:
    """Makes a tool of an async function: its schema from the signature, its description from the docstring.

    The function takes what the model sends, and a ToolContext where it asks for one. It returns a str, a File, an
    Outcome or anything that can be written as JSON; a list of words and files is told part by part. `read_only` says
    that it has no effects, `retry_safe` that it has some, but may be run again with the same idempotency key. The other
    options are the fields of Policy. Raises TypeError or ValueError at once for a function that cannot be a tool, or
    not with these options.
    """

    def make(function: Callable[..., Awaitable[object]]) -> FunctionTool:
        tool_name = name or function.__name__
        check_name(tool_name)
        if not iscoroutinefunction(function):
            raise TypeError(f"{tool_name} must be `async def`; give blocking work to asyncio.to_thread")
        description, parameters = split_docstring(cleandoc(function.__doc__ or ""))
        if not description:
            raise TypeError(f"{tool_name} needs a docstring: it is how the model knows when to call it")
        arguments = Arguments.of(function, parameters, context_type=ToolContext)
        spec = ToolSpec(tool_name, description, arguments.schema, read_only, retry_safe)
        return FunctionTool(spec, policy_of(spec, options), function, arguments)

    return make


def tools_of(holder: object) -> list[Tool]:
    """The methods of `holder` that are tools, in the order they were written."""
    names = dict.fromkeys(name for kind in reversed(type(holder).__mro__) for name in vars(kind))
    found = [name for name in names if isinstance(getattr_static(holder, name), FunctionTool)]
    return [getattr(holder, name) for name in found]
