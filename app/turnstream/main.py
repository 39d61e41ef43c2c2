"""The composition root: builds and owns all parts of a server."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.types import Lifespan

from turnstream.api.caller import OwnerPlans
from turnstream.api.dispatch import routes_of
from turnstream.api.http.connection import SafeHeaders
from turnstream.api.http.errors import HANDLERS, failed
from turnstream.api.identity.authenticator import Authenticate, Authenticator
from turnstream.api.reads import Reads
from turnstream.api.recent_chats import RecentChats
from turnstream.api.request_secrets import RequestSecrets
from turnstream.api.resolve import Defaults, Resolver
from turnstream.api.routes import CORE
from turnstream.api.services import HttpSettings, Live, Services, Storage
from turnstream.api.streams.response import OwnerStreams
from turnstream.api.streams.watch import StreamWatch
from turnstream.config import Settings
from turnstream.domain.plans import Plan
from turnstream.engine.hooks import Hooks
from turnstream.extension import (
    Extension,
    ServerProcess,
    copy_of,
    model_apis,
    own_cell,
    recordings_of,
    search_of,
    secrets_of,
    selected,
)
from turnstream.llm.models.api import schemas_by_name
from turnstream.llm.models.catalog import Models
from turnstream.setup.databases import api_database, database_url, session_url
from turnstream.setup.engine import Engine, background, started
from turnstream.setup.identity import metrics_token
from turnstream.setup.parts import (
    Given,
    Parts,
    check_extensions,
    chosen_model,
    opened_models,
    opened_toolset,
    opened_ways,
)
from turnstream.setup.plans import read_plans
from turnstream.setup.policies import allowances, most_rounds, turn_limits
from turnstream.storage.database import connect
from turnstream.storage.migrations import upgrade_in_thread
from turnstream.stream.delivery import Deliveries
from turnstream.tools.outputs import Outputs
from turnstream.tools.toolset import Toolset


def create_app(
    settings: Settings,
    models: Models | None = None,
    toolset: Toolset | None = None,
    hooks: Sequence[Hooks] = (),
    outputs: Outputs | None = None,
    authenticate: Authenticate | None = None,
    plan_of: Callable[[str], Plan | str | None] | None = None,
    extensions: Sequence[Extension] | None = None,
) -> Starlette:
    """Returns the server. `models` and `toolset` replace the models and tools of the settings. `hooks` are called at
    events of turns; `outputs` validate and refine the output of structured turns. `authenticate` returns the identity
    of a request, or None; the request then needs a token of the server. `plan_of` returns the plan of an owner, or the
    name of the plan. `extensions` replace the installed extensions.
    """
    given = Given(models, toolset, outputs, authenticate, plan_of, hooks, extensions)

    @asynccontextmanager
    async def run(app: Starlette) -> AsyncIterator[None]:
        async with running(settings, given) as services:
            app.state.services = services
            failure = asyncio.create_task(_terminate_process_after(services.failed))
            yield
            failure.cancel()

    return _starlette(settings, selected(settings, given.extensions), run)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Runs an app from `create_app` that is mounted in another app. Enter this in the lifespan of the other app, which
    does not run the mounted app.
    """
    async with app.router.lifespan_context(app):
        yield


def application(settings: Settings) -> Starlette:
    """Returns the HTTP side alone. It answers as soon as its `state.services` are set to running services."""
    return _starlette(settings, selected(settings))


def _starlette(
    settings: Settings, extensions: Sequence[Extension], lifespan: Lifespan[Starlette] | None = None
) -> Starlette:
    parts = [CORE, *(part for extension in extensions for part in extension.calls())]
    app = Starlette(
        routes=routes_of(parts),
        lifespan=lifespan,
        exception_handlers=dict(HANDLERS),
        # The last middleware answers failures of the calls below it. The others enclose it, so that such an answer has
        # their headers, too.
        middleware=[
            Middleware(SafeHeaders),
            *(each for extension in extensions for each in extension.middleware(settings)),
            Middleware(ServerErrorMiddleware, handler=failed),
        ],
    )
    app.state.call_groups = parts
    app.state.model_parameters = lambda: schemas_by_name(model_apis(settings, extensions))
    app.router.redirect_slashes = False  # a redirect would name a host that the client chose
    return app


