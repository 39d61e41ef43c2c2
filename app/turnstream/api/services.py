"""The services that handlers use, in groups, and the steps with which every handler begins."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol, Self
from uuid import UUID

from starlette.requests import Request

from turnstream.api.caller import CALLER, OwnerPlans
from turnstream.api.http.endpoint import Endpoint
from turnstream.api.identity.authenticator import Admit, Authenticator, FindMember
from turnstream.api.neighbours import Neighbours
from turnstream.api.reads import Reads, ReadStorage, Search
from turnstream.api.recent_chats import RecentChats
from turnstream.api.resolve import Resolver
from turnstream.api.streams.response import OwnerStreams
from turnstream.domain.errors import TooMany
from turnstream.domain.guards import Place
from turnstream.domain.identity import Identity
from turnstream.domain.plans import Refusal, rate_sentence
from turnstream.domain.turns import Turn
from turnstream.storage.chats.actions import Actions
from turnstream.storage.chats.chat_changes import ChatUpdates
from turnstream.storage.chats.chats import Chats
from turnstream.storage.chats.exchanges import Exchanges
from turnstream.storage.chats.grants import Grants
from turnstream.storage.chats.turns import Turns
from turnstream.storage.database import ANONYMOUS, OWNER, Database
from turnstream.storage.owners.accounts import Accounts
from turnstream.storage.owners.documents import DocumentTexts
from turnstream.storage.owners.tokens import Tokens
from turnstream.storage.owners.uploads import Uploads
from turnstream.storage.probe import Probe
from turnstream.stream.delivery import Deliveries
from turnstream.stream.directory import Directory


@dataclass(frozen=True, slots=True)
class Storage:
    """The repositories of one database."""

    database: Database
    of_owner: Database
    accounts: Accounts
    chats: Chats
    chat_changes: ChatUpdates
    search: Search | None
    turns: Turns
    probe: Probe
    exchanges: Exchanges
    actions: Actions
    grants: Grants
    documents: DocumentTexts
    uploads: Uploads
    tokens: Tokens

    @classmethod
    def of(cls, database: Database, everything: Database, search: Search | None, cell: str | None = None) -> Self:
        """With row-level security, `database` shows only the rows of the request's owner, and `everything` shows all
        rows. `cell` is the cell that new tokens name.
        """
        return cls(
            database=everything,
            of_owner=database,
            accounts=Accounts(everything),
            chats=Chats(database),
            chat_changes=ChatUpdates(database),
            search=search,
            turns=Turns(database),
            probe=Probe(everything),
            exchanges=Exchanges(database),
            actions=Actions(database),
            grants=Grants(database),
            documents=DocumentTexts(database),
            uploads=Uploads(database),
            tokens=Tokens(everything, cell),
        )

    @property
    def reads(self) -> ReadStorage:
        return ReadStorage(self.chats, self.chat_changes, self.search, self.turns)


class Feed(Protocol):
    """The part of an owner's feed that the list of chats needs."""

    async def cursor(self, database: Database, time: datetime | None = None) -> str:
        """Returns the cursor for a client that has read all chats as of `time`, or as of now."""
        ...


