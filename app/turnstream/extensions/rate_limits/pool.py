"""The keys of one provider: the choice of a key for each call, and a queue of calls that exceed the limits."""

import asyncio
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import dataclass
from hashlib import sha256
from time import monotonic
from typing import Any, Protocol

import structlog

from turnstream.domain.compaction import tokens_of
from turnstream.domain.errors import AccountRefused, ProviderError, TransientError
from turnstream.domain.rounds import billed_tokens
from turnstream.extensions.rate_limits.allocation import (
    LEASE,
    GrantedShare,
    KeyState,
    ShareRequest,
    exchange,
    new_state,
    pause_before,
    rate_for,
)
from turnstream.extensions.rate_limits.amounts import (
    NONE,
    UNLIMITED,
    Amounts,
    RateLimits,
    need_of,
    report_of,
)
from turnstream.extensions.rate_limits.fair_queue import FairQueue
from turnstream.libraries.extension_metrics import (
    PROVIDER_KEYS_SET_ASIDE,
    PROVIDER_RATE_WAIT_SECONDS,
    PROVIDER_RATE_WAITING,
)
from turnstream.libraries.providers.connect import OnDemand
from turnstream.llm.models.api import MakePool, ProviderSpec
from turnstream.llm.provider import MessageDelta, MessageStarted, ModelRequest, Part, discard_answer, kept_open

log = structlog.get_logger(__name__)

# A replica uses its share for less time than the share is reserved, because the store's clock determines the end of the
# reservation.
_USED = 0.8 * LEASE
_SET_ASIDE = 300.0  # seconds for which a refused key is not used
_NOTICE = 5.0  # seconds between two notices of a waiting call
_WORTH_A_NOTICE = 1.0  # seconds; a shorter wait is not reported
_MOST_MODELS = 1000
_AHEAD_OF_QUEUE = 64  # the number of waiting calls whose needs an exchange includes
_SMOOTHING = 0.1  # weight of the newest call in the averages of a model; the first calls weigh more
_FIRST_OUTPUT = 500.0  # assumed tokens of a reply, until a reply has been measured
# Errors by which the provider refuses the key itself, or its account. Other refusals may concern a single model.
_OF_KEY = frozenset(
    {
        "UNAUTHENTICATED",
        "authentication_error",
        "billing_error",
        "billing_hard_limit_reached",
        "billing_not_active",
        "http_401",
        "http_402",
        "insufficient_quota",
        "invalid_api_key",
    }
)


class RateStore(Protocol):
    """Stores the state of each key and model, for all replicas."""

    async def limits(self, keys: Sequence[str]) -> Mapping[str, RateLimits]:
        """Returns the known limits of these keys."""
        ...

    async def exchange(self, key: str, wish: ShareRequest) -> GrantedShare:
        """Applies a replica's request to the state of the key. Waits while the store is unreachable."""
        ...


class MemoryStore:
    """Keeps the states in the memory of one process."""

    def __init__(self) -> None:
        self._states: dict[str, KeyState] = {}

    async def limits(self, keys: Sequence[str]) -> Mapping[str, RateLimits]:
        return {key: self._states[key].limits for key in keys if key in self._states}

    async def exchange(self, key: str, wish: ShareRequest) -> GrantedShare:
        now = monotonic()
        state, grant = exchange(self._states.get(key) or new_state(wish.limits, now), wish, now)
        self._states[key] = state
        return grant


