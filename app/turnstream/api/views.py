"""Converts domain values to response models, and response models to JSON responses."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple
from uuid import UUID

from msgspec import Raw
from pydantic import BaseModel
from starlette.responses import Response

from turnstream.api.codec import block_json, degraded_json, error_json, parsed, required_action_json, to_json
from turnstream.api.schemas.responses import (
    ChatOut,
    DegradedOut,
    ErrorOut,
    ExcerptOut,
    JobOut,
    ListedChat,
    PreliminaryOut,
    ReportOut,
    RoundOut,
    TurnOut,
    WantedOut,
)
from turnstream.api.services import Services
from turnstream.domain.chats import Chat
from turnstream.domain.degraded import degraded
from turnstream.domain.log import end_cursor, open_actions_of
from turnstream.domain.output import output_of, phase_of
from turnstream.domain.results import summary_notes
from turnstream.domain.rounds import Round, exact_sum
from turnstream.domain.secret_headers import masked_settings
from turnstream.domain.turns import Turn
from turnstream.kit.offload import Portions
from turnstream.llm.models.catalog import Models
from turnstream.stream.live import LiveView


def json_response(body: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(body.model_dump_json(), status, headers, media_type="application/json")


def chat_out(chat: Chat) -> ChatOut:
    return ChatOut(
        id=chat.id,
        title=chat.title,
        system_prompt=chat.system_prompt,
        settings=masked_settings(chat.settings),
        created_at=chat.created_at,
        updated_at=chat.updated_at,
    )


def listed_chat(chat: Chat, excerpt: ExcerptOut | None = None, jobs: int | None = None) -> ListedChat:
    return ListedChat(**dict(chat_out(chat)), excerpt=excerpt, jobs=jobs)


class ShownTurn(NamedTuple):
    """A turn as the API shows it. `out` lacks the blocks, because a turn may have thousands of blocks."""

    out: TurnOut
    blocks: Iterator[dict[str, Any]]

    async def encoded(self, portions: Portions) -> Raw:
        blocks = []
        for block in self.blocks:
            blocks.append(Raw(to_json(block)))
            await portions.pause()
        return Raw(to_json(self.out.model_dump(mode="json") | {"blocks": blocks}))

    async def response(self, status: int = 200) -> Response:
        return Response(bytes(await self.encoded(Portions())), status, media_type="application/json")


def shown_turn(turn: Turn, services: Services, siblings: Sequence[UUID] | None = None) -> ShownTurn:
    """Returns the present turn. A turn that runs here includes text without a row; `cursor` follows that text."""
    # A view may be ahead of the rows, or behind them if another replica has written. A user turn has no view.
    view, rows = services.live.directory.view(turn) if turn.role == "assistant" else None, turn
    turn = turn if view is None else view.turn
    if rows.arrivals > turn.arrivals and not turn.ended:  # an answer has arrived that the view lacks
        turn = replace(turn, status=rows.status)
    assert rows.created_at is not None
    # Members that test `acted` depend on rounds, which a message, or an answer before its first round, does not have.
    acted = view and (turn.rounds or rows.rounds or turn.ended or rows.ended or turn.hook_failures)
    out = TurnOut(
        id=turn.id,
        chat_id=turn.chat_id,
        parent_id=rows.parent_id,  # the readers' view of a queued turn may have an earlier parent
        role=turn.role,
        author=turn.author,
        status=turn.status,
        model=turn.request.model if turn.request else None,
        attempt=turn.attempt,
        stop_reason=turn.stop_reason,
        error=ErrorOut.model_validate(error_json(turn.error)) if turn.error else None,
        usage=dict(turn.usage),
        cost=_cost(turn, services.resolver.models) if acted else None,
        created_at=rows.created_at,
        started_at=turn.started_at,
        ended_at=turn.ended_at,
        forked_from=turn.forked_from,
        blocks=[],
        rounds=[round_out(round) for round in turn.rounds],
        output=parsed(text) if acted and (text := output_of(turn)) is not None else None,
        phase=phase_of(turn) if acted else None,
        actions=_actions(turn, rows) if acted else [],
        degraded=[DegradedOut.model_validate(degraded_json(item)) for item in degraded(turn)] if acted else [],
        preliminary=[
            PreliminaryOut(tool_use_id=each.tool_use_id, name=each.name, text=each.text, data=each.data)
            for each in turn.preliminary
        ],
        jobs=[JobOut.model_validate(each.shown()) for each in turn.open_jobs],
        reports=[ReportOut.model_validate(each.report()) for each in rows.jobs if each.reports],
        labels=dict(turn.request.labels) if turn.request else {},
        hook_failures=turn.hook_failures,
        siblings=None if siblings is None else list(siblings),
        cursor=str(end_cursor(view)) if view else None,
    )
    return ShownTurn(out, chain(map(block_json, turn.blocks), _open_block(view) if view else ()))


def _actions(turn: Turn, rows: Turn) -> list[WantedOut]:
    """Returns calls that wait in the view and in the rows: rows may have later answers, and the view may have ended."""
    if turn.ended or rows.ended:
        return []
    answered = {ask.key for ask in (*turn.asks, *rows.asks) if ask.answer is not None}
    asks = max(turn.asks, rows.asks, key=len)
    waiting = [ask for ask in asks if ask.key not in answered]
    actions = open_actions_of(replace(turn, asks=tuple(waiting), jobs=rows.jobs))
    return [WantedOut.model_validate(required_action_json(action)) for action in actions]


def _cost(turn: Turn, models: Models) -> float | None:
    """Returns the cost of all rounds, and of the summaries of results. Voided rounds count, because providers bill
    them. A round keeps the cost that was stored with it; a round without a stored cost has the present price. None if a
    price is unknown. A copied turn costs nothing.
    """
    if turn.request is None:
        return None
    if turn.forked_from is not None:
        return 0.0
    costs = [
        models.cost(round.model or turn.request.model, round.spent) if round.cost is None else round.cost
        for round in turn.rounds
    ]
    for note in summary_notes(turn.blocks):
        cost = note.get("cost")
        costs.append(models.cost(note["model"], note["usage"]) if cost is None else cost)
    known = [cost for cost in costs if cost is not None]
    return exact_sum(known) if known and len(known) == len(costs) else None


def _open_block(view: LiveView) -> list[dict[str, Any]]:
    block = view.block_being_written()
    if block is None:
        return []
    members = block_json(block)
    del members["interrupted"]  # the block is open, not interrupted
    return [{**members, "open": True}]


def round_out(round: Round) -> RoundOut:
    return RoundOut(
        round=round.number,
        attempt=round.attempt,
        stop_reason=round.stop_reason,
        usage=dict(round.usage),
        request_id=round.request_id,
        messages=round.messages,
        model=round.model,
        applied_edits=_applied_edits(round),
        started_at=round.started_at,
        first_delta_at=round.first_delta_at,
        sealed_at=round.sealed_at,
    )


def _applied_edits(round: Round) -> list[dict[str, Any]]:
    """Returns the edits of the context that the provider reports, if they have the known form."""
    data = parsed(round.data or "{}")
    management = data.get("context_management") if isinstance(data, dict) else None
    edits = management.get("applied_edits") if isinstance(management, dict) else None
    return [edit for edit in edits if isinstance(edit, dict)] if isinstance(edits, list) else []
