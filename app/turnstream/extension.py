"""Extensions add features to a server without a change of it. The entry point group `turnstream.extensions` names the
installed extensions; a program may pass its own extensions to `create_app`.

A command loads the extensions to read its settings, so an extension imports the modules of a feature only when the
feature is used.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from turnstream import config
from turnstream.domain.errors import ConfigError
from turnstream.kit.extension_packages import GROUP

if TYPE_CHECKING:
    from socket import socket

    from starlette.middleware import Middleware

    from turnstream.api.http.call_group import CallGroup
    from turnstream.api.identity.authenticator import Admit, Authenticate, FindMember
    from turnstream.api.identity.stored import StoredTokens
    from turnstream.api.neighbours import Neighbours
    from turnstream.api.reads import ReadCopy, Search
    from turnstream.api.request_secrets import RequestSecrets
    from turnstream.api.services import Feed, Services
    from turnstream.config import Section, Settings
    from turnstream.domain.plans import Plan, Plans
    from turnstream.engine.call_policies import CallPolicy
    from turnstream.engine.hooks import Hooks
    from turnstream.engine.model_route import ModelPolicy
    from turnstream.engine.text_checks import TextChecks, TextGuard
    from turnstream.engine.upkeep.sweeps import Sweep
    from turnstream.kit.signals import Signals
    from turnstream.llm.interceptor import Interceptor
    from turnstream.llm.models.api import MakeCalls, MakePool, ModelApi
    from turnstream.llm.models.catalog import Models
    from turnstream.storage.contents import Codec
    from turnstream.storage.database import Database
    from turnstream.storage.runs.queue import Renewals, WebhookKind
    from turnstream.tools.sources import DeclaredTools
    from turnstream.tools.tool import Tool
    from turnstream.tools.toolset import Toolset

_NONE = "none"

Task = Callable[[], Coroutine[Any, Any, None]]
# Returns links to a tool call, by its turn and id. Each link has a principal in `for`, and a `url`.
CallLinks = Callable[[UUID, str], Awaitable[Sequence[Mapping[str, str]]]]
# Returns a sentence that describes the correct state, or raises ConfigError for a fault. If the last argument is true,
# the check may call other servers that the settings name.
Check = Callable[["Settings", "Models", bool], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Context:
    """The parts of the running server that an extension may use. `database` sees the rows of all owners. `replica` is
    the id of this replica. A queue is read every `poll_interval` seconds. When the server stops, running work has
    `grace_period` seconds to end. `notify_peers` sends a payload to all other replicas. `call_links` makes links to a
    waiting call, if an extension can make them.
    """

    settings: "Settings"
    database: "Database"
    extensions: "Sequence[Extension]"
    models: "Models"
    plans: "Plans"
    toolset: "Toolset"
    model_policy: "ModelPolicy"
    replica: UUID
    signals: "Signals"
    poll_interval: float
    grace_period: float
    notify_peers: Callable[[str], Awaitable[None]]
    call_links: CallLinks | None = None

    def notify(self, owner: str, chat: UUID) -> None:
        """Wakes the readers of an owner and a chat after a change is committed."""
        self.signals.changed.send(owner, chat)

    def release(self, owners: Collection[str]) -> None:
        """Returns the running turns of owners to the queue."""
        self.signals.release.send(owners)


@dataclass(frozen=True, slots=True)
class Work:
    """The background work of an extension. `tasks` run until the server stops; if a task ends earlier, the server
    stops. Handlers find `state` in their services (`Services.states`). `admit` may refuse a call of the API. `feed`
    provides the cursor of the list of chats. `find_member` lets members of a chat act for its owner. `webhooks` are the
    kinds for which turns write rows. `serving` are tasks that post turns as requests do. `guards` check texts, one
    after the other. `call_policies` wrap the calls of tools, and the first policy is the outermost. `runners` get the
    checks of texts, and make tasks that stop together with the running turns.
    """

    hooks: "Sequence[Hooks]" = ()
    tasks: Sequence[Task] = ()
    sweeps: "Sequence[Sweep]" = ()
    state: object = None
    admit: "Admit | None" = None
    find_member: "FindMember | None" = None
    feed: "Feed | None" = None
    webhooks: "Collection[WebhookKind]" = ()
    serving: "Sequence[Callable[[Services], Coroutine[Any, Any, None]]]" = ()
    guards: "Sequence[TextGuard]" = ()
    call_policies: "Sequence[CallPolicy]" = ()
    runners: "Sequence[Callable[[TextChecks], Task]]" = ()


class TurnFiles(Protocol):
    """Recordings of turns, in files outside of the database. Exports and imports include them, and an erasure deletes
    them. `owners` are the owners who may request the recording of a turn; None means all owners.
    """

    @property
    def owners(self) -> frozenset[str] | None: ...

    def files(self, turn: UUID) -> Iterable[tuple[str, bytes]]:
        """Returns name and bytes of each file of a turn."""
        ...

    def keep(self, turn: UUID, name: str, content: bytes) -> bool:
        """Stores a file from `files`. Returns False if the file exists already, or is no file of this kind."""
        ...

    def delete(self, turn: UUID) -> int:
        """Deletes the files of a turn. Returns their number."""
        ...


class OwnDatabase(Protocol):
    """A Postgres that the server runs itself if DATABASE_URL is not set. `name` is the name for people."""

    @property
    def name(self) -> str: ...

    def master_key(self, *, make: bool) -> tuple[str, str] | None:
        """Returns path and text of the master key's file, which `make` creates if it is missing. Raises ConfigError."""
        ...

    def check_made(self) -> None:
        """Raises ConfigError if the database was never started, because the command was called in a wrong folder."""
        ...

    def open(self) -> AbstractAsyncContextManager[str]:
        """Runs the database until the end of the block. Yields its URL. Raises ConfigError."""
        ...

    def temporary(self) -> AbstractAsyncContextManager[str]:
        """Runs another database until the end of the block. It is empty at first, and then deleted."""
        ...


