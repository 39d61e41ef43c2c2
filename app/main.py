"""The composition root: builds and owns everything a server is made of."""

import asyncio
import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from typing import Any

import structlog
from starlette.applications import Starlette

from app.api.auth import LOCAL_OWNER, Authenticator
from app.api.errors import HANDLERS
from app.api.resolve import Defaults
from app.api.routes import routes
from app.api.services import Services
from app.config import Settings, read_environment
from app.domain.errors import ConfigError
from app.domain.ids import new_id
from app.domain.signature import key_of
from app.domain.turns import Limits
from app.engine.executor import ModelPolicy
from app.engine.hooks import Hooks
from app.engine.journaling import Journaling
from app.engine.pace import Pace
from app.engine.rescuer import Rescuer
from app.engine.retries import RetryPolicy
from app.engine.webhooks import Deliveries, Receiver, WebhookPolicy
from app.engine.worker import Worker, WorkerPolicy
from app.llm.chaos import ChaosPlan, ChaosTap
from app.llm.connect import connect_providers
from app.llm.demo import DEMO, DemoProvider
from app.llm.models import Models, Offer
from app.llm.recordings import Recordings, RecordingTap
from app.llm.registry import ProviderSpec, read_registry
from app.llm.tap import Tap
from app.storage.actions import Actions
from app.storage.chat_news import ChatNews
from app.storage.chats import Chats
from app.storage.database import Database, connect, plain_url
from app.storage.documents import Documents
from app.storage.embedded import embedded_postgres
from app.storage.exchanges import Exchanges
from app.storage.journal import Journal
from app.storage.migrations import upgrade_in_thread
from app.storage.queue import Queue
from app.storage.results import Results
from app.storage.session import Session
from app.storage.snapshots import Snapshots
from app.storage.tokens import Tokens
from app.storage.turns import Turns
from app.storage.uploads import Uploads
from app.storage.webhooks import Webhooks
from app.stream.chat_bells import ChatBells
from app.stream.directory import Directory
from app.stream.mirror import Mirror
from app.telemetry import settle_garbage_collector
from app.tools.assembly import Wanted, open_toolset
from app.tools.documents import document_tools, sample_documents
from app.tools.outputs import Outputs
from app.tools.results import result_tools
from app.tools.toolset import Toolset
from app.web.page import page_routes

log = structlog.get_logger(__name__)

PREFERRED = "claude-sonnet-5-5"
# How often it is looked whether a ring for a chat was lost, in seconds.
_CHAT_LOOK = 5.0
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


