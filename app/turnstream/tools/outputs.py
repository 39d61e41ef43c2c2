"""Outputs of structured turns: runs the output tools, and validates the outputs."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from inspect import isawaitable
from typing import Any

import structlog
from pydantic_core import from_json

from turnstream.domain.blocks import Block
from turnstream.domain.errors import RequestRefused
from turnstream.domain.output import VALUE, schema_for_model
from turnstream.domain.turns import OutputSpec, ToolRole
from turnstream.tools.running.tries import is_cancelled
from turnstream.tools.schemas import InputSchema
from turnstream.tools.tool import Outcome, ToolContext

log = structlog.get_logger(__name__)

OUTPUT = "output"  # the name of the output tool in metrics
_ACCEPTED = "The output was accepted."

# Returns the mistake in an output, as a text for the model; None or an empty text for a valid output.
Validator = Callable[[Any], str | Awaitable[str | None] | None]
# Returns a text about a draft, with which the model may refine the draft.
Handler = Callable[[Any, ToolContext], Awaitable[str]]


def as_call(draft: Block, name: str = OUTPUT) -> Block:
    """Makes a call of the output tool from an output that the model wrote as text."""
    return replace(draft, name=name, tool_use_id=f"{OUTPUT}_{draft.round}")


@dataclass(frozen=True, slots=True)
class Outputs:
    """The validators and handlers, by name, that a program registers for structured turns. `timeout` is in seconds."""

    validators: Mapping[str, Validator] = field(default_factory=dict)
    handlers: Mapping[str, Handler] = field(default_factory=dict)
    timeout: float = 30.0

    def check(self, spec: OutputSpec) -> None:
        """Raises RequestRefused for an invalid schema or an unregistered name."""
        try:
            InputSchema.checked(schema_for_model(spec))
        except ValueError as error:
            raise RequestRefused(str(error), field="output.schema") from None
        self.find(spec)

    def find(self, spec: OutputSpec) -> None:
        """Raises RequestRefused for an unregistered name."""
        for kind, name, known in (
            ("validator", spec.validator, self.validators),
            ("handler", spec.handler, self.handlers),
        ):
            if name is not None and name not in known:
                detail = f"there is no {kind} {name!r}; the {kind}s are: {', '.join(known) or 'none'}"
                raise RequestRefused(detail, field=f"output.{kind}")

    async def settle(self, role: ToolRole, spec: OutputSpec, draft: str | None, context: ToolContext) -> Outcome:
        """Runs a call of an output tool. `draft` is JSON text, or None if there is no draft to submit."""
        if draft is None:
            return Outcome(f"There is nothing to submit yet: call {spec.name} first.", is_error=True)
        try:
            async with asyncio.timeout(self.timeout):
                return await self._validate(role, spec, draft, context)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            log.error("output.failed", role=role, exc_info=error)
            return Outcome("The output could not be judged. Try again.", is_error=True)

    async def _validate(self, role: ToolRole, spec: OutputSpec, draft: str, context: ToolContext) -> Outcome:
        try:
            value = from_json(draft or "{}")
        except ValueError as error:
            return Outcome(f"The output is not valid JSON ({error}).", kind="bad_input")
        if spec.wrapped and not (isinstance(value, dict) and VALUE in value):
            text = f"The output is not right. Send an object with the output as its member `{VALUE}`."
            return Outcome(text, kind="bad_input")
        is_draft = role == "output" and spec.handler is not None
        complaint = None if is_draft else InputSchema(schema_for_model(spec)).complaint(value)
        if spec.wrapped:
            value = value[VALUE]
        if is_draft:
            return Outcome(await self.handlers[spec.handler or ""](value, context))
        if not complaint and spec.validator is not None:
            found = self.validators[spec.validator](value)
            complaint = await found if isawaitable(found) else found
        return Outcome(f"The output is not right. {complaint}", kind="bad_input") if complaint else Outcome(_ACCEPTED)
