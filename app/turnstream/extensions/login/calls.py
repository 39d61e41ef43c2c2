"""The calls of the API about sessions, and the pages that a browser visits during a login."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from html import escape
from http import HTTPStatus
from typing import Annotated, Final
from urllib.parse import parse_qs, quote
from uuid import UUID

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from turnstream.api.http.call_group import CallGroup
from turnstream.api.http.endpoint import Endpoint
from turnstream.api.services import identity_of, path_for, services_of
from turnstream.api.views import json_response
from turnstream.domain.errors import Unauthorized
from turnstream.domain.identity import SCOPES, Identity, checked_scopes
from turnstream.extensions.login.flow import (
    PENDING_LIFE,
    WAY_BACK,
    LoginFlow,
    OpenedSession,
    PendingLogin,
    key_of,
    logout_address,
)
from turnstream.extensions.login.issuers import LoginFailed
from turnstream.extensions.login.sessions import cookie_of, digest_of
from turnstream.kit.text import unstorable
from turnstream.storage.database import ANONYMOUS, OWNER, Statement
from turnstream.storage.owners.tokens import LOGIN_SESSION

GET_SESSION = Statement("SELECT id, name, issuer, created_at, expires_at FROM login_sessions WHERE id = :id")
_LONGEST: Final = 4096  # maximum characters of a parameter of the callback
_MOST_FORM: Final = 131_072  # maximum bytes of the form that an issuer posts
_LONGEST_HINT: Final = 3500  # characters: browsers refuse cookies of more than 4,096 bytes
_MOST_PENDING: Final = 4  # logins that may be pending in a browser at one time
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "X-Robots-Tag": "noindex",
}
_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 40rem; margin: 2rem auto; padding: 0 1rem;
  color: #1a1a1a; background: #fff }}
</style></head><body><h1>{title}</h1>{body}</body></html>
"""


class LoginIssuerOut(BaseModel):
    name: str
    title: str
    url: Annotated[str, Field(description="where the browser goes to sign in")]


class SessionOut(BaseModel):
    """The session of a browser, without its cookie."""

    id: UUID
    owner: str
    name: Annotated[str | None, Field(description="of the person, as the issuer has it")]
    issuer: str
    scopes: list[str]
    created_at: datetime
    expires_at: datetime


class LoginOut(BaseModel):
    issuers: list[LoginIssuerOut]
    session: Annotated[SessionOut | None, Field(description="null: nobody has signed in in this browser")]


class SessionEnded(BaseModel):
    ended: Annotated[UUID | None, Field(description="null: the request came with a token, which has no session")]
    logout_url: Annotated[
        str | None, Field(description="where the issuer ends its own session; null: it has no such address")
    ]


