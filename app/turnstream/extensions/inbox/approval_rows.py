"""The asks in chats of other owners which a person may answer. Postgres returns them from a function
(`asks_to_approve`), which trusts only principals that the server has signed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from turnstream.domain.asks import AskKind
from turnstream.domain.identity import Identity
from turnstream.storage.contents import ASKS, BLOCKS, CHATS, TEXT_MARK
from turnstream.storage.database import OWNER, Database, Row, Statement

ASKS_TO_APPROVE = Statement(
    "SELECT * FROM asks_to_approve(:principals, CAST(:turn AS uuid), CAST(:most AS int))",
    opens=[CHATS.named(id="chat_id"), ASKS.named(question="input")],
)
GET_INPUT = Statement(
    """
    SELECT turn_id, index, text FROM blocks
    WHERE turn_id = :turn AND round = :round AND tool_use_id = :tool_use_id AND type = 'tool_use'
    """,
    opens=[BLOCKS],
)


@dataclass(frozen=True, slots=True)
class AskToApprove:
    """A call that waits for the decision of an approver, who sees no other part of its chat. `input` is JSON text, or
    the question that the tool asks. `waits` is true if the call can be answered now.
    """

    owner: str
    chat: UUID
    title: str | None
    turn: UUID
    tool_use_id: str
    name: str
    kind: AskKind
    digest: str
    input: str
    since: datetime
    expires_at: datetime | None
    waits: bool


class Approvals:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(self, identity: Identity, limit: int) -> Sequence[AskToApprove]:
        """Returns up to `limit` asks that wait for the person, the longest wait first."""
        return await self._read(identity, None, limit)

    async def of_turn(self, identity: Identity, turn: UUID) -> Sequence[AskToApprove]:
        """Returns the asks of the turn that the person may answer, or could have answered."""
        return await self._read(identity, turn, 1000)

    async def _read(self, identity: Identity, turn: UUID | None, most: int) -> Sequence[AskToApprove]:
        principals = self._database.signed_principals(identity.principals)
        rows = await self._database.rows(ASKS_TO_APPROVE, principals=principals, turn=turn, most=most)
        return [_ask_from(row, await self._input_of(row)) for row in rows]

    async def _input_of(self, row: Row) -> str:
        """Returns the input in plain text. `asks_to_approve` returns an encrypted input in its stored form, so the
        input is read again from its block. A person who may see the ask may also see that block.
        """
        found: str = row["input"] or ""
        if not found.startswith(TEXT_MARK):
            return found
        before = OWNER.set(row["owner"])
        try:
            call = {"turn": row["turn_id"], "round": row["round"], "tool_use_id": row["tool_use_id"]}
            block = await self._database.row(GET_INPUT, **call)
        finally:
            OWNER.reset(before)
        return block["text"] if block else ""


def _ask_from(row: Row, input: str) -> AskToApprove:
    return AskToApprove(
        owner=row["owner"],
        chat=row["chat_id"],
        title=row["title"],
        turn=row["turn_id"],
        tool_use_id=row["tool_use_id"],
        name=row["name"],
        kind=row["kind"],
        digest=row["digest"],
        input=input,
        since=row["asked_at"],
        expires_at=row["expires_at"],
        waits=row["waits"],
    )
