"""The fake Anthropic provider as a separate process. `native/provider.c` documents the plans."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tests.bench.native import built
from tests.bench.processes import TOOLS_CPU, free_port, get, running, wait_until_answering


@dataclass(frozen=True, slots=True)
class ProviderStats:
    requests: int
    completed: int
    aborted: int
    active: int
    connections: int
    refused: int
    deltas: int
    late_over_5ms: int
    late_max_ms: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class FakeProvider:
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stats(self) -> ProviderStats:
        """Returns the counts. The lateness is counted since the previous call, and everything else since the start."""
        _, body = get(self.port, "/stats")
        return msgspec.json.decode(body, type=ProviderStats)


@contextmanager
def fake_provider(folder: Path, cpu: int = TOOLS_CPU) -> Iterator[FakeProvider]:
    port, log = free_port(), folder / "provider.log"
    with running([str(built("provider")), "--port", str(port)], cpu=cpu, log=log) as process:
        wait_until_answering(process, port, "/stats", log)
        yield FakeProvider(port)