@dataclass(frozen=True, slots=True)
class Live:
    """Access to the running turns. After a commit, `notify` wakes the readers of a chat and of its owner's feed;
    `notify_owner` wakes only the readers of the feed. Three functions signal the workers: `wake` when a turn can be
    claimed, `refresh` after a new message or answer, `cancel` to stop a turn. `reserve_slot` yields the id of this
    replica if the statement that writes a turn may also claim it; `begin` then starts the turn, given its owner and the
    end of its path. `check_message` returns the text to store for a message; without it, texts are stored unchanged.
    """

    directory: Directory
    deliveries: Deliveries
    feed: Feed | None
    notify: Callable[[str, UUID], None]
    notify_owner: Callable[[str], None]
    wake: Callable[[], None]
    refresh: Callable[[UUID], Awaitable[None]]
    cancel: Callable[[UUID], Awaitable[None]]
    reserve_slot: Callable[[], AbstractContextManager[UUID | None]]
    begin: Callable[[str, Sequence[Turn]], None]
    check_message: Callable[[str, str | None, str, Place], Awaitable[str]] | None


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Settings of the HTTP API: sizes in bytes, times in seconds. Only `recorded_owners` may request recordings; None
    allows all owners. Without a `metrics_token`, everybody can read the metrics.
    """

    max_body_bytes: int
    max_upload_bytes: int
    stream_life: float
    heartbeat: float
    recorded_owners: frozenset[str] | None
    metrics_token: str | None

    @property
    def max_turn_bytes(self) -> int:
        """Most bytes of text in one message, or in the results of one request, including the documents they name."""
        return 2 * self.max_body_bytes


@dataclass(frozen=True, slots=True)
class Services:
    """The services of all handlers. Each of `admissions` may refuse a call. `reads` may run on a standby.
    `recent_chats` saves reads of rows. `states` has the state of each extension, by name. `note_refusal` counts an
    unauthorised request, by its address and by whether it had a token. `drain` takes this replica out of service.
    `failed` is set after a permanent failure of a part of the server: the process must then be restarted. `neighbours`
    are the other processes of the server, if any. `find_member` recognises members of chats.
    """

    authenticator: Authenticator
    admissions: Sequence[Admit]
    storage: Storage
    reads: Reads
    live: Live
    resolver: Resolver
    http: HttpSettings
    plans: OwnerPlans
    streams: OwnerStreams
    recent_chats: RecentChats
    states: Mapping[str, object]
    note_refusal: Callable[[str, str], None]
    failed: asyncio.Event
    is_ready: Callable[[], bool]
    drain: Callable[[], Awaitable[None]]
    neighbours: Neighbours | None = None
    find_member: FindMember | None = None


def services_of(request: Request) -> Services:
    """Returns the services. Raises RuntimeError if a program has mounted the app without running its lifespan."""
    services: Services | None = getattr(request.app.state, "services", None)
    if services is None:
        raise RuntimeError(
            "turnstream does not run: the lifespan of a mounted app is not run by itself; enter `lifespan(app)` of the"
            " module `turnstream` in that of your program (docs/embedding.md)"
        )
    return services


def path_for(request: Request, path: str) -> str:
    """Returns the path with the prefix under which the app is mounted or served."""
    prefix: str = request.scope.get("root_path", "")
    return prefix + path


# Methods that change nothing.
SAFE: Final = frozenset({"GET", "HEAD"})


async def admit(request: Request, endpoint: Endpoint) -> None:
    """Authenticates the request of any call, and checks that its credential allows the call. The request's statements
    then run for the identity's owner. Raises Unauthorized, Forbidden, and the refusals of extensions.
    """
    services = services_of(request)
    identity = await services.authenticator.identity_of(request)
    for check in services.admissions:
        check(identity, request.method not in SAFE)
    identity.require(*endpoint.scopes)
    if identity.is_bound and endpoint.reach != "handler":
        ids = {name: as_id(request.path_params.get(name)) for name in ("chat", "turn")}
        identity.require_reach(
            ids["chat"] if endpoint.reach != "owner" else None, ids["turn"] if endpoint.reach == "turn" else None
        )
    OWNER.set(identity.owner)
    ANONYMOUS.set(False)
    named = as_id(request.path_params.get("chat") or request.query_params.get("chat"))
    if services.find_member is not None and named is not None:
        identity = await services.find_member(identity, endpoint.call, named)
        identity.require(*endpoint.scopes)
        OWNER.set(identity.owner)
    request.state.identity = identity
    CALLER.set(identity)


def as_id(text: str | None) -> UUID | None:
    try:
        return UUID(text)
    except (TypeError, ValueError):
        return None


def identity_of(request: Request) -> Identity:
    """Returns the identity of an admitted request."""
    identity: Identity = request.state.identity
    return identity


def services_and_owner(request: Request) -> tuple[Services, str]:
    """Returns the services, and the owner of the request."""
    return services_of(request), identity_of(request).owner


def check_rate(refusal: Refusal | None) -> None:
    """Raises TooMany if the owner's plan refuses the request."""
    if refusal is not None:
        raise TooMany(rate_sentence(refusal.reached), refusal.retry_after, refusal.reached.name)


async def count_writes(services: Services, owner: str, count: int) -> None:
    """Counts writes of the owner. Raises TooMany if the owner's plan has no room for them."""
    plan = services.plans.of(owner)
    if count and plan.has("writes"):
        check_rate(await services.storage.accounts.count_writes(owner, plan, count))