class KeyAccount:
    """The replica's share of the limits that one key has for one model."""

    def __init__(self, pool: "KeyPool", key: "PoolKey", model: str) -> None:
        self._pool = pool
        self.key = key
        self.name = f"{key.id}:{model}"
        self.limits = pool.stated
        self._held = NONE
        self._spent = NONE
        self._remaining = UNLIMITED
        self._blocked = 0.0  # the wait that the provider requested, if it is not yet reported
        self._blocked_until = 0.0
        self._until = 0.0
        self._learned = False  # whether this replica knows limits that the store does not have
        self._exchanging: asyncio.Task[GrantedShare] | None = None
        self.grant = GrantedShare(NONE, 1.0, 0.0, UNLIMITED)
        self.exchanged_at = 0.0

    @property
    def capacity(self) -> float:
        """The remaining part of the limits, as far as this replica knows."""
        if monotonic() < self._blocked_until:
            return -1.0
        share = min(
            (mine / most for mine, most in zip(self._held, self.limits.capacity, strict=True) if math.isfinite(most)),
            default=0.0,
        )
        return self.grant.left + share

    @property
    def has_unreported(self) -> bool:
        return self._learned or self._spent != NONE or self._blocked > 0 or self._held != NONE

    def take(self, need: Amounts) -> Amounts | None:
        """Spends the need and returns it, if the key has enough left."""
        if not self.limits.limited:
            return None if monotonic() < self._blocked_until else NONE
        now = monotonic()
        need = need.least(self.limits.capacity)  # a larger need would never fit, so the provider decides
        if now >= self._until or now < self._blocked_until or not self._held.covers(need):
            return None
        self.add(need)
        return need

    def add(self, used: Amounts) -> None:
        """Books the use of a call. A negative amount goes back to the share."""
        self._held = self._held.plus(used, -1)
        self._spent = self._spent.plus(used)

    def observe(self, headers: Mapping[str, str]) -> None:
        report = report_of(headers)
        if report is None:
            return
        limits = report.limits.stricter(self._pool.stated)
        if limits != self.limits:
            log.info("rate_limits.learned", provider=self._pool.name, key=self.key.id, limits=_shown(limits))
            self.limits, self._learned = limits, True
        self._remaining = self._remaining.least(report.remaining)

    def block(self, seconds: float) -> None:
        """Blocks the key on all replicas for `seconds`, because the provider refused a call due to its rate limit."""
        self._blocked = max(self._blocked, seconds)
        self._blocked_until = max(self._blocked_until, monotonic() + seconds)

    async def exchange(self, need: Amounts, wanted: Amounts) -> GrantedShare:
        """Reports the spent amount, and reserves another share. Calls that arrive meanwhile get the result of the
        running exchange.
        """
        if not self.limits.limited:
            self.grant = GrantedShare(UNLIMITED, 1.0, max(0.0, self._blocked_until - monotonic()), UNLIMITED)
            return self.grant
        if self._exchanging is None:
            self._exchanging = asyncio.create_task(self._exchange(need.least(self.limits.capacity), wanted))
            self._exchanging.add_done_callback(self._forget)
        return await asyncio.shield(self._exchanging)

    def _forget(self, task: "asyncio.Task[GrantedShare]") -> None:
        self._exchanging = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("rate_limits.failed", provider=self._pool.name, key=self.key.id, error=str(error))

    async def _exchange(self, need: Amounts, wanted: Amounts) -> GrantedShare:
        start, spent, blocked, self._learned = monotonic(), self._spent, self._blocked, False
        remaining, self._remaining = self._remaining, UNLIMITED
        wish = ShareRequest(self._pool.replica, self.limits, spent, need, wanted, remaining, blocked)
        grant = await self._pool.store.exchange(self.name, wish)
        meanwhile = self._spent.plus(spent, -1)
        self._spent = meanwhile
        self._blocked = 0.0 if self._blocked == blocked else self._blocked
        self._held = grant.held.plus(meanwhile, -1)
        self._until, self.exchanged_at, self.grant = start + _USED, start, grant
        if grant.seconds and grant.held == NONE:
            self._blocked_until = max(self._blocked_until, start)
        return grant


@dataclass(eq=False, slots=True)
class PoolKey:
    """A key of the provider, with its adapter. `id` identifies it in rows and logs without revealing it."""

    id: str
    provider: OnDemand
    refused_until: float = 0.0


@dataclass(eq=False, slots=True)
class _Waiting:
    need: Amounts
    turn: asyncio.Event


