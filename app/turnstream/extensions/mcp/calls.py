"""The calls of the API about sign-ins, and the pages on which a person signs in. The first page shows the server and
its scopes, and leads to the issuer.
"""

import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import datetime
from hashlib import sha256
from html import escape
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Annotated, Final, cast
from urllib.parse import urlsplit

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from turnstream.api.http.call_group import CallGroup
from turnstream.api.http.endpoint import Endpoint
from turnstream.api.services import as_id, identity_of, services_and_owner, services_of
from turnstream.api.views import json_response
from turnstream.domain.errors import NotFound, Unauthorized
from turnstream.extensions.mcp.app_calls import ENDPOINTS as APP_ENDPOINTS
from turnstream.extensions.mcp.app_calls import app_frame
from turnstream.extensions.mcp.offer_calls import ENDPOINTS as OFFER_ENDPOINTS
from turnstream.extensions.mcp.own_calls import ENDPOINTS as OWN_ENDPOINTS
from turnstream.kit.text import unstorable

# The SDK is imported only at the first sign-in, because most servers have no sign-ins.
if TYPE_CHECKING:
    from turnstream.extensions.mcp.oauth import McpIssuer
    from turnstream.extensions.mcp.offers import Offers
    from turnstream.extensions.mcp.sign_ins import LinkedAsk, SignIns

_COOKIE: Final = "turnstream_sign_in"
_COOKIE_AGE: Final = 1200  # seconds: the time on the page of the link, and then ten minutes at the issuer
_COOKIE_VALUE: Final = re.compile(r"[\w-]{43}", re.ASCII)
_LONGEST: Final = 4096  # maximum characters of a parameter of the callback
_AGAIN: Final = "You can open the link again."
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "X-Robots-Tag": "noindex",
}
_CSP: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'; form-action {}"
_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 40rem; margin: 2rem auto; padding: 0 1rem;
  color: #1a1a1a; background: #fff }}
