"""The composition root: builds and owns everything a server is made of."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.types import Lifespan

from app.api.cell import Cell
from app.api.http.connection import SafeHeaders
from app.api.http.cross_origin import cross_origin
from app.api.http.errors import HANDLERS, failed
from app.api.identity.authenticator import Authenticator
from app.api.identity.way import Authenticate
from app.api.neighbours import Neighbours
from app.api.openai.routes import openai_routes
from app.api.overview import Overview
from app.api.places import KnownPlaces
from app.api.plans import OwnerPlans
from app.api.reads import Reads
from app.api.resolve import Defaults, Resolver
from app.api.routes import routes
from app.api.services import HttpSettings, Live, Services, Storage
from app.api.streams.response import OwnerStreams
from app.api.streams.watch import StreamWatch
from app.config import Settings
from app.domain.identity import LOCAL_OWNER
from app.domain.plans import Plan
from app.engine.hooks import Hooks
from app.llm.demo.provider import DEMO
from app.llm.models.catalog import Models
from app.setup.databases import api_database, database_url, session_url, standby_database, standby_url
from app.setup.engine import ProcessPlace, background, started
from app.setup.identity import allowed_origins
from app.setup.parts import FROM_SETTINGS, WITH_DATABASE, Given, Parts
from app.setup.policies import recorded_owners, turn_ceilings, turn_limits
from app.setup.samples import offer_samples
from app.storage.database import connect
from app.storage.documents import Documents
from app.storage.migrations import upgrade_in_thread
from app.storage.moves import Moves
from app.storage.standby import Standby
from app.stream.delivery import Deliveries
from app.tools.outputs import Outputs
from app.tools.toolset import Toolset
from app.tracing import TRACING
from app.web.page import page_routes


def create_app(
    settings: Settings,
    models: Models | None = None,
    toolset: Toolset | None = None,
    hooks: Sequence[Hooks] = (),
    outputs: Outputs | None = None,
    authenticate: Authenticate | None = None,
    plan_of: Callable[[str], Plan | str | None] | None = None,
) -> Starlette:
    """The server. `models` and `toolset` take the place of those of the settings. `hooks` are called for turns;
    `outputs` validate and refine the output of structured turns. `authenticate` gives the identity of a request, or
    None for one that has a token of the server; nobody is answered without either. `plan_of` returns the plan of an
    owner, or its name.
    """

    @asynccontextmanager
    async def run(app: Starlette) -> AsyncIterator[None]:
        async with running(settings, models, toolset, hooks, outputs, authenticate, plan_of) as services:
            app.state.services = services
            failure = asyncio.create_task(_terminate_process_after(services.failed))
            yield
            failure.cancel()

    return _starlette(settings, run)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Runs an app of `create_app` that is mounted in another one, which does not run it: enter this in the lifespan of
    that one.
    """
    async with app.router.lifespan_context(app):
        yield


def application(settings: Settings, services: Services) -> Starlette:
    """The HTTP side alone, around services that already run."""
    app = _starlette(settings)
    app.state.services = services
    return app


def _starlette(settings: Settings, lifespan: Lifespan[Starlette] | None = None) -> Starlette:
    app = Starlette(
        routes=[*routes(), *openai_routes(), *page_routes()],
        lifespan=lifespan,
        exception_handlers=dict(HANDLERS),
        # The last one answers what failed below it inside of the others, so that such an answer has their headers too.
        middleware=[
            Middleware(SafeHeaders),
            *cross_origin(allowed_origins(settings), settings.cors_credentials),
            Middleware(ServerErrorMiddleware, handler=failed),
        ],
    )
    app.router.redirect_slashes = False  # a redirect would name the host of the request, which the client chose
    return app


@asynccontextmanager
async def running(
    settings: Settings,
    models: Models | None = None,
    toolset: Toolset | None = None,
    hooks: Sequence[Hooks] = (),
    outputs: Outputs | None = None,
    authenticate: Authenticate | None = None,
    plan_of: Callable[[str], Plan | str | None] | None = None,
    place: ProcessPlace | None = None,
) -> AsyncIterator[Services]:
    """Everything between Postgres and the API, started in this order and stopped in reverse. `place` is that of one of
    several processes.
    """
    if settings.traces:
        TRACING.begin(settings.traces_content)
    async with AsyncExitStack() as stack:
        parts = Parts(settings, Given(models, toolset, outputs, authenticate, plan_of), stack)
        for step in FROM_SETTINGS.values():
            await step(parts)
        standby_url(settings)  # before the database is touched, too
        url = await stack.enter_async_context(database_url(settings))
        direct_url = session_url(settings, url)
        await upgrade_in_thread(direct_url)
        options: dict[str, Any] = {
            "size": settings.pool_size,
            "statement_timeout": settings.postgres_timeout,
            "statement_cache": settings.statement_cache,
            "schema": settings.db_schema,
        }
        parts.database = database = await stack.enter_async_context(connect(url, **options))
        api = await stack.enter_async_context(api_database(settings, direct_url, database, **options))
        for step in WITH_DATABASE.values():
            await step(parts)
        if parts.model == DEMO:
            await offer_samples(Documents(database), LOCAL_OWNER)
        engine = await stack.enter_async_context(
            started(
                settings,
                direct_url,
                database,
                api,
                parts.models,
                parts.toolset,
                hooks,
                parts.receiver,
                parts.plans,
                place,
            )
        )
        worker, owner_plans = engine.worker, OwnerPlans(parts.plans)
        streams = OwnerStreams(owner_plans)
        cell = Cell(settings.cell, Moves(database), worker.release)
        await stack.enter_async_context(
            background(engine.failed, parts.stored.record_uses, StreamWatch(streams).run, cell.follow)
        )
        storage = Storage.of(api, database, parts.plans.default.running_turns, settings.cell)
        copy = await stack.enter_async_context(standby_database(settings))
        standby = Standby(copy, engine.replica, engine.renewals) if copy else None
        yield Services(
            Authenticator(parts.ways),
            cell,
            storage,
            Reads(storage.reads, standby, settings.standby_staleness),
            Live(
                engine.directory,
                Deliveries() if settings.stream_sender == "direct" else None,
                engine.chat_wakeups,
                engine.feed,
                worker.wake,
                worker.refresh,
                worker.cancel,
                worker.place,
                worker.begin,
            ),
            Resolver(
                parts.models,
                parts.toolset,
                Defaults(parts.model, settings.system_prompt, turn_limits(settings), turn_ceilings(settings)),
                parts.allowed,
            ),
            HttpSettings(
                settings.max_body_bytes,
                settings.max_turn_bytes,
                settings.max_upload_bytes,
                settings.stream_life,
                settings.heartbeat,
                recorded_owners(settings),
                settings.browser_token_life,
            ),
            owner_plans,
            streams,
            Overview(database, parts.models, parts.plans.default.running_turns),
            KnownPlaces(worker.ended),
            engine.refusals.note,
            engine.failed,
            is_ready=lambda: not worker.draining,
            drain=worker.drain,
            neighbours=Neighbours(place.folder, place.number, engine.replica) if place else None,
        )


async def _terminate_process_after(failed: asyncio.Event) -> None:
    """Stops the runner of the app as a signal does. Its exit status is the runner's."""
    await failed.wait()
    os.kill(os.getpid(), signal.SIGTERM)
