"""Bearer tokens. Only a SHA-256 hash is stored: a secret of 256 bits needs no slower hash."""

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from app.domain.errors import Conflict
from app.kit.ids import new_id
from app.storage.database import Database, Statement

CREATE_TOKEN = Statement(
    """
    INSERT INTO tokens (id, owner, name, hash) VALUES (:id, :owner, :name, :hash)
    ON CONFLICT DO NOTHING RETURNING id
    """
)
GET_TOKEN = Statement("SELECT owner, hash FROM tokens WHERE id = :id")
ANY_TOKEN = Statement("SELECT 1 FROM tokens LIMIT 1")
LIST_TOKENS = Statement("SELECT name, owner, created_at FROM tokens ORDER BY id")
DELETE_TOKEN = Statement("DELETE FROM tokens WHERE name = :name RETURNING id")

_PREFIX = "ts"
# One spelling for each token, so that lists of leaked tokens find it.
_FORM = re.compile(rf"{_PREFIX}_(?P<id>[0-9a-f]{{32}})_(?P<secret>[A-Za-z0-9_-]{{43}})")


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """A token without its secret."""

    name: str
    owner: str
    created_at: datetime


class Tokens:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, name: str, owner: str) -> str:
        """Creates a token; its secret is returned here only. Raises Conflict when the name is taken."""
        identity, secret = new_id(), secrets.token_urlsafe(32)
        row = await self._database.row(CREATE_TOKEN, id=identity, owner=owner, name=name, hash=_digest(secret))
        if row is None:
            raise Conflict(f"There is already a token named {name}; choose another name.", field="name")
        return f"{_PREFIX}_{identity.hex}_{secret}"

    async def owner_of(self, token: str) -> str | None:
        """The owner of a token; None for a text that is no valid token."""
        form = _FORM.fullmatch(token)
        if form is None:
            return None
        row = await self._database.row(GET_TOKEN, id=UUID(hex=form["id"]))
        expected = row["hash"] if row else bytes(32)
        right = hmac.compare_digest(expected, _digest(form["secret"]))
        return row["owner"] if row and right else None

    async def exist(self) -> bool:
        return await self._database.row(ANY_TOKEN) is not None

    async def list(self) -> Sequence[TokenInfo]:
        rows = await self._database.rows(LIST_TOKENS)
        return [TokenInfo(row["name"], row["owner"], row["created_at"]) for row in rows]

    async def delete(self, name: str) -> bool:
        return await self._database.row(DELETE_TOKEN, name=name) is not None


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
