"""Where a message goes that comes while a turn of its branch has not ended."""

from dataclasses import dataclass
from typing import Literal, assert_never
from uuid import UUID

from app.domain.errors import Conflict
from app.domain.turns import TERMINAL, Turn
from app.storage.database import Database, Statement, Transaction
from app.storage.rows import turn_from

OnBusy = Literal["reject", "enqueue", "interrupt", "steer", "branch"]

_OPEN = "('queued', 'running', 'waiting')"
# The turns of a branch that have not ended, from `turn` towards the root; the oldest first.
GET_BUSY = Statement(
    f"""
    WITH RECURSIVE busy AS (
        SELECT turns.*, 0 AS depth FROM turns WHERE chat_id = :chat AND id = :turn AND status IN {_OPEN}
        UNION ALL
        SELECT before.*, depth + 1 FROM busy
        JOIN turns AS said ON said.id = busy.parent_id
        JOIN turns AS before ON before.id = said.parent_id
        WHERE before.status IN {_OPEN}
    )
    SELECT * FROM busy ORDER BY depth DESC
    """
)
GET_ANSWER_BEFORE = Statement(
    "SELECT before.* FROM turns AS said JOIN turns AS before ON before.id = said.parent_id WHERE said.id = :said"
)
LOCK_OPEN_TURN = Statement(f"SELECT id FROM turns WHERE id = :turn AND status IN {_OPEN} FOR NO KEY UPDATE")


@dataclass(frozen=True, slots=True)
class Place:
    """After `before`; or into the first of `steerable` that is still open. The turns in `interrupted` are to stop."""

    before: Turn | None
    steerable: tuple[Turn, ...] = ()
    interrupted: tuple[UUID, ...] = ()


async def place_beside_others(
    database: Database | Transaction, chat: UUID, before: Turn | None, on_busy: OnBusy
) -> Place:
    """Finds the place of a message after `before`, and changes nothing. Raises Conflict where the branch is busy and
    `on_busy` is `reject`.
    """
    if before is None or before.status in TERMINAL:
        return Place(before)
    busy = [turn_from(row) for row in await database.rows(GET_BUSY, chat=chat, turn=before.id)]
    if not busy:
        return Place(before)
    match on_busy:
        case "reject":
            raise still_running(before, ", or send another `on_busy`, such as `enqueue` or `interrupt`")
        case "enqueue":
            return Place(before)
        case "interrupt":
            return Place(before, interrupted=tuple(turn.id for turn in busy))
        case "branch":
            row = await database.row(GET_ANSWER_BEFORE, said=busy[0].parent_id)
            return Place(turn_from(row) if row else None)
        case "steer":
            return Place(before, steerable=tuple(turn for turn in busy if not turn.cancel_requested))
        case _:
            assert_never(on_busy)


def still_running(turn: Turn, otherwise: str = "") -> Conflict:
    if turn.status == "waiting":
        return Conflict(f"Turn {turn.id} on this branch waits for an action; answer it or cancel it{otherwise}.")
    return Conflict(f"Turn {turn.id} is still running on this branch; wait for its end or cancel it{otherwise}.")
