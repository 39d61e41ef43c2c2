"""The model requests of one turn: built from its rows for each call, and counted in tokens by the provider."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

import structlog

from turnstream.domain.compaction import may_need_compaction
from turnstream.domain.errors import ProviderError
from turnstream.domain.history import COMPACTED
from turnstream.domain.output import schema_for_model
from turnstream.domain.rounds import RETAINED, Round
from turnstream.domain.steps import CallModel, Compact, is_paused, open_round_number
from turnstream.domain.turns import Turn, TurnRequest
from turnstream.kit.offload import BLOCK, offload
from turnstream.llm.conversation.attachments import upload_ids_in, with_uploads
from turnstream.llm.conversation.messages import KnownEntries, build_messages, messages_to_summarise
from turnstream.llm.provider import Caller, Message, ModelCall, ModelRequest, Provider, ProviderCompaction, count_tokens
from turnstream.storage.database import retry_while_unavailable
from turnstream.storage.owners.uploads import Uploads

log = structlog.get_logger(__name__)

ModelStep = CallModel | Compact

# Parameters for the format of an answer. A request for a summary omits them.
_OF_ANSWERS = frozenset({"output_config", "response_format", "stop_sequences"})
_LEAST_FOR_SUMMARY = 4_000  # tokens
_COUNT_TIMEOUT = 10.0  # seconds


class Requests:
    """Builds the requests of one turn. `ancestors` is the path before the turn. `entries` are the messages that earlier
    requests made from this path. `fitting` selects those parameters of the turn that another model accepts. `opened`
    decrypts credentials. `caller` is notified if a call must wait.
    """

    def __init__(
        self,
        ancestors: Sequence[Turn],
        entries: KnownEntries,
        uploads: Uploads,
        fitting: Callable[[str, Mapping[str, Any]], Mapping[str, Any]],
        opened: Callable[[TurnRequest], Awaitable[TurnRequest]],
        caller: Caller | None = None,
    ) -> None:
        self._ancestors = ancestors
        self._entries = entries
        self._uploads = uploads
        self._fitting = fitting
        self._opened = opened
        self._caller = caller
        self._reported: set[str] = set()  # fallbacks whose omitted parameters were logged
        self._contents: dict[UUID, bytes] = {}

    async def build(self, turn: Turn, step: ModelStep, model: str) -> ModelRequest:
        assert turn.request is not None
        request = await self._opened(turn.request)
        sealed = [round for round in turn.rounds if round.sealed and round.stop_reason != COMPACTED]
        earlier = [round for turn in self._ancestors for round in turn.rounds if round.sealed]
        params = _params(request, step)
        messages = await self._messages([*self._ancestors, turn], step, model)
        return ModelRequest(
            model=model,
            messages=messages,
            system=request.system,
            params=params if model == request.model else self._params_of_fallback(model, params),
            tools=request.defined_tools,
            provider_tools=request.provider_tools,
            may_use_tools=isinstance(step, CallModel) and step.tools,
            resume_data=_resume_data(sealed),
            earlier_data=_resume_data(earlier) if request.provider_tools else None,
            prefilled=not sealed and model == request.model and messages[-1].role == "assistant",
            call=ModelCall(turn.id, step.round, turn.attempt, model, request.record),
            compaction=_compaction(request, model),
            caller=self._caller,
            retained=_retained(turn, model),
            past=[round for round in (*earlier, *sealed) if round.model == model],
        )

    def _params_of_fallback(self, model: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        fitting = self._fitting(model, params)
        left_out = sorted(params.keys() - fitting.keys())
        if left_out and model not in self._reported:
            self._reported.add(model)
            log.info("params.left_out", model=model, params=left_out)
        return fitting

    async def _messages(self, path: Sequence[Turn], step: ModelStep, model: str) -> tuple[Message, ...]:
        size = BLOCK * sum(len(turn.blocks) for turn in path)
        if isinstance(step, Compact):
            messages = await offload(size, messages_to_summarise, path, step.through, model)
        else:
            messages = await offload(size, build_messages, path, model, may_use_tools=step.tools, known=self._entries)
        needed = upload_ids_in(messages)
        # Drops the files that this request does not need, because files are large.
        contents = {id: content for id, content in self._contents.items() if id in needed}
        if missing := needed - contents.keys():
            contents |= await retry_while_unavailable(lambda: self._uploads.contents(missing))
        self._contents = contents
        return await offload(sum(map(len, contents.values())), with_uploads, messages, contents)


class TokenCounts:
    """Lets the provider count the tokens of a turn's next request. The provider is asked only if the estimate is too
    close to a limit, once per request, and not again for a model whose count has failed.
    """

    def __init__(self, ancestors: Sequence[Turn], requests: Requests) -> None:
        self._ancestors = ancestors
        self._requests = requests
        self._known: dict[tuple[str, int], int | None] = {}
        self._failed: set[str] = set()

    async def tokens(self, turn: Turn, model: str, provider: Provider) -> int | None:
        """Returns the provider's count, or None if the estimate is used instead."""
        if model in self._failed or is_paused(turn) or not may_need_compaction([*self._ancestors, turn]):
            return None
        key = (model, len(turn.blocks))
        if key not in self._known:
            self._known[key] = await self._count(turn, model, provider)
        return self._known[key]

    async def _count(self, turn: Turn, model: str, provider: Provider) -> int | None:
        request = await self._requests.build(turn, CallModel(open_round_number(turn)), model)
        try:
            async with asyncio.timeout(_COUNT_TIMEOUT):
                return await count_tokens(provider, request)
        except ProviderError as error:
            log.warning("tokens.uncounted", error=error.type)
        except TimeoutError:
            log.warning("tokens.uncounted", error="timeout")
        self._failed.add(model)
        return None