class ModelChoice(Protocol):
    """Chooses models that extensions provide, as the settings say. Every method raises ConfigError."""

    def default(self) -> str:
        """Returns the model of turns that name none."""
        ...

    def served(self) -> str:
        """Like `default`, but raises ConfigError also if a stand-in would answer people without their knowledge."""
        ...

    def open(self) -> AbstractAsyncContextManager["Models"]: ...

    async def import_adapter(self) -> None:
        """Imports the adapter of the default model ahead of its first call."""
        ...


class DatabaseCopy(Protocol):
    """A copy of the database, for reads that may be out of date. This replica must renew its lease at least every
    `renewal_interval` seconds, because the copy determines its own age by the renewals.
    """

    @property
    def renewal_interval(self) -> float: ...

    def open(self, api: "Database", replica: UUID, renewals: "Renewals") -> AbstractAsyncContextManager["ReadCopy"]:
        """Opens the copy. Its row-level security is that of `api`, the database of the API."""
        ...


class ServerProcess(Protocol):
    """One of several processes on one port. `number` is its number, counted from 1."""

    @property
    def number(self) -> int: ...

    def neighbours(self, replica: UUID) -> "Neighbours":
        """Returns the other processes, as this process sees them. `replica` is the replica of this process."""
        ...

    def obey(self, drain: Callable[[], None], stop: Callable[[], None]) -> None:
        """Calls `drain` if the supervisor is gone, and `stop` if the supervisor writes to standard input. A second
        signal has no further effect, because systemd, or a terminal, sends its signals to this process as well.
        """
        ...


class ServerProcesses(Protocol):
    """The processes that one `serve` starts and supervises, each a replica. `count` is the number in the settings."""

    @property
    def count(self) -> int: ...

    async def supervise(self, reserved: "socket", count: int, welcome: str) -> int:
        """Runs the processes until a signal arrives, or no process can start. Returns the exit status. `reserved` keeps
        the port; `welcome` is printed when all processes are ready.
        """
        ...

    def process(self, place: str) -> ServerProcess:
        """Returns this process. `place` is the value that the supervisor has passed to it."""
        ...


class MasterKey(Protocol):
    """Wraps the keys of owners. It is in the settings, or never leaves a key service. `id` identifies it in rows."""

    @property
    def id(self) -> bytes: ...

    async def wrap(self, owner: str, key: bytes) -> bytes: ...

    async def unwrap(self, owner: str, wrapped: bytes) -> bytes:
        """Raises CannotOpen if no other try can succeed, and StorageUnavailable if another try may succeed."""
        ...


