"""Handles the exchange of a credential for a short-lived browser token with fewer rights."""

from datetime import timedelta
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.caller import check_named
from turnstream.api.http.reading import check_path, read_body
from turnstream.api.schemas.requests import ChatSettings, FixedOptions
from turnstream.api.services import Services, identity_of, services_and_owner
from turnstream.api.tokens import shown
from turnstream.api.views import json_response
from turnstream.domain.errors import Forbidden, RequestRefused
from turnstream.domain.identity import FIXABLE, OF_A_PERSON, Identity, checked_scopes
from turnstream.extensions.browsers.rows import create_for_browser
from turnstream.extensions.browsers.schemas import BrowserTokenIn, BrowserTokenOut
from turnstream.extensions.browsers.settings import NAME, BrowserSettings
from turnstream.kit.clock import CLOCK
from turnstream.storage.database import OWNER
from turnstream.storage.owners.tokens import BROWSER_TOKEN, LOGIN_SESSION

_USUAL_LIFE = 900  # seconds


async def create_token(request: Request) -> Response:
    services, owner = services_and_owner(request)
    identity = identity_of(request)
    sent, _ = await read_body(request, BrowserTokenIn)
    if (identity.credential or "").startswith(BROWSER_TOKEN):
        raise Forbidden("A short-lived token creates no other tokens: exchange the credential that created the token.")
    if (identity.credential or "").startswith(LOGIN_SESSION):
        raise Forbidden(
            "A session creates no tokens, because a token would outlast the session: send its cookie or a stored token."
        )
    if sent.owner is not None and sent.owner != owner:
        identity.require("admin")
        owner = sent.owner
        OWNER.set(owner)
    scopes = OF_A_PERSON & identity.scopes if sent.scopes is None else frozenset(sent.scopes)
    for scope in checked_scopes(scopes):
        identity.require(scope)
    if sent.fixed is not None:
        check_named(sent.fixed, "fixed.")
    longest = cast("BrowserSettings", services.states[NAME]).browser_token_life
    if sent.seconds is not None and sent.seconds > longest:
        raise RequestRefused(f"`seconds` must be at most {longest:,}.", field="seconds")
    if sent.turn is not None:
        if sent.chat is None:
            raise RequestRefused("`chat` must be the chat of the turn.", field="chat")
        await services.storage.turns.get(owner, sent.chat, sent.turn)
    elif sent.chat is not None:
        await services.storage.chats.get(owner, sent.chat)
    end = CLOCK.now() + timedelta(seconds=sent.seconds or min(_USUAL_LIFE, longest))
    end = min(end, identity.expires_at or end)
    if sent.plan is not None:
        identity.require("admin")
    plan = sent.plan or (identity.plan if owner == identity.owner else None)
    fixed = await _fixed(sent.fixed or FixedOptions(), owner, services)
    allowed = Identity(
        owner,
        scopes,
        end,
        identity.credential,
        plan,
        sent.chat,
        sent.turn,
        folder=_folder(sent, identity),
        fixed={**fixed, **identity.fixed},
        roles=identity.roles if owner == identity.owner else frozenset(),
    )
    if sent.documents is not None and not allowed.is_restricted:
        detail = "`documents` must be left out, or come with `chat` or without the scope `chat`: else all are reached."
        raise RequestRefused(detail, field="documents")
    token = await create_for_browser(services.storage.database, services.storage.tokens, allowed, identity.actor)
    return json_response(BrowserTokenOut(token=token, **shown(allowed)))


def _folder(sent: BrowserTokenIn, identity: Identity) -> str | None:
    """Returns the folder of documents that the token may reach. Raises RequestRefused for an invalid folder, and
    Forbidden for a folder that the credential may not reach.
    """
    if sent.documents is None:
        return identity.folder
    check_path(sent.documents, "documents")
    reached = identity.documents
    if reached is None or not f"{sent.documents}/".startswith(reached):
        raise Forbidden("`documents` must be a folder that the credential reaches.", field="documents")
    return sent.documents


async def _fixed(options: FixedOptions, owner: str, services: Services) -> dict[str, Any]:
    """Returns the fixed options in the form in which they are stored. Raises RequestRefused for options that no turn on
    this server could have.
    """
    named = {name: value for name in FIXABLE if (value := getattr(options, name)) is not None}
    prompt = {name: named.pop(name) for name in ("system_prompt",) if name in named}
    return {**prompt, **await services.resolver.new_settings(owner, ChatSettings(**named), "fixed")}
