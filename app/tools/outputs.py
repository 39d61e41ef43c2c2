"""Outputs of structured turns: their tools, and how what a model puts out is judged."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from inspect import isawaitable
from typing import Any

import structlog
from pydantic_core import from_json

from app.domain.blocks import Block
from app.domain.turns import OutputSpec, ToolRole, ToolSpec
from app.tools.schemas import InputSchema
from app.tools.tool import Outcome, ToolContext

log = structlog.get_logger(__name__)

OUTPUT = "output"
SUBMIT = "submit"
_TAKEN = "The output was taken."
_NOTHING = '{"type":"object","properties":{},"additionalProperties":false}'

# What is wrong with an output, in words for the model; None or nothing when it is right.
Validator = Callable[[Any], str | Awaitable[str | None] | None]
# What the model is told of a draft, so that it may refine it.
Handler = Callable[[Any, ToolContext], Awaitable[str]]


def output_tools(spec: OutputSpec) -> tuple[ToolSpec, ...]:
    """The tools by which a model puts out: with a handler it refines drafts, and submits the last one. It needs none
    where its provider holds it to the schema.
    """
    if spec.native:
        return ()
    if spec.handler is None:
        told = "Give the final output. Call this once you have all that you need; it ends your work."
        return (ToolSpec(OUTPUT, told, spec.schema, retry_safe=True, role="output"),)
    told = "Give a draft of the output. You are told what becomes of it, and may call this again with a better one."
    done = "Submit your last draft as the final output. Call this when you are satisfied with it; it ends your work."
    return (
        ToolSpec(OUTPUT, told, spec.schema, retry_safe=True, role="output"),
        ToolSpec(SUBMIT, done, _NOTHING, retry_safe=True, role="submit"),
    )


def as_call(draft: Block) -> Block:
    """An output that a model wrote as text, with what a call of the output tool has."""
    return replace(draft, name=OUTPUT, tool_use_id=f"{OUTPUT}_{draft.round}")


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a program registers for its structured turns, by name. `timeout` is in seconds."""

    validators: Mapping[str, Validator] = field(default_factory=dict)
    handlers: Mapping[str, Handler] = field(default_factory=dict)
    timeout: float = 30.0

    def check(self, spec: OutputSpec) -> None:
        """Raises ValueError for a spec that cannot be used here."""
        InputSchema.checked(spec.schema)
        for kind, name, known in (
            ("validator", spec.validator, self.validators),
            ("handler", spec.handler, self.handlers),
        ):
            if name is not None and name not in known:
                raise ValueError(f"there is no {kind} {name!r} here; there are: {', '.join(known) or 'none'}")

    async def settle(self, role: ToolRole, spec: OutputSpec, draft: str | None, context: ToolContext) -> Outcome:
        """The outcome of a call of an output tool. `draft` is what is put out, or submitted: JSON text; None when there
        is nothing to submit.
        """
        if draft is None:
            return Outcome(f"There is nothing to submit yet: call {OUTPUT} first.", is_error=True)
        try:
            async with asyncio.timeout(self.timeout):
                return await self._settle(role, spec, draft, context)
        except Exception as error:  # whatever a program's function raises
            log.error("output.failed", role=role, exc_info=error)
            return Outcome("The output could not be judged. Try again.", is_error=True)

    async def _settle(self, role: ToolRole, spec: OutputSpec, draft: str, context: ToolContext) -> Outcome:
        try:
            value = from_json(draft or "{}")
        except ValueError as error:
            return Outcome(f"The output is not valid JSON ({error}).", kind="bad_input")
        if role == "output" and spec.handler is not None:
            return Outcome(await self.handlers[spec.handler](value, context))
        if complaint := InputSchema(spec.schema).complaint(value) or await self._complaint(spec, value):
            return Outcome(f"The output is not right. {complaint}", kind="bad_input")
        return Outcome(_TAKEN)

    async def _complaint(self, spec: OutputSpec, value: Any) -> str | None:
        if spec.validator is None:
            return None
        found = self.validators[spec.validator](value)
        return await found if isawaitable(found) else found