dt {{ color: #555 }} dd {{ margin: 0 0 .75rem; overflow-wrap: anywhere }}
button {{ font: inherit; padding: .5rem 1.5rem; margin: .75rem .5rem 0 0 }}
</style></head><body><h1>{title}</h1>{body}</body></html>
"""


class SignInOut(BaseModel):
    """An MCP server to which the owner has signed in. Tokens are never shown."""

    server: str
    issuer: str
    scopes: list[str]
    signed_in_at: datetime
    refreshed_at: Annotated[datetime | None, Field(description="when its tokens were last renewed")]


class SignInsOut(BaseModel):
    sign_ins: list[SignInOut]


class SignedOut(BaseModel):
    revoked: str
    at_issuer: Annotated[bool, Field(description="whether the issuer has confirmed that its tokens are void")]


class _PageRefused(Exception):
    """Refuses a page, with a status and a sentence for the person."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


# --- calls of owners -------------------------------------------------------------------------------------------------


async def get_sign_ins(request: Request) -> Response:
    from turnstream.extensions.mcp.sign_ins import list_sign_ins

    services, owner = services_and_owner(request)
    rows = await list_sign_ins(services.storage.of_owner, owner)
    shown = [
        SignInOut(
            server=row.server,
            issuer=row.issuer,
            scopes=list(row.scopes),
            signed_in_at=row.signed_in_at,
            refreshed_at=row.refreshed_at,
        )
        for row in rows
    ]
    return json_response(SignInsOut(sign_ins=shown))


async def revoke_sign_in(request: Request) -> Response:
    from turnstream.extensions.mcp.sign_ins import delete_sign_in

    services, owner = services_and_owner(request)
    server, sign_ins, tokens = request.path_params["server"], _known_sign_ins(request), None
    if not unstorable(server):
        tokens = await delete_sign_in(services.storage.database, owner, server, identity_of(request).actor)
    if tokens is None:
        raise NotFound(f"There is no sign-in to a server {server!r}.")
    confirmed = sign_ins is not None and await sign_ins.revoke(owner, server, tokens)
    return json_response(SignedOut(revoked=server, at_issuer=confirmed))


# --- pages -----------------------------------------------------------------------------------------------------------


def _page_of(title: str, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    async def page(request: Request) -> Response:
        try:
            return await handler(request)
        except _PageRefused as refused:
            return _page(title, f"<p>{escape(str(refused))}</p>", refused.status)

    return page


async def _linked(request: Request) -> Response:
    from turnstream.extensions.mcp.oauth import SignInFailed

    sign_ins, ask, issuer, actor = await _opened(request)
    name, cookie = _cookie_of(request, sign_ins)
    if request.method == "POST" and cookie is None:
        # If another site submits the form, browsers send no cookie with it. So nobody can skip the page.
        raise _PageRefused(403, "The page of the link was not opened in this browser, or cookies are off.")
    if request.method == "POST" and request.query_params.get("seen") == _digest_of(issuer):
        try:
            url = await sign_ins.begin(ask.owner, sign_ins.servers[ask.server], issuer, cookie or "", actor)
        except SignInFailed as failed:
            raise _PageRefused(502, str(failed)) from None
        return RedirectResponse(url, 303, _HEADERS)
    response = _consent(ask, issuer, changed=request.method == "POST", for_another=actor is not None)
    # The cookie is `lax`, because the issuer redirects the browser here from another site.
    is_secure = sign_ins.oauth.base.startswith("https:")
    response.set_cookie(
        name, cookie or token_urlsafe(32), _COOKIE_AGE, path="/", secure=is_secure, httponly=True, samesite="lax"
    )
    return response


def _cookie_of(request: Request, sign_ins: "SignIns") -> tuple[str, str | None]:
    """Returns the name and the value of the cookie. With https, the name has a prefix that prevents other hosts of the
    domain from setting the cookie.
    """
    name = f"__Host-{_COOKIE}" if sign_ins.oauth.base.startswith("https:") else _COOKIE
    value = request.cookies.get(name, "")
    return name, value if _COOKIE_VALUE.fullmatch(value) else None


def _digest_of(issuer: "McpIssuer") -> str:
    """Returns the digest of the page's content. The form is shown again if the server now requests more scopes, or has
    another issuer.
    """
    shown = [issuer.name, str(issuer.metadata.authorization_endpoint), issuer.resource, *issuer.scopes]
    return sha256("\n".join(shown).encode()).hexdigest()


async def _opened(request: Request) -> "tuple[SignIns, LinkedAsk, McpIssuer, str | None]":
    """Returns the sign-ins, the ask of the link, and the issuer of its server. The last value is the actor if a person
    other than the owner signs in. Raises _PageRefused.
    """
    from turnstream.extensions.mcp.oauth import SignInFailed

    sign_ins, turn = _sign_ins(request), as_id(request.path_params["turn"])
    secret = request.path_params["secret"]
    ask = None if turn is None or unstorable(secret) else await sign_ins.linked(turn, secret)
    if ask is None:
        raise _PageRefused(
            404, "The address is incomplete or was changed. Open the address exactly as you received it."
        )
    server = sign_ins.servers.get(ask.server)
    actor = await _check_person(request, ask, () if server is None else server.sign_in_by)
    if ask.over is not None:
        raise _PageRefused(409, ask.over)
    if server is None:
        raise _PageRefused(410, f"This server does not use {ask.server} any more.")
    try:
        return sign_ins, ask, await sign_ins.oauth.discover(server, ask.scopes), actor
    except SignInFailed as failed:
        raise _PageRefused(502, str(failed)) from None


async def _check_person(request: Request, ask: "LinkedAsk", approvers: Collection[str]) -> str | None:
    """Checks that the person may sign in. If the browser has a credential, it must be the owner's: otherwise the
    owner's calls would use another person's tokens. If the browser has no credential, because a program sends the
    tokens for its users, the link alone is enough. If there are `approvers`, the person must be one of them, and is
    returned. Raises _PageRefused.
    """
    try:
        identity = await services_of(request).authenticator.identity_of(request)
    except Unauthorized:
        if approvers:
            raise _PageRefused(401, f"This sign-in is made by {', '.join(approvers)}. Log in here first.") from None
        return None
    if approvers:
        if identity.is_bound or not set(approvers) & set(identity.principals):
            raise _PageRefused(403, f"You are {identity.owner} here. This sign-in is made by {', '.join(approvers)}.")
        return identity.actor
    if identity.credential is not None and identity.owner != ask.owner:
        raise _PageRefused(403, f"You are {identity.owner} here. This sign-in is for another person.")
    return None


def _consent(ask: "LinkedAsk", issuer: "McpIssuer", *, changed: bool, for_another: bool) -> Response:
    who = "you may sign in for this person" if for_another else "that is you"
    where = urlsplit(str(issuer.metadata.authorization_endpoint))
    scopes = "".join(f"<li>{escape(scope)}</li>" for scope in issuer.scopes) or "<li>as the issuer decides</li>"
    news = "<p><strong>This has changed since it was shown.</strong></p>" if changed else ""
    body = (
        f"{news}<p>Tools of <strong>{escape(ask.server)}</strong> are to be used for"
        f" <strong>{escape(ask.owner)}</strong>. Go on only if {who}.</p>"
        f"<dl><dt>Server</dt><dd>{escape(ask.server)} ({escape(issuer.resource)})</dd>"
        f"<dt>You sign in at</dt><dd>{escape(where.netloc)}</dd><dt>Issuer</dt><dd>{escape(issuer.name)}</dd>"
        f"<dt>Scopes</dt><dd><ul>{scopes}</ul></dd></dl>"
        f'<form method="post" action="?seen={_digest_of(issuer)}"><button>Continue</button></form>'
        "<p>You can sign out at any time. To refuse, close this page and decline in the chat.</p>"
    )
    # The form redirects to the issuer, and browsers treat the redirect as a part of the form, so the policy allows it.
    return _page(f"Sign in to {ask.server}", body, actions=f"'self' {where.scheme}://{where.netloc}")


async def _callback(request: Request) -> Response:
    from turnstream.extensions.mcp.oauth import SignInFailed

    sign_ins, query = _sign_ins(request), request.query_params
    given = {name: query.get(name) for name in ("state", "code", "iss", "error")}
    if any(value is not None and (len(value) > _LONGEST or unstorable(value)) for value in given.values()):
        raise _PageRefused(400, f"A parameter of the address is not valid. {_AGAIN}")
    state, code, error = given["state"], given["code"], given["error"]
    if state is None or (code is None) == (error is None):
        raise _PageRefused(400, f"The address must have `state`, and either `code` or `error`. {_AGAIN}")
    _, cookie = _cookie_of(request, sign_ins)
    try:
        server = await sign_ins.complete(state, cookie or "", given["iss"], code, error)
    except SignInFailed as failed:
        raise _PageRefused(400, f"{failed} {_AGAIN}") from None
    return _page(f"You are signed in to {server}", "<p>The chat goes on. You can close this page.</p>")


async def _client_document(request: Request) -> Response:
    """Returns the client metadata document. Issuers that read this document need no registration."""
    oauth = _sign_ins(request).oauth
    document = oauth.client_metadata().model_dump(mode="json", by_alias=True, exclude_none=True)
    return JSONResponse({"client_id": oauth.document_url, **document})


def _sign_ins(request: Request) -> "SignIns":
    sign_ins = _known_sign_ins(request)
    if sign_ins is None:
        raise _PageRefused(404, "No server here wants a sign-in.")
    return sign_ins


def _known_sign_ins(request: Request) -> "SignIns | None":
    state = cast("Offers | None", services_of(request).states.get("mcp"))
    return None if state is None else state.sign_ins


def _page(title: str, body: str, status: int = 200, actions: str = "'none'") -> Response:
    headers: Mapping[str, str] = {**_HEADERS, "Content-Security-Policy": _CSP.format(actions)}
    return HTMLResponse(_PAGE.format(title=escape(title), body=body), status, headers)


GROUP = CallGroup(
    (
        Endpoint("GET /api/sign-ins", get_sign_ins, "MCP servers to which the owner has signed in", gives=SignInsOut),
        Endpoint(
            "DELETE /api/sign-ins/{server}",
            revoke_sign_in,
            "Delete the tokens for a server, here and at its issuer; the next call asks again",
            gives=SignedOut,
            problems=(404,),
            scopes=("approve",),
            limits=(),
        ),
    ),
    tag="Sign-ins",
    about="Sign-ins of owners to MCP servers",
    routes=(
        Route("/sign-in/callback", _page_of("You are not signed in", _callback), methods=["GET"]),
        Route("/sign-in/client.json", _page_of("No client", _client_document), methods=["GET"]),
        Route("/sign-in/{turn}/{secret}", _page_of("This link is not valid", _linked), methods=["GET", "POST"]),
    ),
)
OFFER_GROUP = CallGroup(
    (*OFFER_ENDPOINTS, *APP_ENDPOINTS, *OWN_ENDPOINTS),
    tag="MCP",
    about="Prompts and resources of MCP servers, for messages that people write; apps; servers of the owner",
    routes=(Route("/mcp-app", app_frame, methods=["GET"]),),
)
