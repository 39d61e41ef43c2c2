"""Serves the page of an approval link, and the form on this page. The address is the only credential. A GET decides
nothing, because mail scanners, for example, send GET requests.
"""

import json
from datetime import UTC, datetime
from html import escape
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from turnstream.api.actions import store_answers
from turnstream.api.http.call_group import CallGroup
from turnstream.api.http.endpoint import Endpoint
from turnstream.api.http.reading import id_of
from turnstream.api.schemas.responses import Revoked
from turnstream.api.services import services_and_owner, services_of
from turnstream.api.views import json_response
from turnstream.domain.asks import AskAnswer
from turnstream.domain.errors import NotFound, RequestRefused
from turnstream.domain.turns import ENDED
from turnstream.extensions.approval_links.links import GET_LINKED_ASK, Link, LinkSigner, identity_of
from turnstream.kit.clock import CLOCK
from turnstream.kit.text import unstorable
from turnstream.storage.chats.actions import Decision
from turnstream.storage.database import OWNER, Row, Statement

REVOKE_LINKS = Statement(
    """
    UPDATE asks SET links_revoked_at = coalesce(links_revoked_at, now())
    FROM turns JOIN chats ON chats.id = chat_id
    WHERE turns.id = turn_id AND turn_id = :turn AND chat_id = :chat AND owner = :owner AND tool_use_id = :tool_use_id
    RETURNING turn_id
    """
)
_MOST_BYTES = 16_384  # maximum bytes of a form
_MOST_INPUT = 100_000  # maximum characters of an input that the page shows
_LONGEST_REASON = 2000
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "X-Robots-Tag": "noindex",
}
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 40rem; margin: 2rem auto; padding: 0 1rem;
  color: #1a1a1a; background: #fff }}
