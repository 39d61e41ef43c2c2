"""Calculates the needs of a load, with the formulas of docs/capacity.md."""

from dataclasses import dataclass
from math import ceil

from turnstream.config import Settings
from turnstream.engine.frame_clock import TICK

PLANNED = 0.6  # the share of a replica's CPU that is planned; the rest is for peaks, and for turns of a dead replica
PLANNED_POSTGRES = 0.5
DAY = 86_400
_DEFAULTS = Settings.model_fields


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured costs, from `python -m tests.bench costs storage`. The costs of a block come from `python -m
    tests.bench.slope`. CPU is in seconds, everything else in bytes. `second` is the cost of a second with turns while
    the frame clock beats.
    """

    second: float = 27.6e-3
    turn: float = 7.1e-3
    frame: float = 82e-6
    delta: float = 6.4e-6
    frame_of_further_reader: float = 26e-6
    block: float = 0.39e-3
    postgres_turn: float = 3.6e-3
    postgres_second: float = 0.15e-3  # CPU for each second of a running turn
    postgres_block: float = 0.38e-3
    wal_turn: float = 9_900.0
    wal_block: float = 1_400.0
    wal_byte: float = 2.7  # bytes for each byte of text
    kept_turn: float = 7_000.0
    kept_byte: float = 1.26


@dataclass(frozen=True, slots=True)
class Traffic:
    """The traffic of a cell: `turns` per second, each with `deltas` in `blocks` and with `readers`. The model is silent
    for `silence` seconds before its first delta, and then sends `rate` deltas a second.
    """

    turns: float
    deltas: float = 400.0
    rate: float = 50.0
    silence: float = 2.0
    delta_bytes: float = 4.5
    blocks: int = 3
    readers: int = 1

    @property
    def text_seconds(self) -> float:
        return self.deltas / self.rate

    @property
    def running(self) -> float:
        """The number of concurrent turns (Little's law)."""
        return self.turns * (self.silence + self.text_seconds)


@dataclass(frozen=True, slots=True)
class Work:
    """The CPU seconds of one turn. The cost of a turn includes the end of its first block."""

    turn: float
    text_second: float  # for each second of text
    postgres_turn: float
    postgres_second: float


def work_of(traffic: Traffic, costs: Costs) -> Work:
    frames = min(traffic.rate, 1 / TICK)
    further = (traffic.readers - 1) * costs.frame_of_further_reader
    return Work(
        turn=costs.turn + (traffic.blocks - 1) * costs.block,
        text_second=frames * (costs.frame + further) + traffic.rate * costs.delta,
        postgres_turn=costs.postgres_turn + (traffic.blocks - 1) * costs.postgres_block,
        postgres_second=costs.postgres_second,
    )


@dataclass(frozen=True, slots=True)
class Needs:
    running: float
    replicas: int
    postgres_cores: int
    connections: int
    wal: float  # bytes per day
    kept: float  # bytes per day


def needs(traffic: Traffic, costs: Costs) -> Needs:
    """Returns the needs, including one spare replica for a failure or a rolling deploy."""
    work = work_of(traffic, costs)
    cpu = traffic.turns * (work.turn + traffic.text_seconds * work.text_second)
    postgres = traffic.turns * (work.postgres_turn + traffic.text_seconds * work.postgres_second)
    replicas = 1 + max(
        ceil(cpu / (PLANNED - costs.second)), ceil(traffic.running / _DEFAULTS["concurrent_turns"].default)
    )
    text = traffic.deltas * traffic.delta_bytes
    wal = costs.wal_turn + (traffic.blocks - 1) * costs.wal_block + text * costs.wal_byte
    return Needs(
        running=traffic.running,
        replicas=replicas,
        postgres_cores=ceil(postgres / PLANNED_POSTGRES),
        connections=replicas * (_DEFAULTS["pool_size"].default + 1),
        wal=traffic.turns * DAY * wal,
        kept=traffic.turns * DAY * (costs.kept_turn + text * costs.kept_byte),
    )
