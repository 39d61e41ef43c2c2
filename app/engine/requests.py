"""From the rows to the next model request."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID

from app.domain.history import COMPACTED
from app.domain.steps import CallModel, Compact
from app.domain.turns import Turn, TurnRequest
from app.llm.conversation.attachments import upload_ids_in, with_uploads
from app.llm.conversation.messages import build_messages, messages_to_summarise
from app.llm.provider import Message, ModelCall, ModelRequest, ProviderCompaction

Asking = CallModel | Compact

# Parameters that say how an answer is to be.
_OF_ANSWERS = frozenset({"output_config", "response_format", "stop_sequences"})
_LEAST_FOR_SUMMARY = 4_000  # tokens


class Rows(Protocol):
    """What a run reads again while it lasts."""

    async def refreshed(self, turn: Turn) -> Turn: ...
    async def uploads(self, ids: Collection[UUID]) -> Mapping[UUID, bytes]: ...


class Requests:
    """Those of one turn. `ancestors` is its path without itself."""

    def __init__(self, ancestors: Sequence[Turn], rows: Rows) -> None:
        self._ancestors = ancestors
        self._rows = rows
        self._uploads: dict[UUID, bytes] = {}

    async def build(self, turn: Turn, step: Asking, model: str) -> ModelRequest:
        assert turn.request is not None
        asked = turn.request
        sealed = [round for round in turn.rounds if round.sealed and round.stop_reason != COMPACTED]
        return ModelRequest(
            model=model,
            messages=await self._messages([*self._ancestors, turn], step, model),
            system=asked.system,
            params=_params_of_round(_with_format(asked), step),
            tools=asked.tools,
            provider_tools=asked.provider_tools,
            may_use_tools=isinstance(step, CallModel) and step.tools,
            resume_data=sealed[-1].data if sealed else None,
            call=ModelCall(turn.id, step.round, turn.attempt, model, asked.record),
            compaction=_compaction(asked, model),
        )

    async def _messages(self, path: Sequence[Turn], step: Asking, model: str) -> tuple[Message, ...]:
        if isinstance(step, Compact):
            messages = messages_to_summarise(path, step.through, model)
        else:
            messages = build_messages(path, model)
        meant = upload_ids_in(messages)
        held = {id: content for id, content in self._uploads.items() if id in meant}  # no more: they are large
        missing = meant - held.keys()
        self._uploads = {**held, **await self._rows.uploads(missing)} if missing else held
        return with_uploads(messages, self._uploads)


def _compaction(asked: TurnRequest, model: str) -> ProviderCompaction | None:
    """What the model that was asked for offers; a fallback may not."""
    limits = asked.limits
    if not limits.provider_edits or model != asked.model:
        return None
    window = limits.context_window
    return ProviderCompaction(limits.provider_edits, None if window is None else int(window * limits.compact_at))


def _with_format(asked: TurnRequest) -> Mapping[str, Any]:
    """The parameters; those of a structured turn whose model can be held to its schema say so."""
    if asked.output is None or not asked.output.native:
        return asked.params
    format = {"type": "json_schema", "schema": json.loads(asked.output.schema)}
    return {**asked.params, "output_config": {**(asked.params.get("output_config") or {}), "format": format}}


def _params_of_round(params: Mapping[str, Any], step: Asking) -> Mapping[str, Any]:
    """What must be called is called in the first round: in every round, the turn would never come to an answer."""
    if isinstance(step, Compact):
        return _params_of_summary(params)
    choice = params.get("tool_choice")
    if step.round == 1 or not isinstance(choice, Mapping) or choice.get("type") not in {"any", "tool"}:
        return params
    kept = {name: value for name, value in choice.items() if name not in {"type", "name"}}
    return {**params, "tool_choice": {"type": "auto", **kept}}


def _params_of_summary(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """It has neither the form that was asked for nor need be as short."""
    kept = {name: value for name, value in params.items() if name not in _OF_ANSWERS}
    most = kept.get("max_tokens")
    return kept if most is None else {**kept, "max_tokens": max(most, _LEAST_FOR_SUMMARY)}
