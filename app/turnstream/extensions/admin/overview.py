"""Computes the overview for operators from rows: only on demand, at limited intervals, and once for all viewers."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from time import monotonic

from pydantic import BaseModel

from turnstream.domain.errors import StorageError
from turnstream.domain.turns import Status
from turnstream.extensions.admin.operations import Operations, ReplicaState
from turnstream.extensions.admin.schemas import (
    FailuresOut,
    HourOut,
    JobCountsOut,
    MinuteOut,
    ModelFiguresOut,
    NowOut,
    OpenTurnOut,
    ReplicaOut,
    SpenderOut,
    SpendOut,
    ToolFiguresOut,
)
from turnstream.kit.clock import CLOCK
from turnstream.libraries.explanations.reasons import TurnState, reasons
from turnstream.libraries.explanations.rows import TurnStates
from turnstream.libraries.turn_counts import JobCounts, TurnCounts
from turnstream.libraries.usage_sums import UsageFigures, UsageGroup, figures_json, usage_sums
from turnstream.llm.models.catalog import Models
from turnstream.storage.database import Database

_LOOK = 2.0  # seconds between two reads for one viewer, and between two computations of `now`
_HOURS = 10.0  # seconds between two computations of `hour`
_SPENDS = 60.0
_MOST_EFFORT = 20  # the pause after a computation is at least this multiple of the computation's duration
_PATIENCE = 1.0  # seconds for which a viewer waits for a new version of a part
_MOST_TURNS = 50  # maximum number of turns that are shown for each status
_MOST_SPENDERS = 10
_SHOWN: Sequence[Status] = ("running", "waiting", "queued")


class _Part:
    """One part of the overview, as JSON. The part is computed on demand, at most once in `every` seconds, or less often
    if the computation would take more than a twentieth of the time.
    """

    def __init__(self, make: Callable[[], Awaitable[BaseModel]], every: float) -> None:
        self._make = make
        self._every = every
        self._making: asyncio.Task[None] | None = None
        self._due = self._old = float("-inf")
        self._json = b""

    async def get(self) -> bytes:
        """Returns the JSON of the part. This may be the previous version while the next version is computed. Raises
        StorageError.
        """
        now, making = monotonic(), self._making
        if making is None and now >= self._due:
            making = self._making = asyncio.create_task(self._renew())
        if making is not None:
            await asyncio.wait({making}, timeout=None if now >= self._old else _PATIENCE)
            if making.done():
                making.result()
        return self._json

    async def _renew(self) -> None:
        start = monotonic()
        try:
            self._json = (await self._make()).model_dump_json().encode()
            every = max(self._every, _MOST_EFFORT * (monotonic() - start))
            self._due, self._old = start + every, start + 2 * every
        finally:
            self._making = None


class Overview:
    """The parts of the overview. `database` must have access to the rows of all owners. An owner without a plan may run
    `most_running` turns at once.
    """

    def __init__(self, database: Database, models: Models, most_running: int | None) -> None:
        self._operations = Operations(database)
        self._states = TurnStates(database, most_running)
        self._counts = TurnCounts(database, keep=_LOOK)
        self._database = database
        self._models = models
        self._parts = {
            "now": _Part(self._now, _LOOK),
            "hour": _Part(self._hour, _HOURS),
            "spend": _Part(self._spend, _SPENDS),
        }

    async def parts(self) -> Mapping[str, bytes]:
        """Returns the JSON of each part by the part's name. Raises StorageError."""
        return {name: await part.get() for name, part in self._parts.items()}

    async def frames(self, parts: Mapping[str, bytes]) -> AsyncGenerator[bytes, None]:
        """Yields the frames of a stream until it is cancelled: first all `parts`, then each part that has changed."""
        sent: Mapping[str, bytes] = {}
        while True:
            changed = [(name, part) for name, part in parts.items() if sent.get(name) != part]
            if changed:
                yield b"".join(b"event: %b\ndata: %b\n\n" % (name.encode(), part) for name, part in changed)
            sent = parts
            await asyncio.sleep(_LOOK)
            with suppress(StorageError):  # the page shows how old its figures are
                parts = await self.parts()

    async def _now(self) -> NowOut:
        replicas = await self._operations.replicas()
        counts = await self._counts.open_turns()
        turns = [turn for status in _SHOWN for turn in await self._states.open(_MOST_TURNS, status)]
        return NowOut(
            at=CLOCK.now(),
            replicas=[replica_out(each) for each in replicas],
            counts={
                "running": sum(each.running for each in replicas),
                "waiting": counts.waiting if counts else 0,
                "queued": counts.queued if counts else 0,
            },
            oldest_queued_seconds=counts.oldest if counts else 0,
            jobs=JobCountsOut(**asdict(counts.jobs if counts else JobCounts(0, 0, 0, 0))),
            turns=[_turn_out(turn) for turn in turns],
        )

    async def _hour(self) -> HourOut:
        hour = await self._operations.hour()
        provider = self._models.provider_name
        return HourOut(
            until=CLOCK.now(),
            minutes=[MinuteOut(**asdict(each)) for each in hour.minutes],
            models=[ModelFiguresOut(provider=provider(each.model), **asdict(each)) for each in hour.models],
            failures=[FailuresOut(provider=provider(each.model), **asdict(each)) for each in hour.failures],
            tools=[ToolFiguresOut(**asdict(each)) for each in hour.tools],
        )

    async def _spend(self) -> SpendOut:
        day = CLOCK.now().date()
        by: Sequence[UsageGroup] = ("owner", "model")
        (total, *owners), (_, *models) = [
            await usage_sums(self._database, None, [group], day, day, _MOST_SPENDERS) for group in by
        ]
        return SpendOut(
            day=day,
            total=UsageFigures(**figures_json(total)),
            owners=[SpenderOut(name=each.owner or "", **figures_json(each)) for each in owners],
            models=[SpenderOut(name=each.model or "", **figures_json(each)) for each in models],
        )


def replica_out(replica: ReplicaState) -> ReplicaOut:
    return ReplicaOut(
        id=replica.id,
        address=replica.address,
        since=replica.since,
        state=replica.state,
        lease_seconds=replica.lease_left,
        running=replica.running,
    )


def _turn_out(turn: TurnState) -> OpenTurnOut:
    return OpenTurnOut(
        id=turn.id,
        chat=turn.chat,
        owner=turn.owner,
        status=turn.status,
        model=turn.model,
        seconds=turn.seconds,
        attempt=turn.attempt,
        replica=turn.replica,
        readers=turn.readers,
        reasons=reasons(turn),
        stopping=turn.cancel_requested,
        trace=turn.trace,
    )
