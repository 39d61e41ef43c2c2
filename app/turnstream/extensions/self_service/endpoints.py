"""Handlers of the account of an owner."""

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.http.reading import id_of, limit_of, read_body
from turnstream.api.schemas.responses import Revoked
from turnstream.api.services import identity_of, services_and_owner
from turnstream.api.views import json_response
from turnstream.domain.errors import Forbidden, RequestRefused
from turnstream.domain.identity import Identity
from turnstream.extensions.self_service.account import OwnAccounts
from turnstream.extensions.self_service.schemas import (
    AccountOut,
    AuditEntryList,
    AuditEntryOut,
    CredentialList,
    CredentialOut,
    ErasureIn,
    ErasureOut,
    ErasureUndone,
    OwnGrantList,
    OwnGrantOut,
)
from turnstream.storage.owners.tokens import BROWSER_TOKEN, LOGIN_SESSION, STORED_TOKEN
from turnstream.storage.rows import from_json

_NEWEST = 2**63 - 1  # 19 digits
_MARKS = {"token": STORED_TOKEN, "browser": BROWSER_TOKEN, "session": LOGIN_SESSION}


async def get_account(request: Request) -> Response:
    accounts, identity = _accounts(request)
    return json_response(AccountOut(owner=identity.owner, **dict(await accounts.get(identity.owner))))


async def list_credentials(request: Request) -> Response:
    accounts, identity = _accounts(request)
    rows = await accounts.credentials(identity.owner, limit_of(request, default=100, most=1000))
    credentials = [
        CredentialOut(**dict(row), current=identity.credential == f"{_MARKS[row['kind']]}{row['id']}") for row in rows
    ]
    return json_response(CredentialList(credentials=credentials))


async def revoke_credential(request: Request) -> Response:
    accounts, identity = _accounts(request)
    id = id_of(request, "credential")
    await accounts.revoke(identity, id)
    return json_response(Revoked(revoked=id))


async def list_own_grants(request: Request) -> Response:
    accounts, identity = _accounts(request)
    rows = await accounts.grants(identity.owner, limit_of(request, default=100, most=1000))
    grants = [OwnGrantOut(**{**dict(row), "when": from_json(row["when"])}) for row in rows]
    return json_response(OwnGrantList(grants=grants))


async def list_entries(request: Request) -> Response:
    accounts, identity = _accounts(request)
    limit, before = limit_of(request, default=50, most=500), request.query_params.get("before")
    if before is not None and not (before.isascii() and before.isdigit() and len(before) < 19):
        raise RequestRefused("`before` must be the `next` of the previous page.", field="before")
    entries = await accounts.entries(identity.owner, _NEWEST if before is None else int(before), limit)
    shown = [
        AuditEntryOut(id=each.id, created_at=each.created_at, kind=each.kind, actor=each.actor, detail=each.detail)
        for each in entries
    ]
    return json_response(AuditEntryList(entries=shown, next=entries[-1].id if len(entries) == limit else None))


async def ask_erasure(request: Request) -> Response:
    accounts, identity = _accounts(request)
    sent, _ = await read_body(request, ErasureIn)
    if sent.owner != identity.owner:
        raise RequestRefused(
            "`owner` must be the name of the owner of the credential: everything of that owner is erased.",
            field="owner",
        )
    row = await accounts.ask_erasure(identity)
    return json_response(ErasureOut(owner=identity.owner, due_at=row["due_at"]), 202)


async def undo_erasure(request: Request) -> Response:
    accounts, identity = _accounts(request)
    await accounts.undo_erasure(identity)
    return json_response(ErasureUndone(undone=identity.owner))


def _accounts(request: Request) -> tuple[OwnAccounts, Identity]:
    """Returns the accounts and the caller. Raises Forbidden if self-service is off, or if the credential lacks rights
    of a person.
    """
    services, _ = services_and_owner(request)
    identity = identity_of(request)
    accounts = services.states.get("self_service")
    if not isinstance(accounts, OwnAccounts):
        raise Forbidden("Self-service is off on this server; its operator turns it on with TURNSTREAM_SELF_SERVICE.")
    if not identity.is_whole:
        raise Forbidden("The account needs a credential with all rights of a person: `read`, `chat`, `approve`.")
    return accounts, identity
