"""The load generator: its options and its results."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Literal

import msgspec

from tests.bench.native import built
from tests.bench.processes import TOOLS_CPU, on_cpu

Dialect = Literal["turnstream", "relay", "provider", "chat-completions", "ui-messages", "agent-protocol"]


@dataclass(frozen=True, slots=True)
class Load:
    """Options of the load generator. Every other chat uses `second_port`. `mirror_port` serves a second reader of each
    turn. A port of 0 is unused.

    If `single`, one request sends the message to a new chat, and its answer is the stream. `token` may have several
    tokens, separated by commas; each chat uses one of them. With `refusals`, a refusal because of overload is no fault.
    """

    plan: str
    chats: int = 1
    ramp_seconds: float = 1.0
    limit_seconds: float = 60.0
    burst: bool = False
    single: bool = False
    readers: int = 0
    cuts: int = 0
    gap_ms: int = 100
    replays: int = 0
    second_port: int = 0
    mirror_port: int = 0
    token: str = ""
    refusals: bool = False
    seed: int = 1

    def options(self) -> list[str]:
        values = {
            "--plan": self.plan,
            "--chats": self.chats,
            "--ramp": self.ramp_seconds,
            "--limit": self.limit_seconds,
            "--burst": int(self.burst),
            "--single": int(self.single),
            "--readers": self.readers,
            "--cuts": self.cuts,
            "--gap-ms": self.gap_ms,
            "--replays": self.replays,
            "--second-port": self.second_port,
            "--mirror-port": self.mirror_port,
            "--token": self.token,
            "--refusals": int(self.refusals),
            "--seed": self.seed,
        }
        return [str(word) for pair in values.items() for word in pair]


@dataclass(frozen=True, slots=True)
class Times:
    """Latencies in milliseconds."""

    count: int
    p50: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class LoadResult:
    completed: int
    failed: int
    deltas: int
    delta_events: int
    bytes: int
    lost: int
    repeated: int
    disordered: int
    foreign: int
    resumes: int
    resets: int
    ended_204: int
    replay_events: int
    postponed: int
    wall_seconds: float
    cpu_seconds: float
    first_delta: Times | None
    opening: Times | None
    delta: Times | None
    mirror: Times | None
    replay: Times | None
    rejoin: Times | None
    steady_seconds: float
    steady: Times | None
    first_failure: str
    # `accepted` has the times to the response head of accepted messages, and `refusal` the times to refusals. `refused`
    # maps status and code to the number of refusals, and to how many of them had a `Retry-After`.
    accepted: Times | None = None
    refusal: Times | None = None
    refused: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def faults(self) -> int:
        return self.failed + self.lost + self.repeated + self.disordered + self.foreign + self.resets

    def describe_faults(self) -> str:
        return (
            f"{self.failed} failed, {self.lost} lost, {self.repeated} repeated, "
            f"{self.disordered} out of order, {self.foreign} foreign, {self.resets} resets; "
            f"first failure: {self.first_failure or 'none'}"
        )


class RunningLoad:
    def __init__(self, output: IO[bytes]) -> None:
        self._output = output
        self._line = b""

    def wait_until_attached(self) -> bool:
        """Returns True once every client has an open stream, or False if the run ends earlier."""
        self._line = self._output.readline()
        return self._line.startswith(b'{"attached"')

    def result(self) -> LoadResult:
        lines = [self._line, *self._output.read().splitlines()]
        return msgspec.json.decode(lines[-1], type=LoadResult)


@contextmanager
def started_load(dialect: Dialect, port: int, load: Load) -> Iterator[RunningLoad]:
    command = [str(built("load")), "--dialect", dialect, "--port", str(port), *load.options()]
    with on_cpu(TOOLS_CPU), subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield RunningLoad(process.stdout)
        finally:
            process.kill()  # no effect after the process has exited


def run_load(dialect: Dialect, port: int, load: Load) -> LoadResult:
    with started_load(dialect, port, load) as run:
        return run.result()
