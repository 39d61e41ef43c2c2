"""The command `turnstream doctor`."""

import asyncio
import errno
import json
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

import click
from pydantic import SecretStr

from turnstream.cli.serve import bound
from turnstream.config import Section, Settings, variables
from turnstream.domain.errors import ConfigError, StorageError
from turnstream.extension import Extension, left_out, model_apis, read_settings, sections, selected
from turnstream.extensions.doctor.inspection import gaps, inspect_postgres
from turnstream.extensions.doctor.pings import ping_providers
from turnstream.libraries.secrets.master_keys import HOW_TO_MAKE, master_keys
from turnstream.libraries.secrets.owner_keys import OwnerKeys, count_lost_keys
from turnstream.libraries.secrets.settings import NAME
from turnstream.llm.models.catalog import Models
from turnstream.setup.databases import addressed, check_present, database_name, database_url, session_url
from turnstream.setup.identity import metrics_token
from turnstream.setup.parts import Given, chosen_model, opened_models, opened_toolset, opened_ways
from turnstream.setup.plans import read_plans
from turnstream.setup.policies import allowances
from turnstream.storage.database import Database, Row, Statement, connect
from turnstream.storage.migrations import newest_revision, present_revision
from turnstream.telemetry import configure_logging
from turnstream.tools.tool import CheckedSource, ToolSource
from turnstream.tools.toolset import Toolset

