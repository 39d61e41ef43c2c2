"""Members of chats: their rows, and the identity with which a member makes a call.

A member is found before the owner of the chat is known. So these statements have access to the rows of all owners.
Afterwards the statements of the call are limited to the rows of the chat's owner.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal
from uuid import UUID

from turnstream.domain.errors import Conflict, Forbidden, NotFound
from turnstream.domain.identity import Identity, Scope
from turnstream.storage.contents import CHATS
from turnstream.storage.database import Database, Row, Statement
from turnstream.storage.rows import WAITS

MemberRole = Literal["read", "write", "approve"]

MOST_MEMBERS: Final = 100  # of a chat
_MOST_KNOWN: Final = 50_000
# Each role includes the rights of the roles before it.
SCOPES_OF: Final[Mapping[MemberRole, frozenset[Scope]]] = {
    "read": frozenset({"read"}),
    "write": frozenset({"read", "send", "chat"}),
    "approve": frozenset({"read", "send", "chat", "approve"}),
}
# The calls that members may make, and the least role for each call. Only the owner of a chat may make other calls.
LEAST_ROLE: Final[Mapping[str, MemberRole]] = {
    "GET /api/chats/{chat}": "read",
    "GET /api/chats/{chat}/turns": "read",
    "GET /api/chats/{chat}/stream": "read",
    "GET /api/chats/{chat}/turns/{turn}": "read",
    "GET /api/chats/{chat}/turns/{turn}/path": "read",
    "GET /api/chats/{chat}/turns/{turn}/why": "read",
    "GET /api/chats/{chat}/turns/{turn}/siblings": "read",
    "GET /api/chats/{chat}/turns/{turn}/children": "read",
    "GET /api/chats/{chat}/turns/{turn}/stream": "read",
    "GET /api/chats/{chat}/turns/{turn}/results/{tool_use_id}": "read",
    "GET /api/chats/{chat}/queue": "read",
    "GET /api/chats/{chat}/grants": "read",
    "GET /api/uploads/{upload}": "read",
    "POST /api/chats/{chat}/turns": "write",
    "POST /api/chats/{chat}/turns/{turn}/cancel": "write",
    "POST /api/chats/{chat}/turns/{turn}/calls/{tool_use_id}/cancel": "write",
    "POST /api/chats/{chat}/turns/{turn}/actions": "write",  # an approval needs the scope `approve`
    "POST /api/chats/{chat}/turns/{turn}/regenerate": "write",
    "POST /api/chats/{chat}/turns/{turn}/fork": "write",
    "DELETE /api/chats/{chat}/grants/{grant}": "approve",
}
_RANKS: Final[Sequence[MemberRole]] = ("read", "write", "approve")

FIND_MEMBER = Statement(
    """
    SELECT owner, role, plan FROM chats LEFT JOIN chat_members ON chat_id = id AND member = :person WHERE id = :chat
    """
)
_NOTED = """
    noted AS (
        INSERT INTO audit (kind, owner, actor, detail)
        SELECT '{kind}', owner, CAST(:actor AS text), json_build_object('chat', chat_id, 'member', member, 'role', role)
        FROM {changed}
    )