@asynccontextmanager
async def running(
    settings: Settings, given: Given | None = None, process: ServerProcess | None = None
) -> AsyncIterator[Services]:
    """Starts everything between Postgres and the API in the order of the code, and stops it in reverse. `process` is
    this process, if the server has several processes.
    """
    async with AsyncExitStack() as stack:
        given = given or Given()
        # Read before the database is touched, so that a wrong setting does not create a database.
        extensions = selected(settings, given.extensions)
        plans = read_plans(settings, extensions, given.plan_of)
        model = chosen_model(settings, given, extensions)
        allowed = allowances(settings, model_apis(settings, extensions))
        metrics_token(settings)
        secrets = secrets_of(settings, extensions)
        copy = copy_of(settings, extensions)
        models = await opened_models(settings, given, extensions, stack)
        await check_extensions(extensions, settings, models)
        url = await stack.enter_async_context(database_url(settings, extensions))
        direct_url = session_url(settings, url)
        await upgrade_in_thread(direct_url)
        options: dict[str, Any] = {
            "size": settings.pool_size,
            "statement_timeout": settings.postgres_timeout,
            "statement_cache": settings.statement_cache,
            "schema": settings.db_schema,
            "pooled": settings.session_url is not None,
        }
        database = await stack.enter_async_context(connect(url, **options))
        api = await stack.enter_async_context(api_database(settings, direct_url, database, **options))
        database.codec = api.codec = await stack.enter_async_context(secrets.codec(url))
        stored, ways = await opened_ways(settings, given, extensions, database, stack)
        toolset = await opened_toolset(settings, given, extensions, database, stack)
        toolset.secrets = of_requests = await secrets.of_requests(database) or RequestSecrets()
        models = models.with_presets(toolset.presets, model)
        interval = copy.renewal_interval if copy else None
        parts = Parts(
            settings,
            database,
            plans,
            models,
            toolset,
            given.hooks,
            extensions,
            interval,
            secrets.ids,
        )
        engine = await stack.enter_async_context(started(parts, direct_url, process))
        owner_plans = OwnerPlans(plans)
        streams = OwnerStreams(owner_plans)
        await stack.enter_async_context(background(engine.failed, stored.record_uses, StreamWatch(streams).run))
        search, cell = search_of(extensions, api), own_cell(settings, extensions)
        storage = Storage.of(api, database, search, cell)
        opened = copy.open(api, engine.replica, engine.renewals) if copy else nullcontext()
        read_copy = await stack.enter_async_context(opened)
        services = Services(
            authenticator=Authenticator(ways),
            admissions=[work.admit for work in engine.works.values() if work.admit is not None],
            storage=storage,
            reads=Reads(storage.reads, read_copy),
            live=_live(engine),
            resolver=Resolver(
                models,
                toolset,
                Defaults(model, settings.system_prompt, turn_limits(settings), most_rounds(settings)),
                allowed,
                of_requests,
            ),
            http=_http_settings(settings, recordings_of(settings, extensions).owners),
            plans=owner_plans,
            streams=streams,
            recent_chats=RecentChats(engine.worker.ended),
            states={name: work.state for name, work in engine.works.items()},
            note_refusal=engine.refusals.note,
            failed=engine.failed,
            is_ready=lambda: not engine.worker.draining,
            drain=engine.worker.drain,
            neighbours=process.neighbours(engine.replica) if process else None,
            find_member=next((work.find_member for work in engine.works.values() if work.find_member), None),
        )
        serving = [partial(task, services) for work in engine.works.values() for task in work.serving]
        await stack.enter_async_context(background(engine.failed, *serving))
        yield services


def _live(engine: Engine) -> Live:
    worker = engine.worker
    return Live(
        directory=engine.directory,
        deliveries=Deliveries(),
        feed=next((work.feed for work in engine.works.values() if work.feed), None),
        notify=engine.signals.changed.send,
        notify_owner=engine.signals.owner_changed.send,
        wake=worker.wake,
        refresh=worker.refresh,
        cancel=worker.cancel,
        reserve_slot=worker.reserve_slot,
        begin=worker.begin,
        check_message=engine.checks.check_message,
    )


def _http_settings(settings: Settings, recorded_owners: frozenset[str] | None) -> HttpSettings:
    return HttpSettings(
        max_body_bytes=settings.max_body_bytes,
        max_upload_bytes=settings.max_upload_bytes,
        stream_life=settings.stream_life,
        heartbeat=settings.heartbeat,
        recorded_owners=recorded_owners,
        metrics_token=metrics_token(settings),
    )


async def _terminate_process_after(failed: asyncio.Event) -> None:
    """Stops the program that runs the app, as a signal does. That program determines the exit status."""
    await failed.wait()
    os.kill(os.getpid(), signal.SIGTERM)