class _ModelQueue:
    """The waiting calls of one model, and the averages of past calls."""

    def __init__(self, accounts: Sequence[KeyAccount]) -> None:
        self.accounts = accounts
        self.waiting: FairQueue[_Waiting] = FairQueue()
        self._known = asyncio.Lock()
        self._is_known = False
        self._calls = 1  # the assumed output counts as one call
        self.output = _FIRST_OUTPUT
        self.ratio = 1.0  # the ratio of counted to estimated input

    async def load(self, store: RateStore) -> None:
        """Loads the limits that other replicas have learned, so that even a first burst of calls respects them."""
        if self._is_known:
            return
        async with self._known:
            if not self._is_known:
                found = await store.limits([account.name for account in self.accounts])
                for account in self.accounts:
                    account.limits = account.limits.stricter(found.get(account.name, RateLimits()))
                self._is_known = True

    @property
    def unlimited(self) -> bool:
        """Whether there is a single key, whose calls need neither a count nor a wait."""
        return (
            self._is_known and len(self.accounts) == 1 and not self.accounts[0].limits.limited and not len(self.waiting)
        )

    def learn(self, estimated: float, input: float, output: float) -> None:
        self._calls += 1
        weight = max(_SMOOTHING, 1 / self._calls)
        self.output += weight * (output - self.output)
        if estimated > 0 and input > 0:
            self.ratio += weight * (min(10.0, input / estimated) - self.ratio)