class _LoginRefused(Exception):
    """Refuses a login, with a status and a sentence for the person."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


# --- calls -----------------------------------------------------------------------------------------------------------


async def get_session(request: Request) -> Response:
    if (sign_in := _sign_in(request)) is None:
        return json_response(LoginOut(issuers=[], session=None))
    issuers = [
        LoginIssuerOut(name=name, title=issuer.title, url=f"{sign_in.logins.base}/login?issuer={quote(name)}")
        for name, issuer in sign_in.logins.issuers.items()
    ]
    session = None
    if cookie_of(request, sign_in.logins) is not None:
        try:
            identity = await services_of(request).authenticator.identity_of(request)
            OWNER.set(identity.owner)
            ANONYMOUS.set(False)
            session = await _session_of(request, identity)
        except Unauthorized:
            session = None
    return json_response(LoginOut(issuers=issuers, session=session))


async def _session_of(request: Request, identity: Identity) -> SessionOut | None:
    if (id := _session_id(identity)) is None:
        return None
    row = await services_of(request).storage.database.row(GET_SESSION, id=id)
    if row is None:
        return None
    return SessionOut(**dict(row), owner=identity.owner, scopes=list(checked_scopes(identity.scopes)))


async def end_session(request: Request) -> Response:
    sign_in, identity = _sign_in(request), identity_of(request)
    if sign_in is None or (id := _session_id(identity)) is None:
        return json_response(SessionEnded(ended=None, logout_url=None))
    name, url = await sign_in.end(identity, id), None
    if name is not None:
        provider, hint = sign_in.providers[name], request.cookies.get(_hint(sign_in))
        try:
            back = f"{sign_in.logins.base}/"
            url = logout_address(await provider.configuration(), provider.issuer, back, hint)
        except LoginFailed:  # the local session has ended in any case
            url = None
    response = json_response(SessionEnded(ended=id, logout_url=url))
    _clear(response, sign_in)
    return response


def _session_id(identity: Identity) -> UUID | None:
    kind, mark, id = (identity.credential or "").partition(":")
    return UUID(id) if kind + mark == LOGIN_SESSION else None


def _sign_in(request: Request) -> LoginFlow | None:
    """Returns None if the server has no issuer."""
    sign_in = services_of(request).states.get("login")
    return sign_in if isinstance(sign_in, LoginFlow) else None


# --- the way of a browser --------------------------------------------------------------------------------------------


def _page_of(handler: Callable[[Request, LoginFlow], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    async def page(request: Request) -> Response:
        if (sign_in := _sign_in(request)) is None:
            words = "This server has no login on the page; its operator adds one with TURNSTREAM_LOGIN_ISSUER."
            return _page("Nobody can sign in here", f"<p>{words}</p>", 404)
        try:
            return await handler(request, sign_in)
        except _LoginRefused as refused:
            return _refusal(request, refused.status, str(refused))

    return page


def _refusal(request: Request, status: int, sentence: str) -> Response:
    link = f'<p><a href="{escape(path_for(request, "/login"))}">Sign in again</a></p>'
    return _page("You are not signed in", f"<p>{escape(sentence)}</p>{link}", status)


async def _begin(request: Request, sign_in: LoginFlow) -> Response:
    query, issuers = request.query_params, sign_in.logins.issuers
    to, name = query.get("to", ""), query.get("issuer")
    if not WAY_BACK.fullmatch(to):
        raise _LoginRefused(400, "`to` must be empty, `admin`, or the name of a chat behind a `#`.")
    if name is None and len(issuers) > 1:
        return _choice(sign_in, to)
    issuer = issuers.get(name or next(iter(issuers)))
    if issuer is None:
        raise _LoginRefused(400, f"`issuer` must be one of {', '.join(issuers)}.")
    try:
        url, pending = await sign_in.begin(issuer.name, to)
    except LoginFailed as failed:
        raise _LoginRefused(502, str(failed)) from None
    response = RedirectResponse(url, 303, _HEADERS)
    others = [each for each in request.cookies if each.startswith(_pending(sign_in, ""))]
    for each in others[: max(0, len(others) - _MOST_PENDING + 1)]:
        _set(response, sign_in, each, "", 0)
    _set(response, sign_in, _pending(sign_in, pending.key), pending.encoded(), PENDING_LIFE)
    return response


def _choice(sign_in: LoginFlow, to: str) -> Response:
    links = "".join(
        f'<p><a href="?{escape(f"issuer={quote(name)}&to={quote(to)}")}">{escape(issuer.title)}</a></p>'
        for name, issuer in sign_in.logins.issuers.items()
    )
    return _page("Sign in", links)


async def _callback(request: Request, sign_in: LoginFlow) -> Response:
    query = request.query_params
    given = {name: query.get(name) for name in ("state", "code", "iss", "error")}
    if any(value is not None and (len(value) > _LONGEST or unstorable(value)) for value in given.values()):
        raise _LoginRefused(400, "A parameter of the address is not valid.")
    state, code, error = given["state"], given["code"], given["error"]
    if state is None or (code is None) == (error is None) or len(query.multi_items()) != len(query):
        raise _LoginRefused(400, "The address must have `state`, and either `code` or `error`, each once.")
    cookie = _pending(sign_in, key_of(state))
    pending = PendingLogin.decoded(request.cookies.get(cookie, ""))
    # Each issuer has its own callback address, so that the answer of one issuer is never accepted as the answer of
    # another.
    if pending is None or pending.issuer != request.path_params["issuer"] or pending.issuer not in sign_in.providers:
        raise _LoginRefused(
            403, "This login was not begun in this browser, is too old, or was completed already. Are cookies off?"
        )
    try:
        if code is None:
            title = sign_in.logins.issuers[pending.issuer].title
            raise LoginFailed(f"{title} answered: {error}.")
        before = cookie_of(request, sign_in.logins)
        opened = await sign_in.complete(pending, state, code, given["iss"], before)
    except LoginFailed as failed:
        response = _refusal(request, 403, str(failed))
        _set(response, sign_in, cookie, "", 0)
        return response
    response = RedirectResponse(_landing(sign_in, opened), 303, _HEADERS)
    _set(response, sign_in, cookie, "", 0)
    _remember(response, sign_in, opened)
    return response


def _landing(sign_in: LoginFlow, opened: OpenedSession) -> str:
    """Returns the page after a login. Operators without the scope `read` get the operators' page."""
    scopes = opened.identity.scopes
    to = "admin" if "admin" in scopes and "read" not in scopes else opened.to
    return f"{sign_in.logins.base}/{to}"


