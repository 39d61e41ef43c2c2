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

from app.api.http.connection import SafeHeaders
from app.api.http.cross_origin import cross_origin
from app.api.http.errors import HANDLERS, failed
from app.api.identity.authenticator import Authenticator
from app.api.identity.stored import StoredTokens
from app.api.identity.way import Authenticate
from app.api.plans import OwnerPlans
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
from app.setup.databases import api_database, database_url, session_url
from app.setup.engine import background, started
from app.setup.identity import allowed_origins, open_ways
from app.setup.models import check_chosen, default_among, default_model, open_models
from app.setup.plans import read_plans
from app.setup.policies import allowances, recorded_owners, tool_settings, turn_ceilings, turn_limits, webhook_receiver
from app.setup.samples import offer_samples
from app.storage.database import Database, connect
from app.storage.documents import Documents
from app.storage.migrations import upgrade_in_thread
from app.storage.tokens import Tokens
from app.storage.turns import ToolResults
from app.tools.assembly import open_toolset
from app.tools.library.documents import document_tools
from app.tools.library.results import result_tools
from app.tools.outputs import Outputs
from app.tools.toolset import Toolset
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
        routes=[*routes(), *page_routes()],
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
) -> AsyncIterator[Services]:
    """Everything between Postgres and the API, started in this order and stopped in reverse."""
    receiver, allowed, plans = webhook_receiver(settings), allowances(settings), read_plans(settings, plan_of)
    model = default_model(settings) if models is None else default_among(models, settings.model)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(database_url(settings))
        direct_url = session_url(settings, url)
        await upgrade_in_thread(direct_url)
        options: dict[str, Any] = {
            "size": settings.pool_size,
            "statement_timeout": settings.postgres_timeout,
            "statement_cache": settings.statement_cache,
        }
        database = await stack.enter_async_context(connect(url, **options))
        api = await stack.enter_async_context(api_database(settings, direct_url, database, **options))
        stored = StoredTokens(Tokens(database))
        ways = await stack.enter_async_context(open_ways(settings, Tokens(database), stored, authenticate))
        if models is None:
            models = await stack.enter_async_context(open_models(settings))
        check_chosen(models, settings)
        if toolset is None:
            toolset = await stack.enter_async_context(_own_toolset(settings, database, outputs))
        if model == DEMO:
            await offer_samples(Documents(database), LOCAL_OWNER)
        engine = await stack.enter_async_context(
            started(settings, direct_url, database, api, models, toolset, hooks, receiver, plans)
        )
        worker, owner_plans = engine.worker, OwnerPlans(plans)
        streams = OwnerStreams(owner_plans)
        await stack.enter_async_context(background(engine.failed, stored.record_uses, StreamWatch(streams).run))
        yield Services(
            Authenticator(ways),
            Storage.of(api, database),
            Live(
                engine.directory,
                engine.chat_wakeups,
                engine.feed,
                worker.wake,
                worker.refresh,
                worker.cancel,
                worker.place,
                worker.begin,
            ),
            Resolver(
                models,
                toolset,
                Defaults(model, settings.system_prompt, turn_limits(settings), turn_ceilings(settings)),
                allowed,
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
            engine.refusals.note,
            engine.failed,
            is_ready=lambda: not worker.draining,
            drain=worker.drain,
        )


@asynccontextmanager
async def _own_toolset(settings: Settings, database: Database, outputs: Outputs | None) -> AsyncIterator[Toolset]:
    own = document_tools(Documents(database)) + result_tools(ToolResults(database), settings.max_result_chars)
    async with open_toolset(own, tool_settings(settings), outputs) as toolset:
        yield toolset


async def _terminate_process_after(failed: asyncio.Event) -> None:
    """Stops the runner of the app as a signal does. Its exit status is the runner's."""
    await failed.wait()
    os.kill(os.getpid(), signal.SIGTERM)