pre {{ background: #f3f3f3; padding: 1rem; white-space: pre-wrap; overflow-wrap: anywhere }}
dt {{ color: #555 }} dd {{ margin: 0 0 .75rem }} textarea {{ width: 100%; box-sizing: border-box; font: inherit }}
button {{ font: inherit; padding: .5rem 1.5rem; margin: .75rem .5rem 0 0 }}
</style></head><body><h1>{title}</h1>{body}</body></html>
"""
_FORM = """<form method="post"><label for="reason">Reason, if you deny</label>
<textarea id="reason" name="reason" rows="3" maxlength="2000"></textarea>
<button name="decision" value="approve">Approve</button><button name="decision" value="deny">Deny</button></form>"""


class _LinkRefused(Exception):
    """The link is refused, with an HTTP status and a sentence for the person."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


async def _page_of_link(request: Request) -> Response:
    return await (_take if request.method == "POST" else _show)(request)


async def _show(request: Request) -> Response:
    try:
        _, _, row = await _opened(request)
    except _LinkRefused as refused:
        return _page("This link is not valid", f"<p>{escape(str(refused))}</p>", refused.status)
    return _page(f"Approve {row['name']}?", _described(row) + _FORM)


async def _take(request: Request) -> Response:
    services = services_of(request)
    try:
        link, _, row = await _opened(request)
        answer = await _answer_of(request)
    except _LinkRefused as refused:
        return _page("Nothing was decided", f"<p>{escape(str(refused))}</p>", refused.status)
    OWNER.set(row["owner"])
    decision = Decision(link.tool_use_id, link.digest, answer, "decision")
    try:
        turn = await services.storage.turns.get(row["owner"], row["chat_id"], link.turn)
        await store_answers(services, identity_of(link, row["owner"]), turn, [decision])
    except RequestRefused as refused:  # the call has another answer by now, or no longer waits
        return _page("Nothing was decided", f"<p>{escape(refused.detail)}</p>", refused.status)
    word = "approved" if answer.kind == "approve" else "denied"
    return _page(f"You have {word} this call of {row['name']}", "<p>This link is used up.</p>")


async def revoke(request: Request) -> Response:
    services, owner = services_and_owner(request)
    chat, turn, call = id_of(request, "chat"), id_of(request, "turn"), request.path_params["tool_use_id"]
    found = None
    if not unstorable(call):
        actions = services.storage.turns
        await actions.get(owner, chat, turn)
        found = await services.storage.database.row(REVOKE_LINKS, owner=owner, chat=chat, turn=turn, tool_use_id=call)
    if found is None:
        raise NotFound(f"There is no call {call!r} of this turn that waits or has waited for an answer.")
    return json_response(Revoked(revoked=turn))


async def _opened(request: Request) -> tuple[Link, LinkSigner, Row]:
    """Returns the link, its signer, and the row of its call. Raises _LinkRefused."""
    services = services_of(request)
    signer = services.states.get("approval_links")
    link = signer.verify(request.path_params["token"]) if isinstance(signer, LinkSigner) else None
    if link is None or not isinstance(signer, LinkSigner):
        raise _LinkRefused(
            404, "The address is incomplete or was changed. Open the address exactly as you received it."
        )
    row = await services.storage.database.row(GET_LINKED_ASK, turn=link.turn, tool_use_id=link.tool_use_id)
    if row is None or row["digest"] != link.digest:
        raise _LinkRefused(404, "The call does not exist any more.")
    principals = row["approvers"] or [f"person:{row['owner']}"]
    if row["links_revoked_at"] is not None or link.principal not in principals:
        raise _LinkRefused(410, "The link was revoked.")
    if row["answer"] is not None:
        raise _LinkRefused(409, "The call already has an answer.")
    if row["status"] in ENDED or row["cancel_requested"]:
        raise _LinkRefused(409, "The call does not wait for an answer any more.")
    if link.expires_at <= CLOCK.seconds():
        raise _LinkRefused(410, "The link has expired.")
    return link, signer, row


async def _answer_of(request: Request) -> AskAnswer:
    """Returns the decision in the form. Raises _LinkRefused."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise _LinkRefused(413, f"The form must have at most {_MOST_BYTES:,} bytes.")
    fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=10)
    reason = " ".join(fields.get("reason", [])).strip()
    if len(reason) > _LONGEST_REASON or unstorable(reason):
        raise _LinkRefused(422, f"The reason must have at most {_LONGEST_REASON:,} characters, and no null character.")
    match fields.get("decision"):
        case ["approve"]:
            return AskAnswer("approve")
        case ["deny"]:
            return AskAnswer("deny", reason)
        case _:
            raise _LinkRefused(422, "`decision` must be approve or deny.")


def _described(row: Row) -> str:
    input = row["input"] or "{}"
    try:
        shown = json.dumps(json.loads(input), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        shown = input
    if len(shown) > _MOST_INPUT:
        shown = f"{shown[:_MOST_INPUT]}…"
    expires_at: datetime | None = row["expires_at"]
    deadline = "none" if expires_at is None else f"{expires_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    return (
        f"<dl><dt>Tool</dt><dd>{escape(row['name'])}</dd><dt>Input</dt><dd><pre>{escape(shown)}</pre></dd>"
        f"<dt>Deadline</dt><dd>{deadline}</dd></dl>"
    )


def _page(title: str, body: str, status: int = 200) -> Response:
    return HTMLResponse(_PAGE.format(title=escape(title), body=body), status, _HEADERS)


GROUP = CallGroup(
    (
        Endpoint(
            "DELETE /api/chats/{chat}/turns/{turn}/links/{tool_use_id}",
            revoke,
            "Revoke the approval links of a call",
            gives=Revoked,
            problems=(404,),
            scopes=("approve",),
            limits=("writes",),
        ),
    ),
    tag="Approval links",
    about="Signed addresses that show one call and take the decision about it",
    routes=(Route("/approvals/{token}", _page_of_link, methods=["GET", "POST"]),),
)
