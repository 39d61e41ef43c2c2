"""The calculated needs of a load: the sums of docs/capacity.md."""

from dataclasses import dataclass
from math import ceil

from turnstream.config import Settings
from turnstream.engine.frame_clock import TICK

PLANNED = 0.6  # of a replica's CPU: what is left is for peaks, and for the turns of a replica that died
PLANNED_POSTGRES = 0.5
DAY = 86_400
_DEFAULTS = Settings.model_fields


@dataclass(frozen=True, slots=True)
class Costs:
    """As `python -m tests.bench costs storage` measured them, and `python -m tests.bench.slope` a block. CPU is in
    seconds, all else in bytes. `second` is one in which a server has turns and its frame clock beats.
    """

    second: float = 27.6e-3
    turn: float = 7.1e-3
    frame: float = 82e-6
    delta: float = 6.4e-6
    frame_of_further_reader: float = 26e-6
    block: float = 0.39e-3
    postgres_turn: float = 3.6e-3
    postgres_second: float = 0.15e-3  # of a running turn
    postgres_block: float = 0.38e-3
    wal_turn: float = 9_900.0
    wal_block: float = 1_400.0
    wal_byte: float = 2.7  # for a byte of text
    kept_turn: float = 7_000.0
    kept_byte: float = 1.26


@dataclass(frozen=True, slots=True)
class Traffic:
    """`turns` a second, each of `deltas` in `blocks`, followed by `readers`. The model is silent for `silence` seconds
    before its first delta, and then sends `rate` deltas a second.
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
        """Turns that run at once (Little's law)."""
        return self.turns * (self.silence + self.text_seconds)


@dataclass(frozen=True, slots=True)
class Work:
    """CPU seconds that one turn takes. The end of its first block is in what a turn costs."""

    turn: float
    text_second: float  # a second of its text
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
    wal: float  # bytes a day
    kept: float  # bytes a day


def needs(traffic: Traffic, costs: Costs) -> Needs:
    """One replica more than the load takes, for the one that dies or is rolled."""
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