def _resume_data(sealed: Sequence[Round]) -> str | None:
    """Returns the provider's data about the messages of these rounds, with the newest value of each member."""
    members: dict[str, Any] = {}
    for data in (round.data for round in sealed if round.data):
        known: Mapping[str, Any] = json.loads(data)
        members |= {name: value for name, value in known.items() if value is not None}
    members.pop(RETAINED, None)
    return json.dumps(members) if members else None


def _retained(turn: Turn, model: str) -> Mapping[str, Any] | None:
    """Returns the reference to the previous call's answer, if that call was interrupted and its round voided."""
    last = turn.rounds[-1] if turn.rounds else None
    return last.retained if last is not None and last.voided and last.model == model else None


def _compaction(request: TurnRequest, model: str) -> ProviderCompaction | None:
    """Returns the provider's compaction for the turn's own model. None for a fallback, whose provider may have none."""
    limits = request.limits
    if not limits.provider_edits or model != request.model:
        return None
    window = limits.context_window
    return ProviderCompaction(limits.provider_edits, None if window is None else int(window * limits.compact_at))


def _params(request: TurnRequest, step: ModelStep) -> Mapping[str, Any]:
    """Returns the turn's parameters, adapted to the step."""
    params = request.params
    if isinstance(step, Compact):  # a summary is plain text, and may be longer than an answer
        kept = {name: value for name, value in params.items() if name not in _OF_ANSWERS}
        most = kept.get("max_tokens")
        return kept if most is None else {**kept, "max_tokens": max(most, _LEAST_FOR_SUMMARY)}
    if request.output is not None and request.output.native:
        schema = json.loads(schema_for_model(request.output))
        if request.output.description is not None:
            schema = {"description": request.output.description, **schema}
        format = {"type": "json_schema", "schema": schema}
        params = {**params, "output_config": {**(params.get("output_config") or {}), "format": format}}
    choice = params.get("tool_choice")
    # A tool call is forced in the first round only: if every round were forced, the model could not answer.
    if step.round > 1 and isinstance(choice, Mapping) and choice.get("type") in {"any", "tool"}:
        kept = {name: value for name, value in choice.items() if name not in {"type", "name"}}
        params = {**params, "tool_choice": {"type": "auto", **kept}}
    return params
