"""Bearer tokens. Only a SHA-256 hash is stored: a secret of 256 bits needs no slower hash."""

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from app.domain.errors import Conflict
from app.domain.identity import Identity, checked_scopes, known_scopes
from app.kit.ids import new_id
from app.storage.database import Database, Statement

CREATE_TOKEN = Statement(
    """
    WITH created AS (
        INSERT INTO tokens (id, owner, name, hash, scopes, expires_at, plan)
        VALUES (:id, :owner, :name, :hash, CAST(:scopes AS text[]), :expires_at, :plan)
        ON CONFLICT DO NOTHING RETURNING id
    ),
    required AS (INSERT INTO token_requirement SELECT FROM created ON CONFLICT DO NOTHING)
    SELECT id FROM created
    """
)
GET_TOKENS = Statement(
    """
    SELECT id, owner, hash, scopes, expires_at, plan FROM tokens
    WHERE id = ANY(CAST(:ids AS uuid[])) AND coalesce(expires_at > now(), true)
    """
)
ANY_TOKEN = Statement("SELECT 1 FROM tokens LIMIT 1")
EVER_A_TOKEN = Statement("SELECT FROM token_requirement UNION ALL SELECT FROM tokens LIMIT 1")
LIST_TOKENS = Statement(
    "SELECT name, owner, created_at, scopes, expires_at, last_used_at, plan FROM tokens ORDER BY id"
)
DELETE_TOKEN = Statement("DELETE FROM tokens WHERE name = :name RETURNING id")
RECORD_USES = Statement("UPDATE tokens SET last_used_at = now() WHERE id = ANY(CAST(:ids AS uuid[]))")

_PREFIX = "ts"
# One spelling for each token, so that lists of leaked tokens find it.
_FORM = re.compile(rf"{_PREFIX}_(?P<id>[0-9a-f]{{32}})_(?P<secret>[A-Za-z0-9_-]{{43}})")


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """A token without its secret."""

    name: str
    owner: str
    created_at: datetime
    scopes: Sequence[str]
    expires_at: datetime | None
    last_used_at: datetime | None
    plan: str | None


class Tokens:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, name: str, identity: Identity) -> str:
        """Creates a token with the owner, scopes, end and plan of `identity`; its secret is returned here only. From
        now on the server needs tokens. Raises Conflict when the name is taken.
        """
        id, secret = new_id(), secrets.token_urlsafe(32)
        row = await self._database.row(
            CREATE_TOKEN,
            id=id,
            owner=identity.owner,
            name=name,
            hash=_digest(secret),
            scopes=checked_scopes(identity.scopes),
            expires_at=identity.expires_at,
            plan=identity.plan,
        )
        if row is None:
            raise Conflict(f"There is already a token named {name}; choose another name.", field="name")
        return f"{_PREFIX}_{id.hex}_{secret}"

    async def identities(self, tokens: Collection[str]) -> Mapping[str, Identity]:
        """The identities of those of `tokens` that are valid."""
        forms = {token: form for token in tokens if (form := _FORM.fullmatch(token))}
        rows = await self._database.rows(GET_TOKENS, ids=[UUID(hex=form["id"]) for form in forms.values()])
        by_id = {row["id"]: row for row in rows}
        found = {}
        for token, form in forms.items():
            row = by_id.get(UUID(hex=form["id"]))
            if hmac.compare_digest(row["hash"] if row else bytes(32), _digest(form["secret"])) and row:
                found[token] = Identity(
                    row["owner"], known_scopes(row["scopes"]), row["expires_at"], str(row["id"]), row["plan"]
                )
        return found

    async def exist(self) -> bool:
        return await self._database.row(ANY_TOKEN) is not None

    async def ever_existed(self) -> bool:
        return await self._database.row(EVER_A_TOKEN) is not None

    async def record_uses(self, ids: Collection[str]) -> None:
        """The tokens were used just now."""
        await self._database.rows(RECORD_USES, ids=[UUID(id) for id in ids])

    async def list(self) -> Sequence[TokenInfo]:
        rows = await self._database.rows(LIST_TOKENS)
        return [
            TokenInfo(
                row["name"],
                row["owner"],
                row["created_at"],
                row["scopes"],
                row["expires_at"],
                row["last_used_at"],
                row["plan"],
            )
            for row in rows
        ]

    async def delete(self, name: str) -> bool:
        return await self._database.row(DELETE_TOKEN, name=name) is not None


def is_well_formed(token: str) -> bool:
    return _FORM.fullmatch(token) is not None


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