def create_app(
    settings: Settings,
    models: Models | None = None,
    toolset: Toolset | None = None,
    hooks: Sequence[Hooks] = (),
    outputs: Outputs | None = None,
) -> Starlette:
    """The server. `models` and `toolset` stand in for those that the settings would give; `hooks` are told of turns;
    `outputs` judge those of structured turns.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with running(settings, models, toolset, hooks, outputs) as services:
            app.state.services = services
            yield

    app = Starlette(routes=[*routes(), *page_routes()], lifespan=lifespan, exception_handlers=dict(HANDLERS))
    app.router.redirect_slashes = False  # the host it sends people to is the one they named
    return app


def application(services: Services) -> Starlette:
    """The HTTP side alone, around services that are running already."""
    app = Starlette(routes=[*routes(), *page_routes()], exception_handlers=dict(HANDLERS))
    app.state.services = services
    return app


@asynccontextmanager
async def running(
    settings: Settings,
    models: Models | None = None,
    toolset: Toolset | None = None,
    hooks: Sequence[Hooks] = (),
    outputs: Outputs | None = None,
) -> AsyncIterator[Services]:
    """Everything between Postgres and the API, started in that order and stopped in the other."""
    receiver = _receiver(settings)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(database_url(settings))
        await upgrade_in_thread(url)
        database = await stack.enter_async_context(connect(url, size=settings.pool_size, webhook=receiver is not None))
        await _check_exposure(settings, Tokens(database))
        model = default_model(settings) if models is None else settings.model or next(iter(models.listed()))
        if models is None:
            models = await stack.enter_async_context(_models(settings))
        documents = Documents(database)
        results = Results(database)
        if toolset is None:
            own = [*document_tools(documents), *result_tools(results, settings.max_result_chars)]
            toolset = await stack.enter_async_context(open_toolset(own, _wanted(settings), outputs))
        deliveries = [Deliveries(Webhooks(database), receiver, WebhookPolicy())] if receiver else []
        directory, pace, session_key = Directory(), Pace(), secrets.randbits(62)
        queue = Queue(database, new_id(), _address(settings), session_key)
        bells = ChatBells(ChatNews(database), queue.notify, _CHAT_LOOK)
        worker = Worker(
            database,
            queue,
            directory,
            models.provider_for,
            toolset,
            worker_policy(settings, models.fallbacks),
            pace,
            [*deliveries, *hooks],
        )
        if model == DEMO:
            await _offer_samples(documents)
        settle_garbage_collector()
        journal = Journal(database)
        rescuer = Rescuer(queue, journal, Actions(database), settings.lease, worker.ring)
        await rescuer.start()
        stack.push_async_callback(queue.leave)
        await stack.enter_async_context(
            _background(
                pace.watch(),
                rescuer.run(),
                Journaling(journal, directory, settings.journal_interval).run(),
                Mirror(Snapshots(database), directory, settings.journal_interval / 2).run(),
                Session(url, session_key, _both(worker.hear, bells.hear), rescuer.doubt).run(),
                bells.tell(),
                bells.watch(),
                *(each.run() for each in deliveries),
            )
        )
        await stack.enter_async_context(_background(worker.run()))
        yield Services(
            database=database,
            chats=Chats(database),
            chat_news=ChatNews(database),
            chat_bells=bells,
            turns=Turns(database),
            exchanges=Exchanges(database),
            actions=Actions(database),
            results=results,
            documents=documents,
            uploads=Uploads(database),
            directory=directory,
            authenticator=Authenticator(Tokens(database)),
            toolset=toolset,
            models=models,
            defaults=Defaults(model, settings.system_prompt, _limits(settings)),
            ring=worker.ring,
            cancel=worker.cancel,
            tell=worker.tell,
            is_ready=lambda: not worker.draining,
            drain=worker.drain,
            max_body_bytes=settings.max_body_bytes,
            max_upload_bytes=settings.max_upload_bytes,
            stream_life=settings.stream_life,
            heartbeat=settings.heartbeat,
        )


@asynccontextmanager
async def database_url(settings: Settings) -> AsyncIterator[str]:
    """Where Postgres is: the embedded one runs for as long as it is wanted."""
    if settings.database_url is not None:
        yield plain_url(settings.database_url.get_secret_value())
    else:
        async with embedded_postgres(settings.data_dir) as url:
            yield url


@asynccontextmanager
async def open_database(settings: Settings) -> AsyncIterator[Database]:
    """The database of the settings, migrated."""
    async with database_url(settings) as url:
        await upgrade_in_thread(url)
        async with connect(url, size=settings.pool_size) as database:
            yield database


def _both(first: Callable[[str], None], second: Callable[[str], None]) -> Callable[[str], None]:
    def hear(payload: str) -> None:
        first(payload)
        second(payload)

    return hear


def _address(settings: Settings) -> str:
    """By this a replica that starts again is known for the one that was killed here."""
    return f"{socket.gethostname()}:{settings.port or f'process-{os.getpid()}'}"


def worker_policy(settings: Settings, fallbacks: Callable[[str], Sequence[str]]) -> WorkerPolicy:
    retries = RetryPolicy(most=settings.max_retries, max_retry_after=settings.max_retry_after)
    return WorkerPolicy(
        concurrent_turns=settings.concurrent_turns,
        poll_interval=settings.poll_interval,
        grace_period=settings.grace_period,
        model=ModelPolicy(retries, settings.stall_timeout, fallbacks),
    )


def _receiver(settings: Settings) -> Receiver | None:
    if settings.webhook_url is None:
        return None
    if settings.webhook_secret is None:
        raise ConfigError("TURNSTREAM_WEBHOOK_URL is set, so TURNSTREAM_WEBHOOK_SECRET must be: it signs what is told")
    secret = settings.webhook_secret.get_secret_value()
    try:
        key_of(secret)
    except ValueError as error:
        raise ConfigError(f"TURNSTREAM_WEBHOOK_SECRET: {error}") from None
    return Receiver(str(settings.webhook_url), secret)


def _wanted(settings: Settings) -> Wanted:
    secret = settings.signing_secret
    return Wanted(
        file=settings.tools_file,
        reference=settings.toolset,
        signing_secret=None if secret is None else secret.get_secret_value(),
        allowed=settings.http_tools_allow,
        max_parallel=settings.parallel_tools,
        max_result_chars=settings.max_result_chars,
        environment=read_environment() if settings.tools_file else {},
    )


def _limits(settings: Settings) -> Limits:
    return Limits(
        max_rounds=settings.max_rounds,
        on_max_rounds=settings.on_max_rounds,
        max_failed_rounds=settings.max_failed_rounds,
        continue_after_tools=settings.continue_after_tools,
        recovery=settings.recovery,
        max_recoveries=settings.max_recoveries,
        compact_at=settings.compact_at,
    )


@asynccontextmanager
async def _models(settings: Settings) -> AsyncIterator[Models]:
    with _recordings(settings) as recordings:
        async with connect_providers(_providers(settings), _taps(settings, recordings)) as offers:
            yield _offered(settings, offers)


def _offered(settings: Settings, offers: list[Offer]) -> Models:
    if not offers and settings.chaos:
        raise ConfigError("TURNSTREAM_CHAOS: the demo has no provider whose calls could fail; set a provider's key")
    if not offers:
        log.warning("model.demo", note="no key of a provider is set: answers are a script's, not a model's")
        offers.append(Offer(DemoProvider(settings.demo_delay), [DEMO]))
    elif settings.model is not None:
        offers.append(Offer(offers[0].provider, (), [settings.model]))  # whatever a gateway calls it
    return Models(offers)


def _recordings(settings: Settings) -> AbstractContextManager[Recordings | None]:
    return nullcontext() if settings.record is None else Recordings(settings.record)


def _taps(settings: Settings, recordings: Recordings | None) -> Sequence[Tap]:
    """What is recorded is what an adapter saw, chaos too."""
    taps: list[Tap] = []
    if settings.chaos:
        note = "model calls are made to fail on purpose: never in production"
        log.critical("model.chaos", note=note, share=settings.chaos, seed=settings.chaos_seed)
        taps.append(ChaosTap(ChaosPlan(settings.chaos_seed, settings.chaos)))
    if recordings is not None:
        every = settings.record_turns == "all"
        taps.append(RecordingTap(recordings, lambda call: every or (call is not None and call.record)))
    return taps


def _providers(settings: Settings) -> Sequence[ProviderSpec]:
    """Settings of providers are ours too: a value that was given in code goes before the environment."""
    keys = {"ANTHROPIC_API_KEY": settings.anthropic_api_key, "OPENAI_API_KEY": settings.openai_api_key}
    urls = {"ANTHROPIC_BASE_URL": settings.anthropic_base_url, "OPENAI_BASE_URL": settings.openai_base_url}
    secrets = {name: key.get_secret_value() if key else "" for name, key in keys.items()}
    return read_registry(
        settings.models_file, {**read_environment(), **secrets, **{n: u or "" for n, u in urls.items()}}
    )


@asynccontextmanager
async def offline_models(settings: Settings, taps: Sequence[Tap]) -> AsyncIterator[Models]:
    """Those of the settings, as if every key were there: `taps` answer in the place of all networks."""
    known = {spec.name for spec in _providers(settings)}
    specs = read_registry(settings.models_file, _Given(read_environment()))
    async with connect_providers(specs, taps) as offers:
        if settings.model is not None and offers:
            first = next((offer for offer in offers if offer.provider.name in known), offers[0])
            offers.append(Offer(first.provider, (), [settings.model]))
        yield Models(offers)


class _Given(dict[str, str]):
    """Keys and addresses that nobody has said are some that nobody has."""

    def get(self, name: str, _default: object = None) -> str:
        return super().get(name) or "http://offline.invalid"


def default_model(settings: Settings) -> str:
    """What answers where nobody names a model. Raises ConfigError where that cannot be known."""
    providers = _providers(settings)
    if settings.model is not None or not providers:
        return settings.model or DEMO
    listed = [model.id for provider in providers for model in provider.models]
    if not listed:
        raise ConfigError("TURNSTREAM_MODEL: say which model answers where nobody names one")
    return PREFERRED if PREFERRED in listed else listed[0]


async def _check_exposure(settings: Settings, tokens: Tokens) -> None:
    if settings.host not in _LOOPBACK and not await tokens.exist():
        raise ConfigError(
            f"TURNSTREAM_HOST is {settings.host}, which others can reach, and there is no token yet: make one with"
            " `turnstream tokens create NAME`, or listen on 127.0.0.1"
        )


async def _offer_samples(documents: Documents) -> None:
    """So that the demo has something to look at."""
    if not await documents.tree(LOCAL_OWNER, limit=1):
        for path, content in sample_documents().items():
            await documents.put(LOCAL_OWNER, path, content)


@asynccontextmanager
async def _background(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    for task in tasks:
        task.add_done_callback(_ended_too_soon)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _ended_too_soon(task: asyncio.Task[None]) -> None:
    """Without its background work a server only looks alive: better that somebody restarts it."""
    if not task.cancelled():
        log.critical("background.failed", exc_info=task.exception())
        os.kill(os.getpid(), signal.SIGTERM)
