"""Handlers of the members of a chat: calls of the chat's owner, and calls of a member."""

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.http.reading import id_of, limit_of, read_body
from turnstream.api.services import identity_of, services_and_owner, services_of
from turnstream.api.views import json_response
from turnstream.domain.errors import RequestRefused
from turnstream.extensions.sharing.endpoints import sharing_of
from turnstream.extensions.sharing.members import Members
from turnstream.extensions.sharing.schemas import (
    MemberIn,
    MemberList,
    MemberOut,
    MemberRemoved,
    MembershipEnded,
    MembershipList,
    MembershipOut,
)
from turnstream.libraries.logins import owner_name
from turnstream.storage.rows import from_json


async def add_member(request: Request) -> Response:
    services, owner = services_and_owner(request)
    identity, chat = identity_of(request), id_of(request, "chat")
    identity.require_reach(None)
    await services.storage.chats.get(owner, chat)
    members = _members(request)
    asked, _ = await read_body(request, MemberIn)
    row = await members.add(identity, chat, _other_person(asked.member, owner), asked.role)
    return json_response(MemberOut(**dict(row)))


def _other_person(given: str, owner: str) -> str:
    """Returns the name of another owner. Raises RequestRefused if the name is invalid."""
    try:
        name = owner_name(given)
    except ValueError as error:
        raise RequestRefused(f"`member` must be the name of an owner: {error}.", field="member") from None
    if name in {"", owner}:
        raise RequestRefused("`member` must be the name of another owner.", field="member")
    return name


async def list_members(request: Request) -> Response:
    services, owner = services_and_owner(request)
    chat = id_of(request, "chat")
    identity_of(request).require_reach(None)
    await services.storage.chats.get(owner, chat)
    rows = await _members(request).list(owner, chat)
    return json_response(MemberList(members=[MemberOut(**dict(row)) for row in rows]))


async def remove_member(request: Request) -> Response:
    services, owner = services_and_owner(request)
    chat, member = id_of(request, "chat"), request.path_params["member"]
    identity_of(request).require_reach(None)
    await services.storage.chats.get(owner, chat)
    await _members(request).remove(identity_of(request), chat, member)
    return json_response(MemberRemoved(removed=member))


async def list_memberships(request: Request) -> Response:
    rows = await _members(request).memberships(identity_of(request).owner, limit_of(request, default=100, most=1000))
    found = [MembershipOut(**{**dict(row), "waiting": from_json(row["waiting"])}) for row in rows]
    return json_response(MembershipList(memberships=found))


async def leave_chat(request: Request) -> Response:
    identity, chat = identity_of(request), id_of(request, "membership")
    await _members(request).remove(identity, chat, identity.owner)
    return json_response(MembershipEnded(left=chat))


def _members(request: Request) -> Members:
    """Returns the members of chats. Raises Forbidden if sharing is off."""
    return sharing_of(services_of(request)).members