class Secrets(Protocol):
    """Encrypts secrets that are stored in rows. `ids` are the ids of the master keys that this replica has."""

    @property
    def ids(self) -> Sequence[bytes]: ...

    def codec(self, url: str) -> AbstractAsyncContextManager["Codec | None"]:
        """Yields the codec of contents, which reads keys from the database at `url`; None if there is no codec."""
        ...

    async def of_requests(self, database: "Database") -> "RequestSecrets | None":
        """Returns the part that encrypts the secrets of tools; None if requests must have no secrets."""
        ...


class NoSecrets:
    """Encrypts nothing."""

    ids = ()

    def codec(self, url: str) -> AbstractAsyncContextManager[None]:  # noqa: ARG002
        return nullcontext()

    async def of_requests(self, database: "Database") -> None:  # noqa: ARG002
        return None


class NoFiles:
    """Records nothing."""

    owners = None

    def files(self, turn: UUID) -> Iterable[tuple[str, bytes]]:  # noqa: ARG002
        return ()

    def keep(self, turn: UUID, name: str, content: bytes) -> bool:  # noqa: ARG002
        return False

    def delete(self, turn: UUID) -> int:  # noqa: ARG002
        return 0


# The defaults of fields that an extension does not set.


def _none(*_: object) -> None:
    return None


def _nothing(*_: object) -> tuple[()]:
    return ()


def _no_work(_: Context) -> Work:
    return Work(state=True)  # `GET /api/me` lists the extensions with a state


def _no_interceptors(_: "Settings") -> "AbstractContextManager[Sequence[Interceptor]]":
    return nullcontext(())


@asynccontextmanager
async def _no_way(*_: object) -> AsyncIterator[None]:
    yield None


async def _nothing_elsewhere(*_: object) -> None:
    """The default if owners have nothing outside of the database."""


@dataclass(frozen=True, slots=True)
class Extension:
    """An extension of a server. `summary` is the text that `doctor` prints. `settings` is a section of the settings.
    `checks` are lines of `doctor` by name; a server starts only if no check finds a fault.

    `way` opens a way to authenticate if the settings ask for it, and `stored_way` a way for credentials in rows.
    `token_way` accepts tokens of the server outside of the header. `middleware` encloses all calls. `providers` are
    APIs of models, `model_choice` opens the models of all APIs, `pool` joins the clients for a provider's keys into one
    provider, and `model_calls` send calls of models. `tools` are the extension's own tools, and `tool_sources` are
    kinds of tools from elsewhere. `declared_tools` makes tools from these kinds; the first extension that has it is
    used. `interceptors` opens interceptors of model calls, the nearest to the network first. `recordings` are files of
    turns, if the settings ask for them.

    `database` is a Postgres that the server runs itself, and `copy` is a standby for reads that may be out of date.
    `processes` are the processes on one port. `cell` is the name that the settings give this server, which its tokens
    contain. `search` finds chats and documents; the first extension that has it is used. `secrets` encrypts secrets in
    rows; missing keys are made if the last argument is true. `codec` encrypts contents with these keys. `master_key`
    finds the master key that the settings name. `plans` are the plans of owners; a limit that a plan does not set is
    the limit of the given plan. `call_links` makes links to waiting calls, for webhooks. `before_erasure` ends an
    owner's sessions and tokens at other servers, before the rows are deleted. `commands` maps each command to the
    module that defines it: `usage`, or `owners move` in the group `owners`. `tool_policies` are the fields of a tool's
    policy that the extension carries out.
    """

    name: str
    summary: str
    settings: "type[Section] | None" = None
    checks: Mapping[str, Check] = field(default_factory=dict)
    calls: "Callable[[], Sequence[CallGroup]]" = _nothing
    work: Callable[[Context], Work] = _no_work
    way: "Callable[[Settings], AbstractAsyncContextManager[Authenticate | None]]" = _no_way
    stored_way: "Callable[[Settings, Database], AbstractAsyncContextManager[Authenticate | None]]" = _no_way
    token_way: "Callable[[Settings, StoredTokens], Authenticate | None]" = _none
    middleware: "Callable[[Settings], Sequence[Middleware]]" = _nothing
    providers: "Callable[[Settings], Sequence[ModelApi]]" = _nothing
    model_choice: "Callable[[Settings, Sequence[Extension]], ModelChoice] | None" = None
    pool: "Callable[[Settings], MakePool | None]" = _none
    model_calls: "Callable[[Settings], MakeCalls | None]" = _none
    tools: "Callable[[Settings, Database], Sequence[Tool]]" = _nothing
    tool_sources: "Callable[[Settings], Sequence[object]]" = _nothing
    declared_tools: "Callable[[Settings, Sequence[Extension], Mapping[str, str]], DeclaredTools] | None" = None
    interceptors: "Callable[[Settings], AbstractContextManager[Sequence[Interceptor]]]" = _no_interceptors
    recordings: "Callable[[Settings], TurnFiles | None]" = _none
    database: "Callable[[Settings], OwnDatabase | None]" = _none
    copy: "Callable[[Settings], DatabaseCopy | None]" = _none
    processes: "Callable[[Settings], ServerProcesses | None]" = _none
    cell: "Callable[[Settings], str | None]" = _none
    search: "Callable[[Database], Search] | None" = None
    secrets: "Callable[[Settings, Sequence[Extension], bool], Secrets | None]" = _none
    codec: "Callable[[Settings, Any], Codec | None]" = _none
    master_key: "Callable[[Settings, str], MasterKey | None]" = _none
    plans: "Callable[[Settings, Plan], Plans | None]" = _none
    call_links: "Callable[[Settings, Database], CallLinks | None]" = _none
    before_erasure: "Callable[[Settings, Database, str], Awaitable[None]]" = _nothing_elsewhere
    commands: Mapping[str, str] = field(default_factory=dict)
    tool_policies: Collection[str] = ()