_CLOCK = 2.0  # the largest accepted difference between two clocks, in seconds


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the report. A `fault` keeps the server from starting or working; a `note` does not."""

    check: str
    status: Literal["ok", "note", "fault"]
    text: str


class _Nothing(Database):
    """A database without rows, like the database before a first start."""

    def __init__(self) -> None:
        """Opens no connections."""

    async def rows(self, statement: Statement, **values: Any) -> Sequence[Row]:  # noqa: ARG002, of the base class
        return ()


@click.command()
@click.option("--ping", is_flag=True, help="Also call each provider (16 tokens at most), tool source, and the webhook.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--settings", "list_settings", is_flag=True, help="Print every setting with its value instead.")
def doctor(ping: bool, as_json: bool, list_settings: bool) -> None:
    """Check what `serve` checks, and the database. Nothing is changed. The exit code is 1 if there is a fault."""
    if list_settings:
        _list_settings()
        return
    configure_logging("critical")  # the report replaces the logs of the checks
    try:
        findings = asyncio.run(examine(read_settings(), ping))
    except ConfigError as error:
        findings = [Finding("settings", "fault", str(each)) for each in error.args]
    if as_json:
        click.echo(json.dumps([asdict(each) for each in findings], indent=2))
    else:
        for each in findings:
            click.echo(f"{each.status:<6} {each.check:<12} {each.text}")
    sys.exit(any(each.status == "fault" for each in findings))


def _list_settings() -> None:
    """Lists the names of the variables. If the settings cannot be read, the names help to find the reason."""
    settings = None
    try:
        settings = read_settings()
    except ConfigError as error:
        click.echo(f"The settings cannot be read: {error}\n", err=True)
    every: Sequence[type[Section]] = (Settings, *sections())
    for section in every:
        values = settings if settings is None or section is Settings else settings.section(section)
        for name, variable in variables(section).items():
            value = getattr(values, name, None)
            shown = "(not set)" if value is None else "(set)" if isinstance(value, SecretStr) else str(value)
            click.echo(f"{variable}{f' = {shown}' if settings else ''}\n    {section.model_fields[name].description}")


_ADD_KEYS = "add the extension keys to TURNSTREAM_EXTENSIONS"
_SHORT_LEASE = 3.0  # seconds; a shorter lease is a finding
_PROXY_PATIENCE = 60.0  # seconds; a longer heartbeat is a finding


async def examine(settings: Settings, ping: bool) -> list[Finding]:
    count = len(settings.model_fields_set)
    found = [
        Finding("settings", "ok", "1 is set" if count == 1 else f"{count} are set"),
        _address(settings),
        *_times(settings),
    ]
    given, model, models = Given(), None, None
    extensions: Sequence[Extension] = ()
    sources: Sequence[ToolSource] = ()
    async with AsyncExitStack() as stack:
        with _tried("extensions", "", found):
            extensions = selected(settings, given.extensions)
        if found[-1].status == "ok":
            lists = [[each.name for each in some] for some in (extensions, left_out(extensions))]
            text = "; left out: ".join(", ".join(each) for each in (lists[0] or ["none"], lists[1]) if each)
            found[-1] = Finding("extensions", "ok", text)
        with _tried("allowances", "what requests may ask for can be read", found):
            allowances(settings, model_apis(settings, extensions))
        with _tried("plans", "can be read", found):
            read_plans(settings, extensions, given.plan_of)
        with _tried("metrics", "", found):
            metrics_token(settings)
        if found[-1].status == "ok":
            found[-1] = _metrics(settings)
        with _tried("model", "", found):
            model = chosen_model(settings, given, extensions)
        if found[-1].status == "ok":
            found[-1] = Finding("model", "ok", f"the default is {model}{'' if ping else '; only --ping calls it'}")
        database: Database = _Nothing()
        async for finding in _database(settings, stack):
            if isinstance(finding, Database):
                database = finding
            else:
                found.append(finding)
        if any((each.check, each.status) == ("database", "fault") for each in found):
            found.append(Finding("access", "note", "not checked: the tokens are in the database"))
        else:
            with _tried("access", "the settings of tokens and logins fit together", found):
                await opened_ways(settings, given, extensions, database, stack)
        found += await _secrets(settings, extensions, database)
        with _tried("models", "are listed, with the settings of their providers", found):
            models = await opened_models(settings, given, extensions, stack)
        if models is not None:
            found += await _checks(settings, extensions, models, ping)
        tools = (
            "are there, and their servers are connected" if ping else "can be read; only --ping connects their servers"
        )
        with _tried("tools", tools, found):
            sources = _sources(
                await opened_toolset(settings, given, extensions, database, stack, connect=ping), models, model
            )
        if ping:
            with suppress(ConfigError):  # the fault was reported above
                for name, failure in (await ping_providers(settings, extensions)).items():
                    found.append(_pinged(f"provider {name}", failure))
            for source in sources:
                if isinstance(source, CheckedSource):
                    found += [_pinged(*each) for each in (await source.failures()).items()]
    # Several checks may read the same setting, so a fault of this setting is shown only once.
    first = {each.text: each for each in reversed(found)}
    return [each for each in found if each.status != "fault" or each is first[each.text]]


@contextmanager
def _tried(check: str, seen: str, found: list[Finding]) -> Iterator[None]:
    """Adds the result of a check to `found`. An error of the check is also a result. Without an error, the result is
    `seen`, which describes the checked subject.
    """
    try:
        yield
    except ConfigError as error:
        found += [Finding(check, "fault", str(each)) for each in error.args]
    except StorageError as error:  # an older version made the tables
        found.append(Finding(check, "note", f"not checked: {error}"))
    else:
        found.append(Finding(check, "ok", seen))


def _sources(toolset: Toolset, models: Models | None, default: str | None) -> Sequence[ToolSource]:
    """Returns the sources of the tools. Raises ConfigError for an agent that cannot be a model. Without models or a
    default model, agents are not checked.
    """
    if models is not None and default is not None:
        models.with_presets(toolset.presets, default)
    return toolset.sources


def _address(settings: Settings) -> Finding:
    try:
        bound(settings).close()
    except ConfigError as error:
        cause = error.__context__
        if isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE:
            return Finding("address", "note", f"port {settings.port} is in use; all is well if this is the server")
        return Finding("address", "fault", str(error))
    return Finding("address", "ok", f"{settings.host}, port {settings.port}")


def _times(settings: Settings) -> Iterator[Finding]:
    """Yields a finding for each time limit whose value is harmful."""
    if settings.lease < _SHORT_LEASE:
        text = f"TURNSTREAM_LEASE is {settings.lease:g} s: a replica that is busy for that long loses its turns"
        yield Finding("lease", "note", f"{text}; use {_SHORT_LEASE:g} s or more")
    if settings.heartbeat >= _PROXY_PATIENCE:
        text = f"TURNSTREAM_HEARTBEAT is {settings.heartbeat:g} s: proxies close a stream that is silent for"
        yield Finding("heartbeat", "note", f"{text} {_PROXY_PATIENCE:g} s, as nginx does by default")


def _metrics(settings: Settings) -> Finding:
    if settings.metrics_token is not None:
        return Finding("metrics", "ok", "need their token")
    if settings.on_loopback:
        return Finding("metrics", "ok", "need no token, and only this machine can reach them")
    text = (
        "/metrics shows names of models and tools, and how much they are used, without a token, and other machines can"
        " reach it: set TURNSTREAM_METRICS_TOKEN, or keep it inside with the proxy or a firewall"
    )
    return Finding("metrics", "note", text)


async def _database(settings: Settings, stack: AsyncExitStack) -> AsyncIterator[Finding | Database]:
    """Yields findings. If the database has tables, the last item is the open database."""
    try:
        check_present(settings)
    except ConfigError as error:
        yield Finding("database", "note", f"{error} `turnstream serve` would make one here.")
        return
    try:
        url = await stack.enter_async_context(database_url(settings))
        direct = session_url(settings, url)
        revision = await present_revision(direct)
        facts = await inspect_postgres(direct)
        schema = settings.db_schema if revision else None  # `serve` creates a missing schema
        opened = await stack.enter_async_context(
            connect(url, size=2, statement_cache=settings.statement_cache, schema=schema)
        )
    except ConfigError as error:
        yield Finding("database", "fault", str(error))
        return
    state = "has no tables yet" if revision is None else f"is at revision {revision}"
    if revision == newest_revision():
        yield Finding("database", "ok", f"{database_name(settings)} {state}, the newest")
    else:
        text = f"{database_name(settings)} {state}; `turnstream serve` migrates it to {newest_revision()}"
        yield Finding("database", "note", text)
    problems = [
        *(("fault", *each) for each in facts.faults().items()),
        *(("note", *each) for each in facts.notes().items()),
    ]
    for status, what, remedy in problems:
        yield Finding("postgres", "fault" if status == "fault" else "note", f"{what}: {remedy}")
    if not problems:
        yield Finding("postgres", "ok", f"PostgreSQL {facts.version}")
    yield _connections(settings, facts.connections, facts.replicas)
    ahead = facts.clock_ahead
    if abs(ahead) <= _CLOCK:
        yield Finding("clock", "ok", "agrees with that of Postgres")
    else:
        differ = f"Postgres is {abs(ahead):.0f} seconds {'ahead of' if ahead > 0 else 'behind'} this machine"
        yield Finding("clock", "fault", f"{differ}: let both follow one time server (NTP)")
    if settings.database_url is not None and revision == newest_revision():
        for finding in await _second_wall(settings, direct):
            yield finding
    if revision is not None:
        yield opened


async def _second_wall(settings: Settings, url: str) -> list[Finding]:
    """Checks whether row-level security applies to the API. With the embedded Postgres it always applies."""
    if settings.api_database_url is None:
        text = (
            "row-level security is off: make a role for the API, and name it in TURNSTREAM_API_DATABASE_URL"
            " (docs/postgres.md, The second wall)"
        )
        return [Finding("API role", "note", text)]
    api_url = addressed(settings, settings.api_database_url.get_secret_value(), "TURNSTREAM_API_DATABASE_URL")
    found: list[Finding] = []
    with _tried("API role", "", found):
        found += [Finding("API role", "note", gap) for gap in await gaps(url, api_url)]
    return found if len(found) == 1 else found[:-1]


async def _secrets(settings: Settings, extensions: Sequence[Extension], database: Database) -> list[Finding]:
    """Checks whether the secrets of requests are encrypted when they are stored, and whether they can be decrypted."""
    tried: list[Finding] = []
    found: list[tuple[Literal["ok", "note", "fault"], str]] = []
    with _tried("secrets", "", tried):
        encrypts = any(each.name == NAME for each in extensions)
        masters = master_keys(settings, extensions, make=False)
        keys = None if masters is None else OwnerKeys(database, masters)
        if lost := await count_lost_keys(database, masters.ids if masters else ()):
            needed = "TURNSTREAM_MASTER_KEY must have the key from before, too" if encrypts else _ADD_KEYS
            found.append(("fault", f"those of {lost} owners cannot be decrypted: {needed}"))
        if not encrypts:
            found.append(("note", f"requests with secrets are refused; to encrypt them, {_ADD_KEYS}"))
        elif keys is None and settings.database_url is not None:
            found.append(
                ("note", f"those of requests are stored in plain text: set TURNSTREAM_MASTER_KEY; {HOW_TO_MAKE}")
            )
        if keys is not None and (replica := await keys.replica_without_key()):
            text = f"some may stay plain while the replica {replica} lacks the master key: give it to all replicas"
            found.append(("note", text))
        if masters is not None and (others := await count_lost_keys(database, [masters.first]) - lost) > 0:
            text = f"an earlier master key wraps the keys of {others} owners: keep it, or run `turnstream keys rotate`"
            found.append(("note", text))
    if tried[0].status != "ok":
        return tried
    return [Finding("secrets", *each) for each in found or [("ok", "are encrypted before they are stored")]]


def _connections(settings: Settings, most: int, replicas: int) -> Finding:
    """Checks that one more replica would have enough connections: a rolling update starts a new replica before an old
    replica exits.
    """
    has_role = settings.api_database_url is not None or settings.database_url is None
    each = settings.pool_size * (2 if has_role else 1) + 1
    running = f"{replicas} replicas now" if replicas != 1 else "one replica now"
    text = f"Postgres has {most}; a replica opens up to {each}, and there is room for {most // each} ({running})"
    if most // each > max(replicas, 1):
        return Finding("connections", "ok", text)
    remedy = "raise max_connections, lower TURNSTREAM_POOL_SIZE, or put a pooler between"
    return Finding("connections", "fault" if most // each < max(replicas, 1) else "note", f"{text}: {remedy}")


async def _checks(settings: Settings, extensions: Sequence[Extension], models: Models, ping: bool) -> list[Finding]:
    """Checks whether the default model is listed, and returns the findings of the extensions."""
    found: list[Finding] = []
    if settings.model is not None and models.label(settings.model) == "other":
        text = f"{settings.model} is not listed: {models.provider_name(settings.model)} gets the name as it is"
        found.append(Finding("models", "note", text))
    for name, check in ((name, check) for extension in extensions for name, check in extension.checks.items()):
        with _tried(name, "", found):
            text = await check(settings, models, ping)
        if found[-1].status == "ok":
            found[-1] = Finding(name, "ok", text)
    return found


def _pinged(check: str, failure: str) -> Finding:
    return Finding(check, "fault", failure) if failure else Finding(check, "ok", "answers")
