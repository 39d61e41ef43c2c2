"""Bearer tokens. Rows have only a SHA-256 hash of the secret, because a secret of 256 bits needs no slower hash."""

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from turnstream.domain.errors import Conflict
from turnstream.domain.identity import Identity, checked_scopes, known_scopes
from turnstream.kit.ids import new_id
from turnstream.storage.database import Database, Statement
from turnstream.storage.rows import from_json

CREATE_TOKEN = Statement(
    """
    WITH created AS (
        INSERT INTO tokens (id, owner, name, hash, scopes, expires_at, plan, roles)
        VALUES (:id, :owner, :name, :hash, CAST(:scopes AS text[]), :expires_at, :plan, CAST(:roles AS text[]))
        ON CONFLICT DO NOTHING RETURNING id
    ),
    required AS (INSERT INTO token_requirement SELECT FROM created ON CONFLICT DO NOTHING)
    SELECT id FROM created
    """
)
GET_TOKENS = Statement(
    """
    SELECT 'ts' AS prefix, id, owner, hash, scopes, expires_at, plan, CAST(NULL AS uuid) AS chat_id,
        CAST(NULL AS uuid) AS turn_id, CAST(NULL AS text) AS folder, CAST(NULL AS json) AS fixed, roles
    FROM tokens WHERE id = ANY(CAST(:ids AS uuid[])) AND coalesce(expires_at > now(), true)
    UNION ALL
    SELECT 'tb', id, owner, hash, scopes, expires_at, plan, chat_id, turn_id, folder, fixed, roles
    FROM browser_tokens WHERE id = ANY(CAST(:ids AS uuid[])) AND expires_at > now()
    """
)
ANY_TOKEN = Statement("SELECT 1 FROM tokens LIMIT 1")
EVER_A_TOKEN = Statement("SELECT FROM token_requirement UNION ALL SELECT FROM tokens LIMIT 1")
LIST_TOKENS = Statement(
    "SELECT name, owner, created_at, scopes, expires_at, last_used_at, plan FROM tokens ORDER BY id"
)
DELETE_TOKEN = Statement("DELETE FROM tokens WHERE name = :name RETURNING id")
RECORD_USES = Statement("UPDATE tokens SET last_used_at = now() WHERE id = ANY(CAST(:ids AS uuid[]))")

# The prefixes of credentials' ids: for stored tokens, for short-lived tokens of browsers, and for sessions of people
# who signed in on the page.
STORED_TOKEN = "token:"  # noqa: S105
BROWSER_TOKEN = "browser:"  # noqa: S105
LOGIN_SESSION = "session:"
_KINDS = {"ts": STORED_TOKEN, "tb": BROWSER_TOKEN}

# Each token has only one spelling, so that a search for leaked tokens finds it. The hash includes the cell.
_FORM = re.compile(r"(?P<prefix>ts|tb)_((?P<cell>[a-z0-9]{1,8})_)?(?P<id>[0-9a-f]{32})_(?P<secret>[A-Za-z0-9_-]{43})")


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
    """Creates, finds and deletes tokens. A new token contains the name of the `cell`, if any."""

    def __init__(self, database: Database, cell: str | None = None) -> None:
        self._database = database
        self._cell = cell

    async def create(self, name: str, identity: Identity) -> str:
        """Creates a token with the owner, scopes, end and plan of `identity`. Only this call returns the secret. From
        then on the server requires tokens. Raises Conflict if the name is used.
        """
        id, token, digest = self.new("ts")
        row = await self._database.row(
            CREATE_TOKEN,
            id=id,
            owner=identity.owner,
            name=name,
            hash=digest,
            scopes=checked_scopes(identity.scopes),
            expires_at=identity.expires_at,
            plan=identity.plan,
            roles=sorted(identity.roles),
        )
        if row is None:
            raise Conflict(f"There is already a token named {name}; choose another name.", field="name")
        return token

    def new(self, prefix: str) -> tuple[UUID, str, bytes]:
        """Returns the id, the text and the digest of a new token."""
        id, secret = new_id(), secrets.token_urlsafe(32)
        text = "_".join([prefix, *([self._cell] if self._cell else []), id.hex, secret])
        return id, text, _digest(secret, self._cell)

    async def identities(self, tokens: Collection[str]) -> Mapping[str, Identity]:
        """Returns the identities of the tokens that are valid."""
        forms = {token: form for token in tokens if (form := _FORM.fullmatch(token))}
        rows = await self._database.rows(GET_TOKENS, ids=[UUID(hex=form["id"]) for form in forms.values()])
        by_id = {(row["prefix"], row["id"]): row for row in rows}
        found = {}
        for token, form in forms.items():
            row = by_id.get((form["prefix"], UUID(hex=form["id"])))
            if hmac.compare_digest(row["hash"] if row else bytes(32), _digest(form["secret"], form["cell"])) and row:
                found[token] = Identity(
                    row["owner"],
                    known_scopes(row["scopes"]),
                    row["expires_at"],
                    f"{_KINDS[form['prefix']]}{row['id']}",
                    row["plan"],
                    row["chat_id"],
                    row["turn_id"],
                    folder=row["folder"],
                    fixed=from_json(row["fixed"]) or {},
                    roles=frozenset(row["roles"]),
                )
        return found

    async def exist(self) -> bool:
        return await self._database.row(ANY_TOKEN) is not None

    async def ever_existed(self) -> bool:
        return await self._database.row(EVER_A_TOKEN) is not None

    async def record_uses(self, credentials: Collection[str]) -> None:
        """Records a use of these credentials. Credentials other than stored tokens are ignored."""
        ids = [UUID(each.removeprefix(STORED_TOKEN)) for each in credentials if each.startswith(STORED_TOKEN)]
        await self._database.rows(RECORD_USES, ids=ids)

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


def cell_of(token: str) -> str | None:
    """Returns the name of the cell in which the token was created."""
    form = _FORM.fullmatch(token)
    return form["cell"] if form else None


def _digest(secret: str, cell: str | None) -> bytes:
    return hashlib.sha256(f"{cell}_{secret}".encode() if cell else secret.encode()).digest()
