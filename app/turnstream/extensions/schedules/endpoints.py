"""Handlers of schedules."""

from typing import Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.http.reading import id_of, limit_of, read_body
from turnstream.api.schemas.responses import Deleted
from turnstream.api.schemas.tools import HttpToolIn, ProviderToolIn, ToolIn
from turnstream.api.services import Services, identity_of, path_for, services_and_owner
from turnstream.api.views import json_response
from turnstream.domain.chats import Chat
from turnstream.domain.errors import Forbidden, RequestRefused
from turnstream.domain.identity import Identity
from turnstream.domain.secret_headers import masked_settings, servers_of
from turnstream.extensions.schedules.rules import Rule, shortest
from turnstream.extensions.schedules.schemas import (
    ScheduleIn,
    ScheduleList,
    ScheduleOut,
    ScheduleRunOut,
    ScheduleRuns,
    TriggerIn,
)
from turnstream.extensions.schedules.settings import ScheduleSettings
from turnstream.extensions.schedules.store import ScheduleDraft, Schedules
from turnstream.kit.clock import CLOCK
from turnstream.kit.ids import new_id
from turnstream.libraries.secrets.credentials import credentials_of
from turnstream.storage.database import Row
from turnstream.storage.rows import from_json

_LARGEST = 100_000  # characters of the JSON of a request


async def create_schedule(request: Request) -> Response:
    services, owner = services_and_owner(request)
    given, _ = await read_body(request, ScheduleIn)
    schedules, settings = _schedules(services), settings_of(services)
    draft = await _draft(request, services, given, settings)
    row = await schedules.create(owner, draft, settings.schedules_per_owner)
    made = _out(row)
    return json_response(made, 201, {"Location": path_for(request, f"/api/schedules/{made.id}")})


async def list_schedules(request: Request) -> Response:
    services, owner = services_and_owner(request)
    rows = await _schedules(services).list(owner)
    return json_response(ScheduleList(schedules=[_out(row) for row in rows]))


async def get_schedule(request: Request) -> Response:
    services, owner = services_and_owner(request)
    return json_response(_out(await _schedules(services).get(owner, id_of(request, "schedule"))))


async def replace_schedule(request: Request) -> Response:
    services, owner = services_and_owner(request)
    id, schedules = id_of(request, "schedule"), _schedules(services)
    given, _ = await read_body(request, ScheduleIn)
    await schedules.get(owner, id)
    return json_response(
        _out(await schedules.change(owner, id, await _draft(request, services, given, settings_of(services))))
    )


async def delete_schedule(request: Request) -> Response:
    services, owner = services_and_owner(request)
    id = id_of(request, "schedule")
    await _schedules(services).delete(owner, id)
    return json_response(Deleted(deleted=id))


async def list_runs(request: Request) -> Response:
    services, owner = services_and_owner(request)
    limit = limit_of(request, default=50, most=500)
    rows = await _schedules(services).runs(owner, id_of(request, "schedule"), limit)
    return json_response(ScheduleRuns(runs=[run_out(row) for row in rows]))


async def run_now(request: Request) -> Response:
    services, owner = services_and_owner(request)
    row = await _schedules(services).run_now(owner, id_of(request, "schedule"))
    return json_response(run_out(row), 202)


async def _draft(request: Request, services: Services, given: ScheduleIn, settings: ScheduleSettings) -> ScheduleDraft:
    """Checks everything that can be checked before the first run. Raises RequestRefused and Forbidden."""
    identity = unrestricted(request, "A schedule")
    if (given.cron is None) == (given.every is None):
        raise RequestRefused("`cron` or `every` must be set, and not both.", field="cron")
    rule, now = Rule(given.cron, given.every, given.zone), await _schedules(services).now()
    first = rule.first(now)
    if shortest(rule, now) < settings.schedule_interval:
        field = "every" if given.cron is None else "cron"
        detail = f"`{field}` must leave at least {settings.schedule_interval:g} seconds between two runs."
        raise RequestRefused(detail, field=field)
    text = await checked_request(services, identity.owner, given)
    return ScheduleDraft(
        given.name, given.chat, text, identity.plan, rule, given.missed, given.grace, first, given.paused
    )


def unrestricted(request: Request, what: str) -> Identity:
    """Returns the caller. Raises Forbidden for a restricted credential."""
    identity = identity_of(request)
    if identity.is_bound or identity.fixed or identity.folder is not None:
        raise Forbidden(f"{what} outlasts its credential: a restricted credential may not create one.")
    return identity


async def checked_request(services: Services, owner: str, given: ScheduleIn | TriggerIn) -> str:
    """Returns the JSON of the message. Raises RequestRefused."""
    if any(map(_has_secrets, given.request.tools or ())):
        detail = "`request.tools` must have no secrets: name a tool that the settings of the chat declare."
        raise RequestRefused(detail, field="request.tools")
    params = given.request.params
    if params is not None and any(map(credentials_of, servers_of(params.given))):
        detail = "`request.params.mcp_servers` must have no credentials: set the parameter in the settings of the chat."
        raise RequestRefused(detail, field="request.params.mcp_servers")
    text = given.request.model_dump_json(exclude_unset=True)
    if len(text) > _LARGEST:
        raise RequestRefused(f"`request` must have at most {_LARGEST:,} characters of JSON.", field="request")
    now = CLOCK.now()
    chat = (
        Chat(new_id(), owner, given.name, None, {}, created_at=now, updated_at=now)
        if given.chat is None
        else await services.storage.chats.get(owner, given.chat)
    )
    try:
        services.resolver.resolve(given.request, chat, None)
    except RequestRefused as error:
        raise RequestRefused(error.detail, field=f"request.{error.field}" if error.field else "request") from None
    return text


def _has_secrets(tool: ToolIn) -> bool:
    if isinstance(tool, ProviderToolIn):
        return bool(credentials_of(tool.definition))
    return isinstance(tool, HttpToolIn) and bool(tool.headers)


def _schedules(services: Services) -> Schedules:
    return Schedules(services.storage.of_owner)


def settings_of(services: Services) -> ScheduleSettings:
    settings = services.states["schedules"]
    assert isinstance(settings, ScheduleSettings)
    return settings


def _out(row: Row) -> ScheduleOut:
    apart = {"chat", "request", "last_run"}
    values: dict[str, Any] = {name: row[name] for name in ScheduleOut.model_fields if name not in apart}
    request, last = masked_settings(from_json(row["request"])), last_run(row)
    return ScheduleOut(chat=row["chat_id"], request=request, last_run=last, **values)


def last_run(row: Row) -> ScheduleRunOut | None:
    found = row["last_run"]
    return None if found is None else ScheduleRunOut.model_validate_json(found)


def run_out(row: Row) -> ScheduleRunOut:
    turn: UUID | None = row["turn_id"]
    return ScheduleRunOut(
        tick=row["tick"],
        state=row["state"],
        turn=turn,
        chat=row["chat_id"],
        missed=row["missed"],
        error=row["error"],
    )