@cache
def installed() -> Mapping[str, Extension]:
    """Returns all installed extensions by name. Raises ConfigError if one of them cannot be loaded."""
    found: dict[str, Extension] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            extension = point.load()
        except Exception as error:  # foreign code may raise any exception
            raise ConfigError(f"The extension {point.name} ({point.value}) cannot be loaded: {error!r}.") from error
        if not isinstance(extension, Extension) or extension.name != point.name:
            raise ConfigError(f"The extension {point.name} ({point.value}) must be an Extension of that name.")
        found[point.name] = extension
    return found


def selected(settings: "Settings", given: Sequence[Extension] | None = None) -> Sequence[Extension]:
    """Returns the extensions `given` by an embedding program, else the installed extensions in TURNSTREAM_EXTENSIONS.
    Raises ConfigError, also if a setting belongs to an extension that is left out: a server that people log in to must
    not be open because the extension for logins is missing.
    """
    found = _selected(settings) if given is None else given
    used = {name for each in found if each.settings is not None for name in each.settings.model_fields}
    for extension in left_out(found):
        check_unused(settings, extension, used)
    return found


def check_unused(settings: "Settings", extension: Extension, used: Collection[str] = ()) -> None:
    """Raises ConfigError if a setting belongs to an extension that is left out, unless another has `used` it."""
    section = extension.settings
    given = {} if section is None else settings.section(section).model_dump(exclude_unset=True, exclude_none=True)
    if section is not None and (unused := given.keys() - used):
        name = config.variables(section)[min(unused)]
        raise ConfigError(
            f"{name} is a setting of the extension {extension.name}, which this server leaves out: add"
            f" {extension.name} to TURNSTREAM_EXTENSIONS."
        )


def left_out(extensions: Collection[Extension]) -> Sequence[Extension]:
    """Returns the installed extensions that are not among `extensions`."""
    return [each for each in installed().values() if each not in extensions]


def refused(user: str, extension: Extension) -> ConfigError:
    """Returns the error for something that needs a missing extension. `user` names it, as the subject of a sentence."""
    return ConfigError(
        f"{user} needs the extension {extension.name}, which this server leaves out: add {extension.name} to"
        " TURNSTREAM_EXTENSIONS."
    )


