"""The models of a turn (its own model, then its fallbacks), with their retries, failures and breakers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from time import monotonic, perf_counter
from typing import Any

import structlog

from turnstream.domain.errors import PermanentError, ProviderError, TransientError
from turnstream.domain.rounds import Prices
from turnstream.domain.turns import TurnError
from turnstream.engine.frame_clock import FrameClock
from turnstream.engine.metrics import count_provider_error
from turnstream.engine.openings import Openings
from turnstream.engine.retries import Retries, RetryPolicy
from turnstream.kit.circuit import OwnersCircuit
from turnstream.kit.text import sentence
from turnstream.llm.provider import Provider, kept_open, report_account
from turnstream.telemetry import MODEL_BREAKER_OPEN, PROVIDER_CALL_SECONDS

log = structlog.get_logger(__name__)

_MOST_BREAKERS = 1000
# Errors that the content of a reply causes. They do not show that the provider is down.
_OF_THE_REPLY = frozenset({"empty_summary", "no_summary", "tool_use_failed"})


@dataclass(frozen=True, slots=True)
class ModelPolicy:
    """The limits of model calls. `stall_timeout` is in seconds. If a model is down, its `fallbacks` are called, with
    the parameters of the turn that `fitting` selects for them. After `breaker` failed calls in a row, the fallbacks are
    called at once for `breaker_pause` seconds: for one owner after failed calls of that owner, for all owners after
    failed calls of at least three owners. `summary_model` summarises conversations and results; the default is the
    turn's own model. A reply is cut off after `max_reply_chars` characters. `prices` returns the present prices of a
    model, `longest_reply` its most tokens in a reply, and `label` its name in metrics.
    """

    retries: RetryPolicy = field(default_factory=RetryPolicy)
    stall_timeout: float = 120.0
    fallbacks: Callable[[str], Sequence[str]] = lambda _: ()
    fitting: Callable[[str, Mapping[str, Any]], Mapping[str, Any]] = lambda _, params: params
    breaker: int | None = 10
    breaker_pause: float = 30.0
    summary_model: str | None = None
    max_reply_chars: int = 4_000_000
    prices: Callable[[str], Prices | None] = lambda _: None
    longest_reply: Callable[[str], int | None] = lambda _: None
    label: Callable[[str], str] = lambda _: "other"

    def cost(self, model: str | None, usage: Mapping[str, Any]) -> float | None:
        """Returns the cost of the usage at present prices; None if the model has no prices."""
        prices = None if model is None else self.prices(model)
        return None if prices is None else prices.cost_of(usage)


class ModelBreakers:
    """The breakers of recently failed models, by provider and model. All turns of a replica share them."""

    def __init__(self, policy: ModelPolicy, clock: Callable[[], float] = monotonic) -> None:
        self._policy = policy
        self._clock = clock
        self._circuits: dict[tuple[str, str], OwnersCircuit] = {}

    def is_open(self, provider: str, model: str, owner: str) -> bool:
        circuit = self._circuits.get((provider, model))
        return circuit is not None and circuit.wait(owner) is not None

    @contextmanager
    def call(self, provider: str, model: str, owner: str) -> Iterator[None]:
        """Encloses a call. Only transient failures count; other failures are due to the request or the account."""
        circuit = self._circuits.get((provider, model))
        with nullcontext() if circuit is None else circuit.trial(owner):
            try:
                yield
            except (TransientError, TimeoutError) as error:
                if not isinstance(error, TransientError) or error.type not in _OF_THE_REPLY:
                    new = OwnersCircuit(self._policy.breaker, self._policy.breaker_pause, self._clock)
                    self._failed(provider, model, owner, circuit or new)
                raise
        if circuit is None:  # no call of the model failed lately
            return
        if circuit.succeeded(owner):
            log.info("model.breaker_closed", provider=provider, model=model)
            MODEL_BREAKER_OPEN.labels(provider, self._policy.label(model)).set(circuit.tripped)
        if not circuit.failing and self._circuits.get((provider, model)) is circuit:
            del self._circuits[provider, model]

    def _failed(self, provider: str, model: str, owner: str, circuit: OwnersCircuit) -> None:
        self._circuits.setdefault((provider, model), circuit)
        if len(self._circuits) > _MOST_BREAKERS:  # some providers accept any model name that a user sends
            del self._circuits[next(iter(self._circuits))]
        if failures := circuit.failed(owner):
            pause = self._policy.breaker_pause
            log.warning(
                "model.breaker_open", provider=provider, model=model, owner=owner, failures=failures, pause=pause
            )
            MODEL_BREAKER_OPEN.labels(provider, self._policy.label(model)).set(1)


@dataclass(frozen=True, slots=True)
class ModelAccess:
    """Calls the models for all turns of a replica."""

    provider_for: Callable[[str], Provider]
    policy: ModelPolicy
    clock: FrameClock
    breakers: ModelBreakers
    openings: Openings = field(default_factory=Openings)

    def is_open(self, model: str, owner: str) -> bool:
        """True while the breaker of a model is open for an owner."""
        return self.breakers.is_open(self.provider_for(model).name, model, owner)

    @contextmanager
    def call(self, model: str, owner: str) -> Iterator[Provider]:
        """Encloses a call of a model for an owner."""
        provider, label, start = self.provider_for(model), self.policy.label(model), perf_counter()
        try:
            with self.breakers.call(provider.name, model, owner):
                yield provider
        except (ProviderError, TimeoutError) as error:
            count_provider_error(provider.name, label, error)
            raise
        PROVIDER_CALL_SECONDS.labels(provider.name, label).observe(perf_counter() - start)


@dataclass(slots=True)
class _Failures:
    """The failed calls of one model in a row. `calls` is 0 if the model was skipped because its breaker was open."""

    model: str
    since: float
    calls: int = 0
    seconds: float = 0.0
    last: ProviderError | None = None

    def __str__(self) -> str:
        if self.last is None:
            return f"{self.model} was not called, because its last calls had failed."
        if self.calls < 2:
            return sentence(self.last.shown)
        within = f"{self.seconds:.0f} s" if self.seconds >= 1 else "one second"
        return f"{sentence(self.last.shown)} {self.model} was called {self.calls} times within {within}."


class ModelRoute:
    """The models that a run may still call. `model` is the present model. A run does not return to a failed model, but
    a later run of the turn starts again with the first model.
    """

    def __init__(self, access: ModelAccess, model: str, owner: str) -> None:
        self._access = access
        self._owner = owner
        self._left = [model, *access.policy.fallbacks(model)]
        self._retries = Retries(access.policy.retries)
        self._failures: list[_Failures] = []

    @property
    def model(self) -> str:
        return self._left[0]

    @property
    def provider(self) -> Provider:
        return self._access.provider_for(self.model)

    def connection_kept_open(self) -> AbstractAsyncContextManager[None]:
        """Keeps a connection open during the block, for the next call of the present model."""
        try:
            return kept_open(self.provider)
        except PermanentError:
            return nullcontext()  # the model is no longer configured: the next call raises the error

    @property
    def calls(self) -> int:
        """The number of calls of the present model that have failed in a row."""
        return self._failures[-1].calls if self._failures and self._failures[-1].model == self.model else 0

    @contextmanager
    def call(self) -> Iterator[Provider]:
        """Encloses a call of the present model. Models with an open breaker are skipped. If the breakers of all
        remaining models are open, the present model is called anyway.
        """
        first = next(
            (place for place, model in enumerate(self._left) if not self._access.is_open(model, self._owner)), 0
        )
        for _ in range(first):
            if not self.calls:
                self._failures.append(_Failures(self.model, monotonic()))
            self._leave("breaker_open")
        failures = self._present_failures()
        with self._access.call(self.model, self._owner) as provider:
            try:
                yield provider
            except ProviderError as error:
                failures.calls, failures.last = failures.calls + 1, error
                failures.seconds = monotonic() - failures.since
                raise
        self._failures.pop()
        self._retries.reset()

    def seconds_to_wait(self, error: TransientError, *, charged: bool) -> float:
        """Returns the seconds to wait after a failed call before the next call, which may be a call of the next model.
        Raises PermanentError if no retry and no other model is left.
        """
        try:
            if len(self._left) == 1 or not self._access.is_open(self.model, self._owner):
                return self._retries.delay(error, charged=charged)
        except PermanentError as spent:
            if len(self._left) == 1:
                raise
            self._failures[-1].last = spent
        self._leave(error.type)
        return 0.0

    def leave(self, error: ProviderError) -> bool:
        """Replaces the present model by the next model. Returns False if there is no next model."""
        if len(self._left) == 1:
            return False
        report_account(error)
        self._present_failures().last = error
        self._leave(error.type)
        return True

    def turn_error(self, error: ProviderError) -> TurnError:
        """Returns the error of a turn after this failure: why its own model failed, then why each fallback failed."""
        report_account(error)
        if not self._failures:
            return _turn_error(error, error.shown)
        last = self._failures[-1]
        if last.last is not None:
            last.last.message = error.message  # it also names the limit or the requested wait
        first = next((failures.last for failures in self._failures if failures.last is not None), error)
        if len(self._failures) == 1 and last.calls < 2:
            return _turn_error(error, error.shown)
        own, *fallbacks = self._failures
        message = " ".join([str(own), *(f"Its fallback {each.model} failed too: {each}" for each in fallbacks)])
        return _turn_error(first, message)

    def _present_failures(self) -> _Failures:
        if not self._failures or self._failures[-1].model != self.model:
            self._failures.append(_Failures(self.model, monotonic()))
        return self._failures[-1]

    def _leave(self, reason: str) -> None:
        log.warning("model.fallback", model=self.model, fallback=self._left[1], error=reason)
        del self._left[0]
        self._retries.reset()


def _turn_error(error: ProviderError, message: str) -> TurnError:
    wait = {"retry_after": error.retry_after} if error.retry_after else None
    return TurnError(error.type, message, error.request_id, wait)