class KeyPool:
    """A provider with one adapter for each of its keys. `stated` are the configured limits of each key for each model;
    response headers may lower them. A call waits up to `longest_wait` seconds. `store` is replaced when the engine
    starts.
    """

    def __init__(
        self,
        name: str,
        keys: Sequence[tuple[str, OnDemand]],
        stated: RateLimits = RateLimits(),  # noqa: B008, a frozen value
        longest_wait: float = 300.0,
    ) -> None:
        self.name = name
        self.keys = [PoolKey(key_id(name, key), provider) for key, provider in keys]
        self.stated = stated
        self.store: RateStore = MemoryStore()
        self.replica = "this"
        self._longest_wait = longest_wait
        self._models: dict[str, _ModelQueue] = {}
        for key in self.keys:
            key.provider.observe(lambda model, headers, key=key: self._observe(key, model, headers))  # type: ignore[misc]

    def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Part], None]:
        model = self._models.get(request.model)
        if model is not None and model.unlimited:  # a single key without limits needs no choice, no count and no wait
            return self.keys[0].provider.stream(request)
        return self._stream(request)

    async def _stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Part], None]:
        model = self._model(request.model)
        await model.load(self.store)
        while True:
            account, booked, estimated = await self._admitted(model, request)
            begun, used = False, _Used()
            try:
                async with aclosing(account.key.provider.stream(request)) as stream:
                    async for parts in stream:
                        begun = True
                        if booked != NONE:
                            used.count(parts)
                        yield parts
                return
            except AccountRefused as error:
                if begun or not self._set_aside(account.key, error):
                    raise
            except TransientError as error:
                if error.busy and error.retry_after:
                    account.block(error.retry_after)
                raise
            finally:
                if booked != NONE:
                    self._settle(model, account, booked, estimated, used if begun else None)

    async def count(self, request: ModelRequest) -> int | None:
        return await self._usable()[0].provider.count(request)

    def kept_open(self) -> AbstractAsyncContextManager[None]:
        """Keeps connections open only for a single key. With several keys, the key of the next call is unknown."""
        return kept_open(self.keys[0].provider) if len(self.keys) == 1 else nullcontext()

    async def discard(self, retained: Mapping[str, Any]) -> None:
        """Cancels an answer with the key that requested it. Rows do not name the key, so all keys are tried."""
        refusal: ProviderError | None = None
        for key in self.keys:
            try:
                await discard_answer(key.provider, retained)
                return
            except ProviderError as error:
                refusal = error
        if refusal is not None:
            raise refusal

    async def flush(self) -> None:
        """Reports spent amounts, and returns shares that were not used recently."""
        self._count_set_aside()
        for model in list(self._models.values()):
            for account in model.accounts:
                idle = monotonic() - account.exchanged_at > LEASE / 4
                if account.limits.limited and account.has_unreported and idle and not len(model.waiting):
                    await account.exchange(NONE, NONE)

    @property
    def described(self) -> str:
        """The number of keys, and the configured limits."""
        keys = f"{len(self.keys)} keys" if len(self.keys) > 1 else "1 key"
        stated = ", ".join(f"{most:,} {name}" for name, most in _shown(self.stated).items())
        return f"{keys}, {stated} per minute and model" if stated else f"{keys}, limits by the headers of responses"

    # --- the choice of a key -----------------------------------------------------------------------------------------

    def _model(self, name: str) -> _ModelQueue:
        found = self._models.get(name)
        if found is None:
            if len(self._models) >= _MOST_MODELS:  # some providers accept any model name that a user sends
                idle = next((each for each, queue in self._models.items() if not len(queue.waiting)), None)
                if idle is not None:
                    del self._models[idle]
            found = self._models[name] = _ModelQueue([KeyAccount(self, key, name) for key in self.keys])
        return found

    def _observe(self, key: PoolKey, model: str, headers: Mapping[str, str]) -> None:
        for account in self._model(model).accounts:
            if account.key is key:
                account.observe(headers)

    def _usable(self) -> Sequence[PoolKey]:
        """Returns the keys that are not excluded, or all keys if every key is excluded, because a refusal with its
        reason is more useful than a wait.
        """
        now = monotonic()
        return [key for key in self.keys if key.refused_until <= now] or self.keys

    def _set_aside(self, key: PoolKey, error: AccountRefused) -> bool:
        """Excludes a refused key for a while. Returns False if no other key is usable."""
        if len(self.keys) == 1 or error.type not in _OF_KEY:
            return False
        known, key.refused_until = key.refused_until > monotonic(), monotonic() + _SET_ASIDE
        refused = self._count_set_aside()
        if not known:  # simultaneous calls are refused together, but logged once
            log.error("provider.key_set_aside", provider=self.name, key=key.id, error=error.type, message=error.message)
        return refused < len(self.keys)

    def _count_set_aside(self) -> int:
        refused = sum(each.refused_until > monotonic() for each in self.keys)
        PROVIDER_KEYS_SET_ASIDE.labels(self.name).set(refused)
        return refused

    def _take(self, model: _ModelQueue, need: Amounts) -> tuple[KeyAccount, Amounts] | None:
        """Books the need on the key with the largest remaining amount."""
        usable = self._usable()
        accounts = [account for account in model.accounts if account.key in usable] if len(self.keys) > 1 else None
        for account in sorted(accounts, key=_by_capacity, reverse=True) if accounts else model.accounts:
            if (booked := account.take(need)) is not None:
                return account, booked
        return None

    async def _admitted(self, model: _ModelQueue, request: ModelRequest) -> tuple[KeyAccount, Amounts, float]:
        """Waits until the remaining amount of a key suffices for the call. Calls wait in an order that alternates
        between owners.
        """
        estimated = 0.0
        if any(account.limits.limits_tokens for account in model.accounts):
            estimated = float(tokens_of(request.size))
        need = need_of(estimated * model.ratio, model.output)
        if not len(model.waiting) and (taken := self._take(model, need)) is not None:
            return *taken, estimated
        return *await self._wait(model, request, need), estimated

    async def _wait(self, model: _ModelQueue, request: ModelRequest, need: Amounts) -> tuple[KeyAccount, Amounts]:
        caller = request.caller
        owner, start = "" if caller is None else caller.owner, monotonic()
        mine, noticed = _Waiting(need, asyncio.Event()), -_NOTICE
        model.waiting.push(owner, mine)
        PROVIDER_RATE_WAITING.labels(self.name).inc()
        try:
            while (taken := self._take(model, need) if model.waiting.head is mine else None) is None:
                if model.waiting.head is mine:
                    seconds = await self._refill(model, need)
                    if not seconds:
                        continue
                else:
                    seconds = self._estimate(model, owner, mine)
                waited = monotonic() - start
                if waited + seconds > self._longest_wait:
                    raise _too_long(self.name, seconds)
                if caller is not None:
                    caller.pause()
                if caller is not None and seconds >= _WORTH_A_NOTICE and waited - noticed >= _NOTICE:
                    caller.wait(seconds)
                    noticed = waited
                pause = pause_before(seconds) if model.waiting.head is mine else _NOTICE
                try:
                    async with asyncio.timeout(pause):
                        await mine.turn.wait()
                except TimeoutError:
                    pass
                mine.turn.clear()
        finally:
            PROVIDER_RATE_WAITING.labels(self.name).dec()
            model.waiting.remove(owner, mine)
            if (head := model.waiting.head) is not None:
                head.turn.set()
        PROVIDER_RATE_WAIT_SECONDS.labels(self.name).observe(monotonic() - start)
        if caller is not None:
            caller.start()
        return taken

    async def _refill(self, model: _ModelQueue, need: Amounts) -> float:
        """Reserves shares for the waiting calls. Returns the seconds until the first call can start; 0 if a share is
        enough.
        """
        wanted = NONE
        for each in model.waiting.heads(_AHEAD_OF_QUEUE):
            wanted = wanted.plus(each.need)
        usable = self._usable()
        accounts = [account for account in model.accounts if account.key in usable]
        grants = await asyncio.gather(*(account.exchange(need, wanted) for account in accounts))
        return min(grant.seconds for grant in grants)

    def _estimate(self, model: _ModelQueue, owner: str, mine: _Waiting) -> float:
        """Estimates the seconds until a call that waits behind others can start. It assumes that each call before it
        needs as much, and divides the sum by this replica's rate.
        """
        rate = NONE
        for account in model.accounts:
            rate = rate.plus(account.grant.rate)
        ahead = rate_for(mine.need, model.waiting.ahead_of(owner, mine) + 1)
        waits = [its / gain for its, gain in zip(ahead, rate, strict=True) if 0 < gain < math.inf]
        return max(waits, default=0.0)

    def _settle(
        self, model: _ModelQueue, account: KeyAccount, booked: Amounts, estimated: float, used: "_Used | None"
    ) -> None:
        """Books the difference between the booked amounts and the call's actual use. A call without a reply has used
        one request and no tokens. If the provider reports no usage of a reply, the booked amounts remain.
        """
        if used is None:
            account.add(Amounts(0, -booked.input, -booked.output, -booked.tokens))
        elif used.input or used.output:
            model.learn(estimated, used.input, used.output)
            account.add(need_of(used.input, used.output).plus(booked, -1)._replace(requests=0))
        if (head := model.waiting.head) is not None:
            head.turn.set()