async def _end_by_issuer(request: Request, sign_in: LoginFlow) -> Response:
    """Handles the request of an issuer to end sessions (Back-Channel Logout 1.0)."""
    headers, issuer = {"Cache-Control": "no-store"}, request.path_params["issuer"]
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_FORM:
            return JSONResponse({"error": "invalid_request"}, 413, headers)
    try:
        tokens = parse_qs(body.decode("utf-8", "replace"), max_num_fields=10).get("logout_token", [])
    except ValueError:
        tokens = []
    if issuer not in sign_in.providers or len(tokens) != 1:
        words = "the form must have one `logout_token`, and the address the name of an issuer"
        return JSONResponse({"error": "invalid_request", "error_description": words}, 400, headers)
    try:
        await sign_in.end_by_issuer(issuer, tokens[0])
    except LoginFailed as failed:
        return JSONResponse({"error": "invalid_request", "error_description": str(failed)}, 400, headers)
    return Response(status_code=HTTPStatus.OK, headers=headers)


# --- cookies ---------------------------------------------------------------------------------------------------------


def _pending(sign_in: LoginFlow, key: str) -> str:
    return sign_in.logins.cookie(f"login_{key}")


def _hint(sign_in: LoginFlow) -> str:
    return f"{'__Secure-' if sign_in.logins.is_secure else ''}turnstream_id_token"


def _remember(response: Response, sign_in: LoginFlow, opened: OpenedSession) -> None:
    """Sets three cookies: the session; a digest of the owner, for the page; and the ID token, which the issuer requires
    at a logout. Browsers send the ID token only with the request that ends the session.
    """
    life = int(sign_in.logins.life)
    _set(response, sign_in, sign_in.logins.cookie("session"), opened.cookie, life)
    owner = digest_of(opened.identity.owner).hex()[:16]
    _set(response, sign_in, sign_in.logins.cookie("signed_in"), owner, life, httponly=False)
    if len(opened.id_token) <= _LONGEST_HINT:
        _set(response, sign_in, _hint(sign_in), opened.id_token, life, path=_path_of_end(sign_in))


def _clear(response: Response, sign_in: LoginFlow) -> None:
    for name in ("session", "signed_in"):
        _set(response, sign_in, sign_in.logins.cookie(name), "", 0, httponly=name == "session")
    _set(response, sign_in, _hint(sign_in), "", 0, path=_path_of_end(sign_in))


def _path_of_end(sign_in: LoginFlow) -> str:
    _, _, rest = sign_in.logins.base.partition("://")
    _, slash, prefix = rest.partition("/")
    return f"{slash}{prefix}/api/session"


def _set(
    response: Response,
    sign_in: LoginFlow,
    name: str,
    value: str,
    age: int,
    path: str = "/",
    *,
    httponly: bool = True,
) -> None:
    """Sets a cookie. It is `lax`, because the issuer redirects the browser here from another site."""
    response.set_cookie(name, value, age, path=path, secure=sign_in.logins.is_secure, httponly=httponly, samesite="lax")


def _page(title: str, body: str, status: int = 200) -> Response:
    return HTMLResponse(_PAGE.format(title=escape(title), body=body), status, _HEADERS)


GROUP = CallGroup(
    (
        Endpoint(
            "GET /api/session",
            get_session,
            "Where a browser signs in, and who has signed in in it",
            gives=LoginOut,
            problems=(500,),
            open=True,
        ),
        Endpoint(
            "DELETE /api/session",
            end_session,
            "End the session of this browser; the answer names where the issuer ends its own",
            gives=SessionEnded,
            scopes=SCOPES,
            limits=(),
        ),
    ),
    tag="Login",
    about="Sessions of people who sign in on the page",
    routes=(
        Route("/login", _page_of(_begin), methods=["GET"]),
        Route("/login/callback/{issuer}", _page_of(_callback), methods=["GET"]),
        Route("/login/backchannel/{issuer}", _page_of(_end_by_issuer), methods=["POST"]),
    ),
)