def _selected(settings: "Settings") -> Sequence[Extension]:
    known = installed()
    if settings.extensions is None:
        return list(known.values())
    names = [name for each in settings.extensions.split(",") if (name := each.strip())]
    if names == [_NONE]:
        return []
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(
            f"TURNSTREAM_EXTENSIONS names {', '.join(unknown)}, which is not installed. Installed:"
            f" {', '.join(known) or 'none'}."
        )
    return [known[name] for name in dict.fromkeys(names)]


def model_apis(settings: "Settings", extensions: Sequence[Extension]) -> "Sequence[ModelApi]":
    return [api for extension in extensions for api in extension.providers(settings)]


def model_choice(settings: "Settings", extensions: Sequence[Extension]) -> ModelChoice:
    """Returns the choice of the first extension that has one. If no selected extension has one, an installed extension
    chooses. Raises ConfigError.
    """
    found = (each.model_choice for each in (*extensions, *installed().values()))
    choose = next((each for each in found if each is not None), None)
    if choose is None:
        raise ConfigError("No extension with a provider of models is installed: install one, or give `models`.")
    return choose(settings, extensions)


def recordings_of(settings: "Settings", extensions: Sequence[Extension]) -> TurnFiles:
    """Returns the recordings of the first extension that has recordings, else `NoFiles`."""
    found = (extension.recordings(settings) for extension in extensions)
    return next((each for each in found if each is not None), NoFiles())


def before_erasure(
    settings: "Settings", extensions: Sequence[Extension], database: "Database"
) -> Callable[[str], Awaitable[None]]:
    """Returns a function that calls `before_erasure` of every extension for an owner."""

    async def end(owner: str) -> None:
        for extension in extensions:
            await extension.before_erasure(settings, database, owner)

    return end


def copy_of(settings: "Settings", extensions: Iterable[Extension]) -> DatabaseCopy | None:
    """Returns the copy of the first extension that has one. Raises ConfigError."""
    return next((copy for each in extensions if (copy := each.copy(settings)) is not None), None)


def own_database(settings: "Settings", extensions: Sequence[Extension] | None = None) -> OwnDatabase:
    """Returns the database of the first extension that has one. Raises ConfigError if no extension has one."""
    found = (each.database(settings) for each in (selected(settings) if extensions is None else extensions))
    own = next((each for each in found if each is not None), None)
    if own is None:
        raise ConfigError(
            "DATABASE_URL must name a Postgres. Or let the server run its own: pip install 'turnstream[embedded]', and"
            " add embedded to TURNSTREAM_EXTENSIONS."
        )
    return own


def processes_of(settings: "Settings", extensions: Iterable[Extension]) -> ServerProcesses | None:
    """Returns the processes of the first extension that can start several processes."""
    return next((found for each in extensions if (found := each.processes(settings)) is not None), None)


def own_cell(settings: "Settings", extensions: Iterable[Extension]) -> str | None:
    """Returns the name of this server among several servers, for its tokens."""
    return next((cell for each in extensions if (cell := each.cell(settings)) is not None), None)


def secrets_of(settings: "Settings", extensions: Sequence[Extension], *, make: bool = True) -> Secrets:
    """Returns the secrets of the first extension that encrypts them. With `make`, a missing key is made. Raises
    ConfigError, also for a codec without keys, which could not read its rows.
    """
    if found := next((each for e in extensions if (each := e.secrets(settings, extensions, make)) is not None), None):
        return found
    if codecs := [each.name for each in extensions if each.codec is not _none]:
        raise ConfigError(f"The extension {codecs[0]} needs the extension keys: add keys to TURNSTREAM_EXTENSIONS.")
    return NoSecrets()


def search_of(extensions: Iterable[Extension], database: "Database") -> "Search | None":
    """Returns the search of the first extension that has one."""
    return next((each.search(database) for each in extensions if each.search is not None), None)


def sections() -> "Sequence[type[Section]]":
    """Returns the sections of settings of all installed extensions."""
    return [each.settings for each in installed().values() if each.settings is not None]


def read_settings() -> "Settings":
    """Reads the settings from the environment and `.env`. Raises ConfigError with a sentence for each wrong setting."""
    return config.read_settings(sections())
