"""Creates the rows of short-lived tokens."""

from uuid import UUID

from turnstream.domain.errors import Unauthorized
from turnstream.domain.identity import Identity, checked_scopes
from turnstream.storage.database import Database, Statement
from turnstream.storage.owners.tokens import STORED_TOKEN, Tokens
from turnstream.storage.rows import to_json

# Each new token removes some expired tokens, and adds an audit entry. The statement returns no row if the exchanged
# token was deleted meanwhile.
CREATE_BROWSER_TOKEN = Statement(
    """
    WITH expired AS (
        DELETE FROM browser_tokens WHERE id IN (
            SELECT id FROM browser_tokens WHERE expires_at < now() ORDER BY expires_at LIMIT 10 FOR UPDATE SKIP LOCKED
        )
    ),
    parent AS (SELECT id FROM tokens WHERE id = :parent FOR KEY SHARE),
    created AS (
    INSERT INTO browser_tokens
        (id, owner, hash, scopes, expires_at, plan, chat_id, turn_id, token_id, folder, fixed, roles)
    SELECT :id, :owner, :hash, CAST(:scopes AS text[]), CAST(:expires_at AS timestamptz), :plan, CAST(:chat AS uuid),
        CAST(:turn AS uuid), (SELECT id FROM parent), :folder, CAST(:fixed AS json),
        CAST(:roles AS text[])
    WHERE CAST(:parent AS uuid) IS NULL OR EXISTS (SELECT FROM parent)
    RETURNING *
    ),
    noted AS (
        INSERT INTO audit (kind, owner, actor, detail)
        SELECT 'token.exchanged', owner, CAST(:actor AS text), json_build_object(
            'token', id, 'scopes', scopes, 'chat', chat_id, 'turn', turn_id, 'expires_at', expires_at, 'roles', roles
        ) FROM created
    )
    SELECT id FROM created
    """
)


async def create_for_browser(database: Database, tokens: Tokens, identity: Identity, actor: str | None = None) -> str:
    """Creates a short-lived token for `identity`, in exchange for its credential. If the credential is a stored token,
    the new token is deleted together with it. `actor` is the caller whom the audit trail names, if this is not
    `identity`. Raises Unauthorized if the stored token no longer exists.
    """
    kind, mark, parent = (identity.credential or "").partition(":")
    id, token, digest = tokens.new("tb")
    row = await database.row(
        CREATE_BROWSER_TOKEN,
        id=id,
        owner=identity.owner,
        hash=digest,
        scopes=checked_scopes(identity.scopes),
        expires_at=identity.expires_at,
        plan=identity.plan,
        chat=identity.chat,
        turn=identity.turn,
        parent=UUID(parent) if kind + mark == STORED_TOKEN else None,
        folder=identity.folder,
        fixed=to_json(identity.fixed) if identity.fixed else None,
        roles=sorted(identity.roles),
        actor=actor or identity.actor,
    )
    if row is None:
        raise Unauthorized("The token of `Authorization` is revoked; send another token.")
    return token