class _Used:
    """The tokens of a reply that the provider has counted so far."""

    def __init__(self) -> None:
        self.input = self.output = 0

    def count(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if isinstance(part, MessageStarted | MessageDelta) and part.usage:
                tokens = billed_tokens(part.usage)
                self.input = max(self.input, tokens.input + tokens.cache_write)
                self.output = max(self.output, tokens.output)


def _by_capacity(account: KeyAccount) -> float:
    return account.capacity


def pool_of(longest_wait: float) -> MakePool:
    """Returns a function that makes the pool of a provider."""

    def make(spec: ProviderSpec, clients: Sequence[OnDemand]) -> KeyPool:
        keys = list(zip(spec.keys or (spec.key or "",), clients, strict=True))
        return KeyPool(spec.name, keys, RateLimits.per_minute(**spec.limits), longest_wait)

    return make


def key_id(provider: str, key: str) -> str:
    """Returns an identifier of the key that does not reveal it."""
    return sha256(f"turnstream provider key\0{provider}\0{key}".encode()).hexdigest()[:16]


def _too_long(provider: str, seconds: float) -> TransientError:
    message = f"The rate limit of {provider} is used up. This call could start in about {seconds:.0f} s."
    return TransientError("rate_limit_error", message, retry_after=round(seconds, 1), busy=True)


def _shown(limits: RateLimits) -> dict[str, int]:
    return {name: int(most) for name, most in zip(Amounts._fields, limits.capacity, strict=True) if math.isfinite(most)}