"""
# Simultaneous requests may exceed the limit of members slightly.
ADD_MEMBER = Statement(
    f"""
    WITH added AS (
        INSERT INTO chat_members (chat_id, member, role, plan, created_by)
        SELECT id, CAST(:member AS text), CAST(:role AS text), CAST(:plan AS text), CAST(:actor AS text) FROM chats
        WHERE id = :chat AND owner = :owner AND (
            SELECT count(*) FROM chat_members WHERE chat_id = :chat AND member <> :member
        ) < {MOST_MEMBERS}
        ON CONFLICT (chat_id, member) DO UPDATE SET role = EXCLUDED.role, plan = EXCLUDED.plan
        RETURNING *
    ), {_NOTED.format(kind="member.added", changed="added JOIN chats ON id = chat_id")}
    SELECT member, role, created_at FROM added
    """
)
LIST_MEMBERS = Statement(
    """
    SELECT member, role, chat_members.created_at FROM chat_members JOIN chats ON chats.id = chat_id
    WHERE chat_id = :chat AND owner = :owner ORDER BY chat_members.created_at, member
    """
)
# `waiting` has the calls that the role may answer. It has no sign-in, because only the owner signs in, and no call that
# has approvers.
LIST_MEMBERSHIPS = Statement(
    f"""
    SELECT chat_members.chat_id AS chat, owner, title, chat_members.role, chat_members.created_at, updated_at, (
        SELECT coalesce(json_agg(json_build_object(
            'turn', asks.turn_id, 'tool_use_id', asks.tool_use_id, 'name', asks.name, 'type', asks.kind,
            'since', asked_at
        ) ORDER BY asked_at), '[]') FROM turns JOIN asks ON asks.turn_id = turns.id
        WHERE turns.chat_id = chats.id AND {WAITS} AND approvers IS NULL
          AND kind = ANY (CASE chat_members.role
            WHEN 'approve' THEN ARRAY['approval', 'client', 'elicitation'] WHEN 'write' THEN ARRAY['client']
          END)
    ) AS waiting
    FROM chat_members JOIN chats ON chats.id = chat_members.chat_id
    WHERE member = :person ORDER BY updated_at DESC, chat_id LIMIT :limit
    """,
    opens=[CHATS.named(id="chat")],
)
# Either the owner of the chat or the member may remove the member.
REMOVE_MEMBER = Statement(
    f"""
    WITH removed AS (
        DELETE FROM chat_members USING chats
        WHERE chats.id = chat_id AND chat_id = :chat AND member = :member AND :person IN (owner, member)
        RETURNING chat_id, member, role, owner
    ), {_NOTED.format(kind="member.removed", changed="removed")}
    SELECT member FROM removed
    """
)
DELETE_MEMBERSHIPS = Statement("DELETE FROM chat_members WHERE member = :person RETURNING chat_id")


class Members:
    def __init__(self, database: Database) -> None:
        self._database = database
        # Chats with their owners. The owner of a chat does not change, so calls of an owner, and checks of the owner's
        # open streams, need no query.
        self._owned: set[tuple[str, UUID]] = set()

    async def find(self, identity: Identity, call: str, chat: UUID) -> Identity:
        """Returns the identity with which the caller makes a call that names the chat (`FindMember`). A credential that
        is bound, or that has fixed options, is only valid for its own owner. Raises Forbidden if the member may not
        make the call.
        """
        least = LEAST_ROLE.get(call)
        if (least is None and "{chat}" not in call) or identity.is_bound or identity.fixed:
            return identity
        if (identity.owner, chat) in self._owned:
            return identity
        row = await self._database.row(FIND_MEMBER, person=identity.owner, chat=chat)
        if row is not None and row["owner"] == identity.owner:
            if len(self._owned) >= _MOST_KNOWN:
                self._owned.clear()
            self._owned.add((identity.owner, chat))
        role: MemberRole | None = row["role"] if row is not None and row["owner"] != identity.owner else None
        if row is None or role is None:
            return identity
        if least is None:
            raise Forbidden("The call is made by the owner of the chat alone; you are a member of it.")
        if _RANKS.index(role) < _RANKS.index(least):
            raise Forbidden(f"The call needs the role `{least}` in the chat; you have the role `{role}`.")
        return replace(
            identity,
            owner=row["owner"],
            member=identity.owner,
            scopes=identity.scopes & SCOPES_OF[role],
            plan=row["plan"],
            chat=chat,
            folder=None,
        )

    async def add(self, identity: Identity, chat: UUID, member: str, role: MemberRole) -> Row:
        """Adds the member, or changes its role. Raises Conflict. The caller checks that the chat exists."""
        row = await self._database.row(
            ADD_MEMBER,
            chat=chat,
            owner=identity.owner,
            member=member,
            role=role,
            plan=identity.plan,
            actor=identity.actor,
        )
        if row is None:
            raise Conflict(f"A chat may have {MOST_MEMBERS} members: remove one.")
        return row

    async def list(self, owner: str, chat: UUID) -> Sequence[Row]:
        return await self._database.rows(LIST_MEMBERS, owner=owner, chat=chat)

    async def memberships(self, person: str, limit: int) -> Sequence[Row]:
        """Returns the chats of other owners of which the person is a member, last changed first."""
        return await self._database.rows(LIST_MEMBERSHIPS, person=person, limit=limit)

    async def remove(self, identity: Identity, chat: UUID, member: str) -> None:
        """Removes a member from a chat of the caller, or the caller from a chat of another owner. Raises NotFound."""
        values = {"chat": chat, "member": member, "person": identity.owner, "actor": identity.actor}
        if await self._database.row(REMOVE_MEMBER, **values) is None:
            raise NotFound(f"The chat {chat} has no member {member}.")
